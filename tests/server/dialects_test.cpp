// The other dialects and tool calls: they must say what the chat route says, in their own words.
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/anthropic_request.h"
#include "server/scripted_api.h"

namespace tensorfold::server {
namespace {

using ::testing::HasSubstr;

const Json weather = {
    {"name", "get_weather"},
    {"description", "Get the weather of a city"},
    {"parameters",
     {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}, {"days", {{"type", "integer"}}}}}}}};
constexpr const char* weather_call =
    "Let me look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich "
    "{\"a\"}\n</parameter>\n<parameter=days>\n3\n"
    "</parameter>\n</function>\n</tool_call>";
constexpr const char* weather_arguments = R"({"city":"Zürich {\"a\"}","days":3})";

Json user(const std::string& text) { return Json::array({{{"role", "user"}, {"content", text}}}); }

TEST(ToolCalls, AreTheSameStreamedAndWholeForEverySplit) {
  for (const size_t tokens_a_round : {1U, 2U, 5U, 100U}) {
    Api api(weather_call, tokens_a_round);
    Json body = no_thinking(
        {{"messages", user("Weather?")}, {"tools", Json::array({{{"type", "function"}, {"function", weather}}})}});
    const Json whole = api.chat(body)["choices"][0];
    EXPECT_EQ(whole["finish_reason"], "tool_calls");
    EXPECT_EQ(whole["message"]["content"], "Let me look.");
    ASSERT_EQ(whole["message"]["tool_calls"].size(), 1U);
    EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["arguments"], weather_arguments);

    body["stream"] = true;
    std::string content;
    std::string arguments;
    std::string finish;
    std::set<std::string> ids;
    for (const std::string& event : events_of(api.call("/v1/chat/completions", body).body)) {
      if (event == "[DONE]") continue;
      const Json chunk = Json::parse(event);
      const Json& choice = chunk["choices"][0];
      content += choice["delta"].value("content", "");
      if (choice["delta"].contains("tool_calls")) {
        const Json& call = choice["delta"]["tool_calls"][0];
        EXPECT_EQ(call["index"], 0);
        if (call.contains("id")) ids.insert(call["id"].get<std::string>());
        arguments += call["function"].value("arguments", "");
      }
      if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
    }
    EXPECT_EQ(content, "Let me look.");
    EXPECT_EQ(arguments, weather_arguments);
    EXPECT_EQ(finish, "tool_calls");
    EXPECT_EQ(ids.size(), 1U) << "the id is sent once";
  }
}

TEST(ToolCalls, OfToolsThatWereNotOfferedStayText) {
  Api api(weather_call);
  const Json reply = api.chat(no_thinking({{"messages", user("Weather?")}}));
  EXPECT_EQ(reply["choices"][0]["message"]["content"], weather_call);
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
}

TEST(ToolCalls, ThatMustBeMadeReachTheEngineAsAConstraint) {
  Api api(weather_call);
  Json body = no_thinking(
      {{"messages", user("Weather?")}, {"tools", Json::array({{{"type", "function"}, {"function", weather}}})}});
  api.chat(body);
  EXPECT_EQ(api.engine().last_request().constraint, nullptr);
  body["tool_choice"] = "required";
  api.chat(body);
  const auto constraint = api.engine().last_request().constraint;
  ASSERT_NE(constraint, nullptr);
  EXPECT_EQ(constraint->forced({}), demo_tokenizer().id_of("<tool_call>").value());
}

TEST(Messages, AnswerInBlocks) {
  Api api("I add.\n</think>\n\n42.");
  const Json body = {{"max_tokens", 50}, {"messages", user("17 + 25?")}, {"thinking", {{"type", "enabled"}}}};
  const Json message = Json::parse(api.call("/v1/messages", body).body);
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["content"][0]["thinking"], "I add.");
  EXPECT_EQ(message["content"][1]["text"], "42.");
  EXPECT_EQ(message["stop_reason"], "end_turn");
  EXPECT_EQ(message["usage"]["input_tokens"], api.engine().last_request().prompt.size());
}

TEST(Messages, StreamTheirEventsInOrder) {
  Api api(std::string("I look.\n</think>\n\n") + weather_call, 3);
  const Json body = {{"max_tokens", 200},
                     {"stream", true},
                     {"messages", user("Weather?")},
                     {"thinking", {{"type", "enabled"}}},
                     {"tools", Json::array({{{"name", "get_weather"}, {"input_schema", weather["parameters"]}}})}};
  std::vector<std::string> kinds;
  std::string json;
  int64_t open = -1;
  for (const std::string& event : events_of(api.call("/v1/messages", body).body)) {
    const Json data = Json::parse(event);
    const std::string type = data["type"];
    if (type == "content_block_start") {
      EXPECT_EQ(open, -1) << "one block at a time";
      open = data["index"];
      kinds.push_back(data["content_block"]["type"]);
    } else if (type == "content_block_stop") {
      EXPECT_EQ(data["index"], open);
      open = -1;
    } else if (type == "content_block_delta") {
      EXPECT_EQ(data["index"], open);
      json += data["delta"].value("partial_json", "");
    } else {
      kinds.push_back(type);
    }
  }
  EXPECT_THAT(kinds,
              ::testing::ElementsAre("message_start", "thinking", "text", "tool_use", "message_delta", "message_stop"));
  EXPECT_EQ(json, weather_arguments);
}

