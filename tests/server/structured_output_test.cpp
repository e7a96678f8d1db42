// Structured output: the fields that ask for it, and the grammar as the engine's constraint.
#include "server/structured_output.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/api_error.h"
#include "server/call_gate.h"
#include "server/grammar_constraint.h"
#include "server/reply_text.h"
#include "server/scripted_api.h"
#include "text/grammar/grammar.h"

namespace tensorfold::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = OutputFormat::Kind;

TEST(OutputFormat, ReadsEveryDialectsFields) {
  const auto kind = [](const char* body) {
    const auto format = read_output_format(Json::parse(body));
    return format ? static_cast<int>(format->kind) : -1;
  };
  const auto is = [](Kind one) { return static_cast<int>(one); };
  EXPECT_EQ(kind("{}"), -1);
  EXPECT_EQ(kind(R"({"response_format":{"type":"text"}})"), -1);
  EXPECT_EQ(kind(R"({"response_format":null,"guided_json":null,"structured_outputs":{}})"), -1);
  EXPECT_EQ(kind(R"({"response_format":{"type":"json_object"}})"), is(Kind::json_object));
  EXPECT_EQ(kind(R"({"response_format":{"type":"json_object","schema":{"type":"array"}}})"), is(Kind::json_schema));
  EXPECT_EQ(kind(R"({"response_format":{"type":"json_schema","json_schema":{"schema":{}}}})"), is(Kind::json_schema));
  EXPECT_EQ(kind(R"({"response_format":{"type":"json_schema","schema":{}}})"), is(Kind::json_schema));
  EXPECT_EQ(kind(R"({"guided_json":true})"), is(Kind::json_value));
  EXPECT_EQ(kind(R"({"guided_json":"{\"type\":\"null\"}"})"), is(Kind::json_schema));
  EXPECT_EQ(kind(R"({"guided_regex":"a+"})"), is(Kind::regex));
  EXPECT_EQ(kind(R"({"guided_choice":["a"]})"), is(Kind::choice));
  EXPECT_EQ(kind(R"({"guided_grammar":"root ::= \"a\""})"), is(Kind::grammar));
  EXPECT_EQ(kind(R"({"structured_outputs":{"json":{}}})"), is(Kind::json_schema));
  EXPECT_EQ(kind(R"({"structured_outputs":{"json_object":true}})"), is(Kind::json_object));
  EXPECT_EQ(kind(R"({"structured_outputs":{"regex":"a","json":null}})"), is(Kind::regex));
  const auto compact = R"({"structured_outputs":{"json":{},"disable_any_whitespace":true}})";
  EXPECT_EQ(kind(compact), is(Kind::json_schema));
  EXPECT_FALSE(read_output_format(Json::parse(compact))->blanks);
  EXPECT_EQ(kind(R"({"grammar":"root ::= \"a\""})"), is(Kind::grammar));
  EXPECT_EQ(kind(R"({"json_schema":{"type":"null"}})"), is(Kind::json_schema));
  EXPECT_EQ(kind(R"({"response_format":{"type":"json_object"},"guided_regex":"a"})"), is(Kind::json_object));
}

TEST(OutputFormat, NamesTheFieldThatIsMalformed) {
  for (const auto& [body, words] :
       {std::pair{R"({"response_format":{}})", "response_format needs a type"},
        {R"({"response_format":{"type":"yaml"}})", "'yaml'"},
        {R"({"response_format":{"type":"json_schema"}})", "needs a schema"},
        {R"({"guided_json":3})", "guided_json must be a JSON schema"},
        {R"({"guided_json":"{"})", "guided_json is not JSON"},
        {R"({"guided_regex":""})", "guided_regex must be a non-empty string"},
        {R"({"guided_choice":[]})", "guided_choice"},
        {R"({"guided_choice":["a",1]})", "guided_choice"},
        {R"({"structured_outputs":{"structural_tag":"x"}})", "structured_outputs.structural_tag"},
        {R"({"structured_outputs":{"regex":"a","choice":["b"]}})", "one thing only"}}) {
    try {
      (void)read_output_format(Json::parse(body));
      ADD_FAILURE() << body;
    } catch (const ApiError& failure) {
      EXPECT_EQ(failure.status(), 400);
      EXPECT_THAT(failure.what(), HasSubstr(words));
    }
  }
}

/// A vocabulary of single characters: token 10 + n is the n-th of `letters`.
class Letters {
 public:
  explicit Letters(text::grammar::Automaton automaton) {
    std::vector<std::string> tokens(10);
    for (const char letter : letters_) tokens.emplace_back(1, letter);
    tokens.emplace_back("\n\n");
    tokens.emplace_back("12}");
    matcher_ = std::make_shared<text::grammar::Matcher>(std::move(automaton),
                                                        std::make_shared<text::grammar::Vocabulary>(tokens));
  }
  [[nodiscard]] std::unique_ptr<engine::Constraint> constraint(GrammarPlacement placement) const {
    return grammar_constraint(matcher_, std::move(placement));
  }
  [[nodiscard]] std::vector<int32_t> spell(const std::string& text) const {
    std::vector<int32_t> tokens;
    for (const char letter : text) tokens.push_back(10 + static_cast<int32_t>(letters_.find(letter)));
    return tokens;
  }
  /// Characters that a mask allows, and "<n>" for the tokens that are none.
  [[nodiscard]] std::string allowed(engine::Constraint& constraint, const std::vector<int32_t>& path = {}) const {
    std::vector<uint32_t> bits(3, 0xFFFFFFFFU);
    if (!constraint.mask(path, bits)) return "free";
    std::string result;
    for (int32_t token = 0; token < 96; ++token) {
      if ((bits[static_cast<size_t>(token) / 32] >> (token % 32) & 1U) == 0) continue;
      const auto letter = static_cast<size_t>(token - 10);
      result += token >= 10 && letter < letters_.size() ? std::string(1, letters_[letter]) : fmt::format("<{}>", token);
    }
    return result;
  }
  [[nodiscard]] int32_t blank_line() const { return 10 + static_cast<int32_t>(letters_.size()); }

 private:
  std::string letters_ = "{}\":a0123456789 ";
  std::shared_ptr<text::grammar::Matcher> matcher_;
};

text::grammar::Automaton number_object() {
  return text::grammar::compile_json_schema(Json::parse(
      R"({"type":"object","properties":{"a":{"type":"integer","maximum":99,"minimum":0}},"required":["a"]})"));
}

TEST(GrammarConstraint, EndTokensComeExactlyWhereTheGrammarAccepts) {
  const Letters letters(text::grammar::compile_regex("a(01)*"));
  const auto constraint = letters.constraint({.end_tokens = {1, 2}});
  EXPECT_EQ(letters.allowed(*constraint), "a");
  EXPECT_EQ(letters.allowed(*constraint, letters.spell("a")), "<1><2>0");
  EXPECT_EQ(letters.allowed(*constraint, letters.spell("a0")), "1");
  EXPECT_EQ(letters.allowed(*constraint, letters.spell("b")), "free") << "below a draft that is refused";
  constraint->commit(letters.spell("a01"));
  EXPECT_FALSE(constraint->finished());
  EXPECT_EQ(letters.allowed(*constraint), "<1><2>0");
  EXPECT_EQ(constraint->accepts({}, std::vector<int32_t>{1, 1}), 1U) << "nothing follows the end";
  constraint->commit(std::vector<int32_t>{2});
  EXPECT_EQ(letters.allowed(*constraint), "free");
}

TEST(GrammarConstraint, CutsDraftsAtTheFirstViolationAndAtTheEnd) {
  const Letters letters(number_object());
  const auto constraint = letters.constraint({.end_tokens = {1}});
  // The closing brace and three tokens more.
  EXPECT_EQ(constraint->accepts({}, letters.spell("{\"a\":12}a12")), 8U);
  EXPECT_EQ(constraint->accepts(letters.spell("{\"a\""), letters.spell(":1a2}")), 2U);
  std::vector<int32_t> with_end = letters.spell("{\"a\":12}");
  with_end.push_back(1);
  with_end.push_back(1);
  EXPECT_EQ(constraint->accepts({}, with_end), 9U);
  constraint->commit(letters.spell("{\"a\":12}"));
  EXPECT_TRUE(constraint->finished());
}

TEST(GrammarConstraint, APathLeavesNoTrace) {
  const Letters letters(number_object());
  const auto walked = letters.constraint({.end_tokens = {1}});
  const auto fresh = letters.constraint({.end_tokens = {1}});
  const auto reply = letters.spell("{ \"a\": 7 }");
  for (size_t i = 0; i < reply.size(); ++i) {
    for (const char* detour : {"{\"a\":12}", "aa", "7}", " 0 }"}) {
      (void)letters.allowed(*walked, letters.spell(detour));
      (void)walked->accepts({}, letters.spell(detour));
    }
    ASSERT_EQ(letters.allowed(*walked), letters.allowed(*fresh, {reply.begin(), reply.begin() + static_cast<long>(i)}));
    walked->commit(std::span(reply).subspan(i, 1));
  }
}

TEST(GrammarConstraint, BeginsBehindTheThinking) {
  const Letters letters(text::grammar::compile_choice({"a"}));
  GrammarPlacement placement{.starts_in_reasoning = true, .think_end = 5, .end_tokens = {1}};
  placement.blank_line = letters.blank_line();
  const auto constraint = letters.constraint(placement);
  EXPECT_EQ(letters.allowed(*constraint).substr(0, 9), "<0><2><3>") << "everything but the end";
  EXPECT_EQ(constraint->accepts({}, std::vector<int32_t>{9, 8, 1, 5}), 2U) << "no end inside the block, drafted or not";
  EXPECT_EQ(constraint->accepts(std::vector<int32_t>{9}, std::vector<int32_t>{1}), 0U);
  EXPECT_EQ(letters.allowed(*constraint, {30, 7, 5}), "a<" + std::to_string(letters.blank_line()) + ">");
  EXPECT_EQ(letters.allowed(*constraint, {5, letters.blank_line()}), "a");
  EXPECT_EQ(letters.allowed(*constraint, {5, letters.spell("a")[0]}), "<1>");
  constraint->commit(std::vector<int32_t>{11, 12, 5});
  EXPECT_FALSE(constraint->finished());
  constraint->commit(letters.spell("a"));
  EXPECT_TRUE(constraint->finished());
}

TEST(GrammarConstraint, LetsACallStandInPlaceOfTheAnswer) {
  const Letters letters(text::grammar::compile_choice({"a0"}));
  const auto constraint = letters.constraint({.think_open = 6, .think_end = 5, .call_opener = 7, .end_tokens = {1}});
  EXPECT_EQ(letters.allowed(*constraint), "<6><7>a");
  EXPECT_EQ(letters.allowed(*constraint, {7}), "free");
  EXPECT_EQ(letters.allowed(*constraint, {6, 11, 5}), "<7>a");
  EXPECT_EQ(letters.allowed(*constraint, letters.spell("a")), "0") << "no call inside the answer";
}

TEST(GrammarConstraint, HoldsACallToItsForm) {
  const Letters letters(text::grammar::compile_choice({"a0"}));
  const TokensByBytes tokens(demo_tokenizer());
  const auto ids = [](const char* text) { return demo_tokenizer().encode(text); };
  CallGate gate;
  gate.opening = ids("\n<function=");
  gate.names = {"get_time>"};
  gate.closer = "</tool_call>";
  gate.closer_token = 6;
  gate.end_tokens = {2};
  GrammarPlacement placement{.call_opener = 5, .end_tokens = {2}};
  placement.call = std::make_shared<const CallGate>(gate);
  placement.tokens = &tokens;
  const auto constraint = letters.constraint(placement);
  std::vector<int32_t> path = {5};
  for (const int32_t token : gate.opening) {
    EXPECT_EQ(constraint->forced(path), token);
    path.push_back(token);
  }
  EXPECT_EQ(constraint->forced(path), -1);
  EXPECT_EQ(constraint->accepts(path, ids("send_mail>")), 0U) << "not offered";
  const auto joined = [](std::vector<int32_t> first, const std::vector<int32_t>& rest) {
    first.insert(first.end(), rest.begin(), rest.end());
    return first;
  };
  path = joined(path, ids("get_time>\n</function>\n"));
  EXPECT_EQ(constraint->accepts({}, path), path.size());
  EXPECT_EQ(constraint->accepts(path, std::vector<int32_t>{2}), 0U) << "no end inside the call";
  EXPECT_EQ(constraint->accepts(path, std::vector<int32_t>{6, 2, 2}), 2U);
  constraint->commit(joined(path, {6}));
  EXPECT_EQ(constraint->accepts({}, joined({5}, joined(gate.opening, ids("send_mail>")))), 1 + gate.opening.size())
      << "the next call neither";
}

std::vector<int32_t> ordinary(const std::string& text) {
  // Letter by letter no marker is a control token.
  std::vector<int32_t> tokens;
  for (const char letter : text) {
    for (const int32_t token : demo_tokenizer().encode(std::string(1, letter))) tokens.push_back(token);
  }
  return tokens;
}

/// What a chat's reply shows, whole and streamed: "reasoning | content | finish".
std::vector<std::string> shown(Api& api, Json body) {
  if (!body.contains("messages")) body["messages"] = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  const Json reply = api.chat(body);
  const Json& message = reply["choices"][0]["message"];
  const auto text = [&](const char* key) {
    return message.contains(key) && message[key].is_string() ? message[key].get<std::string>() : "";
  };
  body["stream"] = true;
  const Assembled streamed = assemble(api.call("/v1/chat/completions", body).body);
  return {fmt::format("{} | {} | {}", text("reasoning_content"), text("content"),
                      reply["choices"][0]["finish_reason"].get<std::string>()),
          fmt::format("{} | {} | {}", streamed.reasoning, streamed.content, streamed.finish)};
}

TEST(StructuredOutput, TheGrammarsTextIsTheContentByteForByte) {
  const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  for (const size_t tokens_a_round : {1, 3, 50}) {
    Api api("", tokens_a_round);
    for (const char* text :
         {"</think>", "<think>", "a</think>b", "ok</think>", "<think>a</think>b", "</thin", "  x  ", "\n\nx", "x\n\n",
          "a<tool_call>\n<function=f>\n</function>\n</tool_call>", "{\"name\": \"f\", \"arguments\": {}}"}) {
      const std::vector<std::string> expected(2, fmt::format(" | {} | stop", text));
      Json body = {{"guided_choice", {text}}};
      api.script().tokens = ordinary(text);
      EXPECT_EQ(shown(api, no_thinking(body)), expected);
      body["tools"] = tools;
      EXPECT_EQ(shown(api, no_thinking(body)), expected);
      body["stop"] = {"<never>", "</thinner>"};
      EXPECT_EQ(shown(api, no_thinking(body)), expected);
    }
  }
}

TEST(StructuredOutput, TheAnswerBeginsAtTheTokenThatClosesTheThinking) {
  for (const size_t tokens_a_round : {1, 4}) {
    Api api("", tokens_a_round);
    auto& tokens = api.script().tokens;
    tokens = ordinary("I write </think> and go on\n");
    tokens.push_back(4);
    for (const int32_t token : ordinary("a</think>b")) tokens.push_back(token);
    const Json body = {{"guided_choice", {"a</think>b"}}};
    EXPECT_EQ(shown(api, body), std::vector<std::string>(2, "I write </think> and go on | a</think>b | stop"));
    Json cut = body;
    cut["stop"] = {"b"};
    EXPECT_EQ(shown(api, cut), std::vector<std::string>(2, "I write </think> and go on | a</think> | stop"));
    cut["stop"] = {"</think>"};
    EXPECT_EQ(shown(api, cut), std::vector<std::string>(2, "I write |  | stop"));
  }
}

TEST(StructuredOutput, OneBlankLineBehindTheThinkingIsNoPartOfTheAnswer) {
  ReplyTextSettings settings;
  settings.format = {text::ReasoningMarkers::think};
  settings.grammar = GrammarPlacement{.starts_in_reasoning = true, .think_end = 4, .blank_line = 8, .end_tokens = {2}};
  settings.stops = {"</think>\n\n\n\nno"};  // holds the markers back for a while
  ReplyText text(settings);
  CollectedReply reply([](const CollectedReply&) {});
  for (const auto& [token, piece] :
       {std::pair{20, "so"}, {21, " \xEF\xBF\xBD"}, {4, "\xEF\xBF\xBD</think>"}, {8, "\n\n"}, {8, "\n\n"}, {22, "a"}}) {
    EXPECT_EQ(text.in_reasoning(), token == 20 || token == 21 || token == 4);
    EXPECT_FALSE(text.push(token, piece, reply));
  }
  text.finish(false, reply);
  EXPECT_EQ(reply.reasoning, "so \xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(reply.content, "\n\na");
}

TEST(StructuredOutput, ACallInPlaceOfTheAnswerIsACall) {
  Api api("<tool_call>\n<function=f>\n</function>\n</tool_call>");
  const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  const Json reply = api.chat(no_thinking({{"tools", tools}, {"guided_choice", {"yes"}}}));
  EXPECT_EQ(reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "tool_calls");
  // The engine was told to keep it so.
  const auto constraint = api.engine().last_request().constraint;
  std::vector<int32_t> path = {5};
  while (constraint->forced(path) >= 0) path.push_back(constraint->forced(path));
  EXPECT_EQ(demo_tokenizer().decode(path), "<tool_call>\n<function=");
  EXPECT_EQ(constraint->accepts(path, demo_tokenizer().encode("g>")), 0U);
  EXPECT_GT(constraint->accepts(path, demo_tokenizer().encode("f>")), 0U);
}

TEST(RequiredCalls, CannotEndInsideTheThinkingOrTheCall) {
  Api api("x");
  const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  (void)api.chat({{"tools", tools}, {"tool_choice", "required"}});
  const auto constraint = api.engine().last_request().constraint;
  std::vector<int32_t> path = ordinary("so");
  EXPECT_EQ(constraint->accepts(path, std::vector<int32_t>{2}), 0U);
  std::vector<uint32_t> bits(demo_tokenizer().vocabulary_size() / 32 + 1);
  ASSERT_TRUE(constraint->mask(path, bits));
  EXPECT_EQ(bits[0] & 5U, 0U) << "both end tokens";
  EXPECT_EQ(bits[0] >> 3U & 3U, 3U);
  path.push_back(4);
  while (constraint->forced(path) >= 0) path.push_back(constraint->forced(path));
  for (const int32_t token : demo_tokenizer().encode("f>\n<parameter=a>\nx\n")) path.push_back(token);
  EXPECT_EQ(constraint->accepts({}, path), path.size());
  EXPECT_EQ(constraint->accepts(path, std::vector<int32_t>{2}), 0U);
  EXPECT_EQ(constraint->accepts(path, std::vector<int32_t>{6, 2}), 2U);
  EXPECT_EQ(constraint->accepts(path, ordinary("</tool_call>")), ordinary("</tool_call>").size());
  for (const int32_t token : ordinary("</tool_call>")) path.push_back(token);
  EXPECT_EQ(constraint->accepts(path, std::vector<int32_t>{2}), 1U) << "spelled in ordinary letters it closes as well";
}

TEST(RequiredCalls, StayContentWhenMalformedAndAreDroppedWhenCut) {
  const std::string broken = "<tool_call>\n<function=f>\n<parameter=a>\nx</tool_call>";
  Api api(broken);
  const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  Json body = no_thinking({{"tools", tools}, {"tool_choice", "required"}});
  const auto whole = [&] { return shown(api, body).front(); };
  EXPECT_EQ(whole(), " | " + broken + " | stop");
  body["max_tokens"] = 6;
  EXPECT_EQ(whole(), " |  | length");
  body.erase("max_tokens");
  for (const char* choice : {"required", "named"}) {
    if (choice == std::string("named")) body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "f"}}}};
    for (const char* stop : {"</tool", "x", "</tool_call>"}) {
      body["stop"] = {stop};
      EXPECT_EQ(whole(), " |  | stop") << choice << stop;
    }
  }
}

