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

TEST(Bodies, DoNotEndAtAZeroByte) {
  Api api("hello");
  RawClient client(api.port());
  const std::string body = R"({"messages":[{"role":"user","content":"Hi"}]})";
  client.send(post("/v1/chat/completions", body + std::string(1, '\0')));
  EXPECT_THAT(client.read_reply().body, HasSubstr("not JSON at byte"));
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
  odd["options"] = {"a", "b", "a"};
  EXPECT_THAT(refused({{"input", "x"}, {"questions", {{"q", odd}}}}), HasSubstr("'a' stands twice"));
  EXPECT_THAT(refused({{"input", "x"},
                       {"questions", Json::array({question})},
                       {"chat_template_kwargs", {{"enable_thinking", true}}}}),
              HasSubstr("enable_thinking"));
  EXPECT_EQ(api.engine().submitted(), 0);
}

TEST(Refusals, AreGivenForEveryFieldThatWouldHaveToRestrictTheReply) {
  Api api("hello");
  for (const auto& [field, value] :
       std::vector<std::pair<const char*, Json>>{{"allowed_token_ids", {1, 2}},
                                                 {"bad_words", {"x"}},
                                                 {"min_tokens", 5},
                                                 {"continue_final_message", true},
                                                 {"add_generation_prompt", false},
                                                 {"functions", Json::array({{{"name", "f"}}})},
                                                 {"function_call", {{"name", "f"}}},
                                                 {"chat_template", "{{ 1 }}"},
                                                 {"documents", Json::array({{{"text", "x"}}})},
                                                 {"prompt_logprobs", 1},
                                                 {"use_beam_search", true},
                                                 {"include_stop_str_in_output", true},
                                                 {"truncate_prompt_tokens", 10},
                                                 {"web_search_options", {{"search_context_size", "low"}}},
                                                 {"best_of", 2},
                                                 {"echo", true},
                                                 {"suffix", "x"}}) {
    EXPECT_THAT(message_of(api, "/v1/chat/completions", {{"messages", user_says("Hi")}, {field, value}}),
                HasSubstr(field));
    if (std::string(field) == "add_generation_prompt") continue;
    EXPECT_THAT(message_of(api, "/v1/responses", {{"input", "Hi"}, {field, value}}), HasSubstr(field));
    EXPECT_THAT(message_of(api, "/v1/completions", {{"prompt", "Hi"}, {field, value}}), HasSubstr(field));
  }
  for (const char* name : {"messages", "tools", "add_generation_prompt", "bos_token"}) {
    EXPECT_THAT(message_of(api, "/v1/chat/completions",
                           {{"messages", user_says("Hi")}, {"chat_template_kwargs", {{name, Json::array()}}}}),
                HasSubstr(name));
  }
  EXPECT_EQ(api.engine().submitted(), 0);
  const Json harmless = no_thinking({{"min_tokens", 0},
                                     {"bad_words", Json::array()},
                                     {"functions", nullptr},
                                     {"echo", false},
                                     {"best_of", 1},
                                     {"suffix", ""},
                                     {"add_generation_prompt", true}});
  EXPECT_TRUE(api.chat(harmless).contains("choices"));
}