TEST(Messages, CountWhatTheyWouldRun) {
  Api api("x");
  const Json body = {{"max_tokens", 5}, {"system", "Be brief."}, {"messages", user("Hi")}};
  const Json count = Json::parse(api.call("/v1/messages/count_tokens", body).body);
  api.call("/v1/messages", body);
  EXPECT_EQ(count["input_tokens"], api.engine().last_request().prompt.size());
}

TEST(Messages, DropTheLineThatWouldSpoilEveryPrefix) {
  const auto with = [](const std::string& hash) {
    return chat_from_messages(
        {{"max_tokens", 5},
         {"system", Json::array({{{"type", "text"}, {"text", "x-anthropic-billing-header: cch=" + hash + ";"}},
                                 {{"type", "text"}, {"text", "You are helpful."}}})},
         {"messages", user("Hi")}},
        false);
  };
  EXPECT_EQ(with("12345"), with("abcde"));
  EXPECT_EQ(with("12345")["messages"][0]["content"], "You are helpful.");
}

TEST(Messages, RefuseInTheirOwnEnvelope) {
  Api api("x");
  for (const Json& body : std::vector<Json>{
           {{"max_tokens", 5}},
           {{"messages", user("Hi")}},
           {{"max_tokens", 5}, {"messages", Json::array({{{"role", "alien"}, {"content", "x"}}})}},
           {{"max_tokens", 5}, {"messages", user("Hi")}, {"temperature", "hot"}},
           {{"max_tokens", 5},
            {"messages", Json::array({{{"role", "user"}, {"content", Json::array({{{"type", "image"}}})}}})}},
           {{"max_tokens", 5},
            {"messages", user("Hi")},
            {"tools", Json::array({{{"name", "f"}, {"input_schema", Json::object()}}})},
            {"tool_choice", {{"type", "tool"}, {"name", 5}}}},
           {{"max_tokens", 5},
            {"messages", user("Hi")},
            {"tools", Json::array({{{"type", "web_search_20250305"}, {"name", "web_search"}}})}}}) {
    const RawReply reply = api.call("/v1/messages", body);
    EXPECT_EQ(reply.status, 400) << dump(body);
    const Json error = Json::parse(reply.body);
    EXPECT_EQ(error["type"], "error");
    EXPECT_EQ(error["error"]["type"], "invalid_request_error");
  }
}

TEST(Responses, KeepAConversation) {
  Api api("Hello!");
  const Json first = Json::parse(api.call("/v1/responses", no_thinking({{"input", "Hi"}})).body);
  EXPECT_EQ(first["status"], "completed");
  EXPECT_EQ(first["output"][0]["content"][0]["text"], "Hello!");
  const Json second = Json::parse(
      api.call("/v1/responses", no_thinking({{"input", "And you?"}, {"previous_response_id", first["id"]}})).body);
  EXPECT_EQ(second["status"], "completed");
  const std::string prompt = demo_tokenizer().decode(api.engine().last_request().prompt);
  EXPECT_THAT(prompt, HasSubstr("Hi"));
  EXPECT_THAT(prompt, HasSubstr("Hello!"));
  EXPECT_THAT(prompt, HasSubstr("And you?"));

  const std::string path = "/v1/responses/" + first["id"].get<std::string>();
  RawClient client(api.port());
  client.send(get(path));
  EXPECT_EQ(Json::parse(client.read_reply().body)["id"], first["id"]);
  client.send("DELETE " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(Json::parse(client.read_reply().body)["deleted"], true);
  client.send(get(path));
  EXPECT_EQ(client.read_reply().status, 404);
}

TEST(Responses, StreamNumberedEventsThatAddUp) {
  Api api("I think.\n</think>\n\nOne two three.", 2);
  int64_t expected = 0;
  std::string text;
  Json final;
  std::vector<std::string> types;
  for (const std::string& event : events_of(api.call("/v1/responses", {{"input", "Hi"}, {"stream", true}}).body)) {
    const Json data = Json::parse(event);
    EXPECT_EQ(data["sequence_number"], expected++);
    types.push_back(data["type"]);
    if (data["type"] == "response.output_text.delta") text += data["delta"].get<std::string>();
    if (data.contains("response")) final = data["response"];
  }
  EXPECT_EQ(types.front(), "response.created");
  EXPECT_EQ(types.back(), "response.completed");
  EXPECT_EQ(text, "One two three.");
  EXPECT_EQ(final["output"][0]["content"][0]["text"], "I think.");
  EXPECT_EQ(final["output"][1]["content"][0]["text"], text);
}

TEST(Responses, RefuseWhatTheyCannotDo) {
  Api api("x");
  for (const Json& more : std::vector<Json>{{{"previous_response_id", "resp_nothing"}},
                                            {{"tools", Json::array({{{"type", "web_search"}}})}},
                                            {{"background", true}},
                                            {{"truncation", "auto"}},
                                            {{"metadata", {{"a", 1}}}}}) {
    Json body = {{"input", "Hi"}};
    body.update(more);
    EXPECT_EQ(api.call("/v1/responses", body).status, 400) << dump(more);
  }
}

}  // namespace
}  // namespace tensorfold::server