TEST(StructuredOutput, IsRefusedBeforeAnythingRunsWhenItCannotBeEnforced) {
  Api api("hello");
  const Json lookahead = {
      {"type", "json_schema"},
      {"json_schema", {{"name", "x"}, {"schema", {{"properties", {{"e", {{"pattern", "^(?!x)y$"}}}}}}}}}};
  const Json refused = api.chat(no_thinking({{"response_format", lookahead}}));
  EXPECT_EQ(refused["error"]["param"], "response_format");
  EXPECT_THAT(refused["error"]["message"].get<std::string>(), HasSubstr("#/properties/e/pattern"));
  const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  const Json forced = api.chat(
      no_thinking({{"tools", tools}, {"tool_choice", "required"}, {"response_format", {{"type", "json_object"}}}}));
  EXPECT_EQ(forced["error"]["param"], "tool_choice");
  EXPECT_EQ(api.engine().submitted(), 0);
  // A tool whose schema cannot be compiled is no reason to refuse: it stays in the prompt.
  const Json exotic = Json::array(
      {{{"type", "function"},
        {"function", {{"name", "f"}, {"parameters", {{"properties", {{"e", {{"pattern", "^(?!x)y$"}}}}}}}}}}});
  EXPECT_TRUE(api.chat(no_thinking({{"tools", exotic}})).contains("choices"));
  EXPECT_EQ(api.engine().last_request().constraint, nullptr);
  EXPECT_TRUE(api.chat(no_thinking({{"guided_choice", {"yes", "no"}}})).contains("choices"));
  EXPECT_NE(api.engine().last_request().constraint, nullptr);
}

TEST(StructuredOutput, ReachesTheEngineFromEveryDialect) {
  Api api("{}");
  const Json schema = {{"type", "object"}};
  const auto constrained = [&](const std::string& path, Json body) {
    const RawReply reply = api.call(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return api.engine().last_request().constraint != nullptr;
  };
  EXPECT_TRUE(constrained(
      "/v1/responses",
      {{"input", "Hi"}, {"text", {{"format", {{"type", "json_schema"}, {"name", "x"}, {"schema", schema}}}}}}));
  EXPECT_TRUE(constrained("/v1/responses", {{"input", "Hi"}, {"guided_json", schema}}));
  EXPECT_TRUE(
      constrained("/v1/messages", {{"max_tokens", 9},
                                   {"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})},
                                   {"output_config", {{"format", {{"type", "json_schema"}, {"schema", schema}}}}}}));
  EXPECT_TRUE(constrained("/v1/completions", {{"prompt", "Hi"}, {"grammar", "root ::= \"a\""}}));
  EXPECT_FALSE(constrained("/v1/completions", {{"prompt", "Hi"}}));
}

}  // namespace
}  // namespace tensorfold::server
