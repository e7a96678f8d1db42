// What users of such servers report as broken, each with its minimal case and the right value.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/scripted_api.h"

namespace tensorfold::server {
namespace {

constexpr size_t rounds[] = {1, 2, 3, 7, 100};

Json user(const std::string& text) { return Json::array({{{"role", "user"}, {"content", text}}}); }

Json tool(const char* name, Json properties) {
  return {{"type", "function"},
          {"function", {{"name", name}, {"parameters", {{"type", "object"}, {"properties", std::move(properties)}}}}}};
}

/// A streamed chat: the deltas of all chunks, and every finish reason.
struct Streamed {
  std::vector<Json> deltas;
  std::vector<Json> finishes;
};

Streamed stream(Api& api, Json body) {
  body["stream"] = true;
  if (!body.contains("messages")) body["messages"] = user("Hi");
  Streamed result;
  for (const std::string& event : events_of(api.call("/v1/chat/completions", body).body)) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"][0];
    result.deltas.push_back(choice["delta"]);
    result.finishes.push_back(choice["finish_reason"]);
  }
  return result;
}

std::string call_text(const char* city) {
  return std::string("<tool_call>\n<function=get_weather>\n<parameter=city>\n") + city +
         "\n</parameter>\n</function>\n</tool_call>";
}

TEST(UserReports, EveryStreamedCallHasAnIndexOfItsOwn) {
  for (const size_t tokens : rounds) {
    Api api(call_text("A") + "\n" + call_text("B"), tokens);
    const Json body = no_thinking({{"tools", Json::array({tool("get_weather", {{"city", {{"type", "string"}}}})})}});
    std::vector<std::string> arguments(2);
    std::vector<int> begun(2, 0);
    for (const Json& delta : stream(api, body).deltas) {
      if (!delta.contains("tool_calls")) continue;
      for (const Json& call : delta["tool_calls"]) {
        ASSERT_TRUE(call["index"].is_number_integer());
        const size_t index = call["index"];
        ASSERT_LT(index, 2U);
        if (call.contains("id")) {
          ++begun[index];
          EXPECT_EQ(call["type"], "function");
          EXPECT_EQ(call["function"], Json({{"name", "get_weather"}, {"arguments", ""}}));
        } else {
          EXPECT_EQ(call.size(), 2U) << "later deltas are index and function alone: " << dump(call);
          EXPECT_EQ(call["function"].size(), 1U);
          arguments[index] += call["function"]["arguments"];
        }
      }
    }
    EXPECT_EQ(begun, (std::vector<int>{1, 1}));
    EXPECT_EQ(arguments, (std::vector<std::string>{R"({"city":"A"})", R"({"city":"B"})"}));
    Json whole = body;
    const Json calls = api.chat(whole)["choices"][0]["message"]["tool_calls"];
    ASSERT_EQ(calls.size(), 2U);
    EXPECT_FALSE(calls[0].contains("index"));
    EXPECT_EQ(calls[1]["function"]["arguments"], arguments[1]);
  }
}

TEST(UserReports, ExactlyOneChunkSaysHowItEnded) {
  const auto finish = [](Api& api, const Json& body) {
    const Streamed all = stream(api, body);
    std::string reason;
    for (size_t i = 0; i < all.finishes.size(); ++i) {
      EXPECT_EQ(all.finishes[i].is_null(), i + 1 < all.finishes.size());
      if (!all.finishes[i].is_null()) reason = all.finishes[i];
    }
    return reason;
  };
  const Json tools = Json::array({tool("get_weather", {{"city", {{"type", "string"}}}})});
  Api call(call_text("Oslo"));
  EXPECT_EQ(finish(call, no_thinking({{"tools", tools}})), "tool_calls");
  EXPECT_EQ(finish(call, no_thinking({{"tools", tools}, {"max_tokens", 8}})), "length") << "a call cut by the limit";
  Api plain("hello there");
  EXPECT_EQ(finish(plain, no_thinking()), "stop");
  EXPECT_EQ(finish(plain, no_thinking({{"max_tokens", 1}})), "length");
}

TEST(UserReports, CharactersThatTokensSplitArriveWhole) {
  const std::string text = "a 😀 ok 北京 Zürich";
  for (const size_t tokens : rounds) {
    Api api(text, tokens);
    std::string content;
    for (const Json& delta : stream(api, no_thinking()).deltas) {
      const std::string piece = delta.value("content", "");
      EXPECT_EQ(piece.find("\xEF\xBF\xBD"), std::string::npos);
      content += piece;
    }
    EXPECT_EQ(content, text);
    Api thinking(text + "</think>\n\n" + text, tokens);
    const Json reply = thinking.chat(Json::object())["choices"][0]["message"];
    EXPECT_EQ(reply["reasoning_content"], text);
    EXPECT_EQ(reply["content"], text);
  }
}

TEST(UserReports, HeldBackTextIsNeverLost) {
  for (const size_t tokens : rounds) {
    Api almost("pleas", tokens);
    EXPECT_EQ(almost.chat(no_thinking({{"stop", "<|im_end|>assistant"}}))["choices"][0]["message"]["content"], "pleas");
    Api question("?", tokens);
    EXPECT_EQ(question.chat(no_thinking({{"stop", "\n"}}))["choices"][0]["message"]["content"], "?");
    Api turns("alpha\nUser: beta", tokens);
    EXPECT_EQ(turns.chat(no_thinking({{"stop", "\nUser:"}}))["choices"][0]["message"]["content"], "alpha");
    const Json completion = Json::parse(turns.call("/v1/completions", {{"prompt", "x"}, {"stop", "\nUser:"}}).body);
    EXPECT_EQ(completion["choices"][0]["text"], "alpha");
    EXPECT_EQ(completion["choices"][0]["finish_reason"], "stop");
  }
}

TEST(UserReports, TheTemplateOpensTheThinkBlock) {
  for (const size_t tokens : rounds) {
    Api closed("r1</think>\n\nA", tokens);
    const Json message = closed.chat(Json::object())["choices"][0]["message"];
    EXPECT_EQ(message["reasoning_content"], "r1");
    EXPECT_EQ(message["content"], "A");
    Api cut("r1 r2 r3 r4", tokens);
    cut.open_end = true;
    const Json choice = cut.chat({{"max_tokens", 3}})["choices"][0];
    EXPECT_TRUE(choice["message"]["content"].is_null() || choice["message"]["content"] == "");
    EXPECT_EQ(choice["finish_reason"], "length");
  }
}

TEST(UserReports, AThinkBlockIsClosedThoughThinkingIsOff) {
  for (const size_t tokens : rounds) {
    Api api("r1</think>A", tokens);
    const Json reply = api.chat(no_thinking());
    EXPECT_EQ(reply["choices"][0]["message"]["reasoning_content"], "r1");
    EXPECT_EQ(reply["choices"][0]["message"]["content"], "A");
    EXPECT_GT(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
    // A stream has sent r1 before anyone could know; the marker itself never shows.
    std::string content;
    for (const Json& delta : stream(api, no_thinking()).deltas) content += delta.value("content", "");
    EXPECT_EQ(content, "r1A");
  }
}

TEST(UserReports, MarkupInsideTheThinkBlockIsNoCall) {
  const std::string first = R"(<tool_call>{"name":"f","arguments":{"x":1}}</tool_call>)";
  const std::string second = R"(<tool_call>{"name":"f","arguments":{"x":2}}</tool_call>)";
  const Json tools = Json::array({tool("f", {{"x", {{"type", "integer"}}}})});
  for (const size_t tokens : rounds) {
    Api api("I could write " + first + ".</think>" + second, tokens);
    const Json message = api.chat({{"tools", tools}})["choices"][0]["message"];
    ASSERT_EQ(message["tool_calls"].size(), 1U);
    EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"x":2})");
    // A block that is never closed: the complete call counts, the reasoning stops where it begins.
    Api open("I call it " + first, tokens);
    const Json unclosed = open.chat({{"tools", tools}})["choices"][0]["message"];
    ASSERT_EQ(unclosed["tool_calls"].size(), 1U);
    EXPECT_EQ(unclosed["tool_calls"][0]["function"]["arguments"], R"({"x":1})");
    EXPECT_EQ(unclosed["reasoning_content"], "I call it");
  }
}

