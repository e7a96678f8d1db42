// Requests that were let through, or refused in words that help nobody.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/request_log.h"
#include "server/scripted_api.h"

namespace tensorfold::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string message_of(Api& api, const std::string& path, const Json& body) {
  const RawReply reply = api.call(path, body);
  EXPECT_EQ(reply.status, 400) << reply.body;
  return Json::parse(reply.body)["error"]["message"];
}

Json user_says(const char* text) { return Json::array({{{"role", "user"}, {"content", text}}}); }

TEST(Refusals, NameWhatIsMissingOrOutOfRange) {
  Api api("hello");
  Json messages = user_says("Hi");
  messages.push_back({{"role", "tool"}, {"content", "42"}});
  EXPECT_THAT(message_of(api, "/v1/chat/completions", {{"messages", messages}}),
              HasSubstr("messages[1] needs a tool_call_id"));
  const Json result = Json::array({{{"type", "tool_result"}, {"content", "42"}}});
  EXPECT_THAT(message_of(api, "/v1/messages",
                         {{"max_tokens", 5}, {"messages", Json::array({{{"role", "user"}, {"content", result}}})}}),
              HasSubstr("tool_use_id"));
  const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "a b"}}}}});
  EXPECT_THAT(message_of(api, "/v1/chat/completions", {{"messages", user_says("Hi")}, {"tools", tools}}),
              HasSubstr("tools[0].function.name"));
  EXPECT_THAT(message_of(api, "/v1/chat/completions", {{"messages", user_says("Hi")}, {"model", 5}}),
              HasSubstr("model must be a string"));
  for (const double top_p : {-5.0, 1e308, 1.01}) {
    EXPECT_THAT(message_of(api, "/v1/chat/completions", {{"messages", user_says("Hi")}, {"top_p", top_p}}),
                HasSubstr("top_p must be between 0 and 1"));
  }
  EXPECT_THAT(message_of(api, "/v1/chat/completions", {{"messages", user_says("Hi")}, {"priority", "urgent"}}),
              HasSubstr("priority"));
  EXPECT_THAT(message_of(api, "/v1/chat/completions", {{"messages", user_says("Hi")}, {"reasoning_effort", "huge"}}),
              HasSubstr("none, minimal, low, medium, high, xhigh or max"));
  EXPECT_EQ(api.engine().submitted(), 0);
}

TEST(Refusals, IntegersOfAnotherServersPriorityAreUnderstood) {
  Api api("hello");
  (void)api.chat(no_thinking({{"priority", 3}}));
  EXPECT_EQ(api.engine().last_request().priority, engine::Priority::background);
  (void)api.chat(no_thinking({{"priority", 0}}));
  EXPECT_EQ(api.engine().last_request().priority, engine::Priority::foreground);
}

TEST(Refusals, ContextOverflowIsSaidInTheWordsThatAgentsLookFor) {
  Api api("hello", 1, {}, 64);
  std::string many;
  for (int i = 0; i < 200; ++i) many += "word ";
  const RawReply reply = api.call("/v1/chat/completions", {{"messages", user_says(many.c_str())}});
  const Json error = Json::parse(reply.body)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "messages");
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_THAT(error["message"].get<std::string>(),
              ::testing::StartsWith("This server's maximum context length is 64 tokens"));
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("Please reduce the length of the messages"));
  const Json wide = api.chat({{"messages", user_says("Hi")}, {"max_tokens", 1000}});
  EXPECT_THAT(wide["error"]["message"].get<std::string>(), HasSubstr("1000 in the completion"));
  EXPECT_THAT(message_of(api, "/v1/messages", {{"max_tokens", 8}, {"messages", user_says(many.c_str())}}),
              HasSubstr("prompt is too long"));
}

TEST(Bodies, NumbersOutOfRangeAreRefusedInOurWords) {
  Api api("hello");
  RawClient client(api.port());
  client.send(post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"Hi"}],"temperature":1e999})"));
  const std::string body = client.read_reply().body;
  EXPECT_THAT(body, HasSubstr("a number in the body is too large"));
  EXPECT_THAT(body, Not(HasSubstr("json.exception")));
}

TEST(Bodies, HalfASurrogatePairBecomesTheReplacementCharacter) {
  const auto content = [](const std::string& escaped) {
    return parse_body("{\"a\":\"" + escaped + "\"}")["a"].get<std::string>();
  };
  EXPECT_EQ(content("x\\ud83dy"), "x\xEF\xBF\xBDy");
  EXPECT_EQ(content("\\ud83d\\ude00"), "😀");
  EXPECT_EQ(content("\\ude00\\ud83d"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(content("\\ud83d\\ud83d\\ude00"), "\xEF\xBF\xBD😀");
  EXPECT_EQ(content("\\\\ud83d"), "\\ud83d") << "an escaped backslash and letters";
  EXPECT_EQ(content("\\\\\\ud83d"), "\\\xEF\xBF\xBD");
  EXPECT_EQ(content("\\ud83d\\u0041"),
            "\xEF\xBF\xBD"
            "A");
}

TEST(ForcedCalls, ACallThatTheLimitCutsIsNoContent) {
  const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "add"}}}}});
  const std::string call = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>";
  for (int limit = 1; limit < 12; ++limit) {
    Api api(call);
    const Json reply = api.chat(no_thinking({{"tools", tools}, {"tool_choice", "required"}, {"max_tokens", limit}}));
    const Json& choice = reply["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "length") << limit;
    EXPECT_TRUE(choice["message"]["content"].is_null() || choice["message"]["content"] == "") << dump(choice);
  }
}

TEST(Decisions, AreCheckedBeforeAnythingRuns) {
  Api api("hello");
  const Json question = {{"id", "q"}, {"type", "choice"}, {"question", "Which?"}, {"options", {"a", "b"}}};
  const auto refused = [&](Json body) { return message_of(api, "/v1/decisions", body); };
  EXPECT_THAT(refused({{"input", "x"}}), HasSubstr("questions"));
  EXPECT_THAT(refused({{"questions", Json::array({question})}}), HasSubstr("input"));
  EXPECT_THAT(refused({{"input", "x"}, {"questions", Json::array({question, question})}}),
              HasSubstr("'q' stands twice"));
  Json odd = question;
  odd["type"] = "guess";
  EXPECT_THAT(refused({{"input", "x"}, {"questions", Json::array({odd})}}), HasSubstr("questions[0].type"));
  odd = question;
  odd["options"] = {"a"};
  EXPECT_THAT(refused({{"input", "x"}, {"questions", {{"q", odd}}}}), HasSubstr("questions.q.options"));
  EXPECT_THAT(refused({{"input", "x"},
                       {"questions", Json::array({question})},
                       {"chat_template_kwargs", {{"enable_thinking", true}}}}),
              HasSubstr("enable_thinking"));
  EXPECT_EQ(api.engine().submitted(), 0);
}

TEST(RequestLog, SaysSoWhenNoTokenCame) {
  RequestLog log(RequestLogFormat::text);
  ReplySummary summary;
  ::testing::internal::CaptureStdout();
  log.finished("id", "", summary, true);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), ::testing::AllOf(HasSubstr("no token"), Not(HasSubstr("-1"))));
  RequestLog json(RequestLogFormat::json);
  ::testing::internal::CaptureStdout();
  json.finished("id", "", summary, true);
  EXPECT_TRUE(Json::parse(::testing::internal::GetCapturedStdout())["first_token_seconds"].is_null());
}

}  // namespace
}  // namespace tensorfold::server