TEST(Fields, OfOtherServersMeanTheSameHere) {
  Api api("one two three");
  (void)api.chat(no_thinking({{"n_predict", 7}, {"repeat_penalty", 1.5}}));
  engine::Request request = api.engine().last_request();
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.repetition_penalty, 1.5F);
  (void)api.chat(no_thinking({{"max_tokens", -1}}));
  EXPECT_GT(api.engine().last_request().max_tokens, 1000);
  EXPECT_EQ(api.call("/v1/chat/completions", {{"messages", user_says("Hi")}, {"max_tokens", -2}}).status, 400);

  const int32_t two = demo_tokenizer().encode(" two").front();
  const std::string before = "one";
  for (const bool ignore : {false, true}) {
    const Json reply = api.chat(no_thinking({{"stop_token_ids", {two}}, {"ignore_eos", ignore}, {"max_tokens", 50}}));
    const Json& choice = reply["choices"][0];
    const std::string text = choice["message"]["content"];
    EXPECT_EQ(before.compare(0, text.size(), text), 0) << text;
    EXPECT_EQ(choice["finish_reason"], "stop");
  }
  EXPECT_EQ(api.call("/v1/chat/completions", {{"messages", user_says("Hi")}, {"stop_token_ids", {-1}}}).status, 400);

  const Json tokens = Json::parse(api.call("/tokenize", {{"content", "Hello"}}).body)["tokens"];
  EXPECT_EQ(tokens.get<std::vector<int32_t>>(), demo_tokenizer().encode("Hello"));
  EXPECT_EQ(Json::parse(api.call("/detokenize", {{"tokens", tokens}}).body)["content"], "Hello");
  EXPECT_THAT(message_of(api, "/detokenize", {{"tokens", {99999999}}}), HasSubstr("99999999 is out of range"));
}

TEST(Refusals, OfALimitBeyondTheWindowNameWhatTheDialectCallsIt) {
  Api api("hello", 1, {}, 64);
  const std::string chat =
      message_of(api, "/v1/chat/completions", {{"messages", user_says("Hi")}, {"max_completion_tokens", 1000}});
  EXPECT_THAT(chat, HasSubstr("Please reduce max_completion_tokens to at most "));
  EXPECT_THAT(chat, Not(HasSubstr("at most 0")));
  EXPECT_THAT(message_of(api, "/v1/responses", {{"input", "Hi"}, {"max_output_tokens", 60}}),
              ::testing::AllOf(HasSubstr("length of the input to at most 4 tokens or max_output_tokens"),
                               Not(HasSubstr("max_tokens"))));
}

TEST(Fields, MayHoldIdsOfPaddingRowsWhichAreNoText) {
  Api api("x");
  const auto padding = static_cast<int32_t>(demo_tokenizer().vocabulary_size()) + 3;
  const std::vector<int32_t> one = demo_tokenizer().encode("one");
  api.script().tokens = {padding, one.front(), padding};
  const Json reply = api.chat(no_thinking({{"return_token_ids", true}}));
  EXPECT_EQ(reply["choices"][0]["message"]["content"], demo_tokenizer().decode(std::vector<int32_t>{one.front()}));
  const Json ids = reply["tensorfold"]["token_ids"];
  EXPECT_EQ(ids[0], padding);
  EXPECT_EQ(Json::parse(api.call("/detokenize", {{"tokens", ids}}).body)["prompt"].get<std::string>().rfind(
                reply["choices"][0]["message"]["content"].get<std::string>(), 0),
            0U);
  EXPECT_EQ(api.call("/v1/completions", {{"prompt", ids}}).status, 200) << "what was drawn can be sent back";
}

TEST(Completions, NameTheDrawnTokenAmongTheLikeliest) {
  Api api("one two");
  const Json reply = Json::parse(api.call("/v1/completions", {{"prompt", "x"}, {"logprobs", 1}}).body);
  const Json& logprobs = reply["choices"][0]["logprobs"];
  for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
    EXPECT_TRUE(logprobs["top_logprobs"][i].contains(logprobs["tokens"][i].get<std::string>()));
  }
}

TEST(RequestLog, SaysSoWhenNoTokenCame) {
  RequestLog log(RequestLogFormat::text);
  ReplySummary summary;
  ::testing::internal::CaptureStdout();
  log.finished({"id", "", "/v1/completions"}, summary, true);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), ::testing::AllOf(HasSubstr("no token"), Not(HasSubstr("-1"))));
  RequestLog json(RequestLogFormat::json);
  ::testing::internal::CaptureStdout();
  json.finished({"id", "", "/v1/completions"}, summary, true);
  EXPECT_TRUE(Json::parse(::testing::internal::GetCapturedStdout())["first_token_seconds"].is_null());
}

}  // namespace
}  // namespace tensorfold::server