TEST(UserReports, ABareCallWithThinkingOffIsACall) {
  Api api(call_text("Oslo"));
  const Json message = api.chat(no_thinking(
      {{"tools", Json::array({tool("get_weather", {{"city", {{"type", "string"}}}})})}}))["choices"][0]["message"];
  EXPECT_EQ(message["tool_calls"].size(), 1U);
  EXPECT_FALSE(message.contains("reasoning_content"));
}

TEST(UserReports, BracesQuotesAndMarkersInsideAnArgument) {
  const Json tools = Json::array({tool("run", {{"cmd", {{"type", "string"}}}})});
  for (const std::string command : {"mkdir -p t/{a,b", "echo </tool_call>", "say \"x\"}", "a\nb\\n", "Zürich 北京"}) {
    for (const size_t tokens : rounds) {
      Api api("<tool_call>" + dump({{"name", "run"}, {"arguments", {{"cmd", command}}}}) + " </tool_call>", tokens);
      const Json message = api.chat(no_thinking({{"tools", tools}}))["choices"][0]["message"];
      ASSERT_EQ(message["tool_calls"].size(), 1U) << command;
      EXPECT_EQ(Json::parse(message["tool_calls"][0]["function"]["arguments"].get<std::string>())["cmd"], command);
      std::string arguments;
      for (const Json& delta : stream(api, no_thinking({{"tools", tools}})).deltas) {
        if (delta.contains("tool_calls")) arguments += delta["tool_calls"][0]["function"].value("arguments", "");
      }
      EXPECT_EQ(Json::parse(arguments)["cmd"], command);
    }
  }
  Api broken(R"(<tool_call>{"name":"run","arguments":{"cmd":)");
  const RawReply reply = broken.call("/v1/chat/completions", no_thinking({{"messages", user("Hi")}, {"tools", tools}}));
  EXPECT_EQ(reply.status, 200);
  EXPECT_NE(Json::parse(reply.body)["choices"][0]["message"]["content"].get<std::string>().find("\"run\""),
            std::string::npos);
}

