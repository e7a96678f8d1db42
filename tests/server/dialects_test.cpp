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
using ::testing::Not;

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

TEST(Messages, RefuseWhatOthersWouldDoForThem) {
  Api api("x");
  const auto words = [&](const Json& more, int status = 400) {
    Json body = {{"max_tokens", 5}, {"messages", user("Hi")}};
    body.update(more);
    const RawReply reply = api.call("/v1/messages", body);
    EXPECT_EQ(reply.status, status) << dump(more);
    return reply.body;
  };
  EXPECT_THAT(words({{"mcp_servers", Json::array({{{"type", "url"}}})}}), HasSubstr("mcp_servers"));
  EXPECT_THAT(words({{"container", "c_1"}}), HasSubstr("container"));
  const auto edits = [](const Json& edit) { return Json{{"context_management", {{"edits", Json::array({edit})}}}}; };
  EXPECT_THAT(words(edits({{"type", "clear_tool_uses_20250919"}})), HasSubstr("context_management"));
  EXPECT_THAT(words(edits({{"type", "clear_thinking_20251015"}})), HasSubstr("context_management"));
  (void)words(edits({{"type", "clear_thinking_20251015"}, {"keep", "all"}}), 200);
  (void)words({{"mcp_servers", Json::array()}, {"container", nullptr}}, 200);
  const auto tool = [](const char* type) { return Json{{"tools", Json::array({{{"type", type}, {"name", "t"}}})}}; };
  EXPECT_THAT(words(tool("web_search_20250305")), HasSubstr("run on Anthropic's servers"));
  EXPECT_THAT(words(tool("bash_20250124")),
              ::testing::AllOf(HasSubstr("bash_20250124"), HasSubstr("input_schema"), Not(HasSubstr("servers"))));
  EXPECT_THAT(words({{"bad_words", Json::array({"x"})}}), HasSubstr("bad_words"));
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
  EXPECT_EQ(api.get_reply(path + "/nothing").status, 404);
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

TEST(Responses, ListTheItemsThatTheyWereMadeFrom) {
  Api api("Hello!");
  const Json input = Json::array({{{"role", "user"}, {"content", "One"}},
                                  {{"role", "assistant"}, {"content", "Two"}},
                                  {{"type", "message"}, {"id", "msg_mine"}, {"role", "user"}, {"content", "Three"}}});
  const Json made = Json::parse(api.call("/v1/responses", no_thinking({{"input", input}})).body);
  const std::string path = "/v1/responses/" + made["id"].get<std::string>() + "/input_items";
  const Json newest_first = Json::parse(api.get_reply(path).body);
  EXPECT_EQ(newest_first["object"], "list");
  ASSERT_EQ(newest_first["data"].size(), 3U) << "the reply is no input";
  EXPECT_EQ(newest_first["data"][0]["id"], "msg_mine");
  EXPECT_EQ(newest_first["data"][2]["content"][0]["text"], "One");
  const Json first = Json::parse(api.get_reply(path + "?order=asc&limit=1").body);
  EXPECT_EQ(first["data"][0]["content"][0], (Json{{"type", "input_text"}, {"text", "One"}}));
  EXPECT_EQ(first["has_more"], true);
  const Json rest = Json::parse(api.get_reply(path + "?order=asc&after=" + first["last_id"].get<std::string>()).body);
  EXPECT_EQ(rest["data"][0]["content"][0]["type"], "output_text");
  EXPECT_EQ(rest["has_more"], false);
  EXPECT_EQ(api.get_reply(path + "?limit=0").status, 400);
  EXPECT_EQ(api.get_reply("/v1/responses/resp_nothing/input_items").status, 404);
}

TEST(Models, AreFoundByNameInBothDialects) {
  Api api("x");
  const Json one = Json::parse(api.get_reply("/v1/models/other").body);
  EXPECT_EQ(one["id"], "other");
  EXPECT_EQ(one["object"], "model");
  EXPECT_EQ(one["type"], "model");
  EXPECT_EQ(one["display_name"], "other");
  EXPECT_EQ(Json::parse(api.get_reply("/v1/models/%64emo").body)["id"], "demo");
  const RawReply unknown = api.get_reply("/v1/models/gpt-9");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(Json::parse(unknown.body)["error"]["code"], "model_not_found");
  const Json list = Json::parse(api.get_reply("/v1/models").body);
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ(list["data"][0]["type"], "model");
}

TEST(ToolCalls, MayBeAllowedForSomeOfTheOffered) {
  Api api("x");
  const auto tool = [](const char* name) { return Json{{"type", "function"}, {"function", {{"name", name}}}}; };
  const auto choice = [](const Json& tools, const char* mode) {
    return Json{{"type", "allowed_tools"}, {"allowed_tools", {{"mode", mode}, {"tools", tools}}}};
  };
  Json body = no_thinking({{"messages", user("Hi")}, {"tools", {tool("walk"), tool("swim")}}});
  body["tool_choice"] = choice(Json::array({tool("swim")}), "required");
  (void)api.chat(body);
  const engine::Request request = api.engine().last_request();
  EXPECT_THAT(demo_tokenizer().decode(request.prompt), ::testing::AllOf(HasSubstr("swim"), Not(HasSubstr("walk"))));
  EXPECT_NE(request.constraint, nullptr) << "a call is required";
  body["tool_choice"] = choice(Json::array({tool("swim")}), "auto");
  (void)api.chat(body);
  EXPECT_EQ(api.engine().last_request().constraint, nullptr);
  for (const Json& wrong : {choice(Json::array({tool("fly")}), "auto"), choice(Json::array({tool("swim")}), "maybe"),
                            choice(Json::array(), "auto")}) {
    body["tool_choice"] = wrong;
    EXPECT_EQ(api.call("/v1/chat/completions", body).status, 400) << dump(wrong);
  }
  Json response = {{"input", "Hi"}, {"tools", Json::array({{{"type", "function"}, {"name", "walk"}}})}};
  response["tool_choice"] = {
      {"type", "allowed_tools"}, {"mode", "auto"}, {"tools", Json::array({{{"type", "function"}, {"name", "walk"}}})}};
  EXPECT_EQ(api.call("/v1/responses", response).status, 200);
  response["tool_choice"]["tools"][0]["name"] = "fly";
  EXPECT_THAT(api.call("/v1/responses", response).body, HasSubstr("'fly', which is not offered"));
}

TEST(Responses, RefuseWhatTheyCannotDo) {
  Api api("x");
  for (const char* type : {"local_shell", "custom", "web_search"}) {
    const RawReply reply =
        api.call("/v1/responses", {{"input", "Hi"}, {"tools", Json::array({{{"type", type}, {"name", "t"}}})}});
    EXPECT_EQ(reply.status, 400);
    EXPECT_THAT(reply.body, HasSubstr(type));
  }
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