TEST(UserReports, ParametersAreTypedByTheirSchema) {
  const Json tools = Json::array({tool("f", {{"zip", {{"type", "string"}}},
                                             {"n", {{"type", "integer"}}},
                                             {"b", {{"type", {"boolean", "null"}}}},
                                             {"o", {{"type", "object"}}},
                                             {"any", Json::object()}})});
  const auto arguments = [&](const std::vector<std::pair<const char*, const char*>>& values) {
    std::string text = "<tool_call>\n<function=f>\n";
    for (const auto& [name, value] : values) {
      text += std::string("<parameter=") + name + ">\n" + value + "\n</parameter>\n";
    }
    Api api(text + "</function>\n</tool_call>");
    const Json message = api.chat(no_thinking({{"tools", tools}}))["choices"][0]["message"];
    EXPECT_EQ(message["tool_calls"].size(), 1U);
    return Json::parse(message["tool_calls"][0]["function"]["arguments"].get<std::string>());
  };
  const Json typed = arguments({{"zip", "02134"}, {"b", "False"}, {"o", R"({"k": null})"}, {"any", "7"}});
  EXPECT_EQ(typed, Json({{"zip", "02134"}, {"b", false}, {"o", {{"k", nullptr}}}, {"any", "7"}}));
  EXPECT_EQ(arguments({{"b", "None"}})["b"], nullptr);
  EXPECT_EQ(arguments({{"b", "maybe"}})["b"], "maybe");
  EXPECT_EQ(arguments({{"o", R"({"k": [1})"}})["o"], R"({"k": [1})") << "two brackets short";
  EXPECT_EQ(arguments({{"o", R"({"k": [1])"}})["o"], Json({{"k", {1}}})) << "one bracket short";
  EXPECT_EQ(arguments({{"n", "5"}})["n"], 5);
  EXPECT_EQ(arguments({{"zip", "1e5"}})["zip"], "1e5");
  EXPECT_EQ(arguments({{"n", "2026-01-15"}})["n"], "2026-01-15") << "the raw text, never a dropped call";
  // The recorded vectors of the reference keep these two as text.
  EXPECT_EQ(arguments({{"n", "5.0"}})["n"], "5.0");
  EXPECT_EQ(arguments({{"o", "{'k': None}"}})["o"], "{'k': None}");
}

TEST(UserReports, ReplayedCallsRenderWhateverTheirArgumentsAre) {
  Api api("ok");
  for (const char* arguments : {R"({"city":"Oslo"})", "{city", "", "[1]"}) {
    Json messages = user("Weather?");
    messages.push_back(
        {{"role", "assistant"},
         {"content", nullptr},
         {"tool_calls", Json::array({{{"id", "call_1"},
                                      {"type", "function"},
                                      {"function", {{"name", "get_weather"}, {"arguments", arguments}}}}})}});
    messages.push_back({{"role", "tool"}, {"tool_call_id", "call_1"}, {"content", "sunny"}});
    const RawReply reply =
        api.call("/v1/chat/completions",
                 no_thinking({{"messages", messages}, {"tools", Json::array({tool("get_weather", Json::object())})}}));
    EXPECT_EQ(reply.status, 200) << arguments << "\n" << reply.body;
  }
}

}  // namespace
}  // namespace tensorfold::server
