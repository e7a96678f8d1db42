// Chat requests to prompts: normalisation, traits of templates, origin marks and loading.
#include "text/chat_template.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/error.h"
#include "shared_data.h"
#include "text/chat_messages.h"
#include "text/jinja/json_value.h"

namespace tensorfold::text {
namespace {

using jinja::Value;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

ChatRequest request_of(std::string_view messages) {
  ChatRequest request;
  request.messages = jinja::parse_json(messages);
  return request;
}

std::string render(const ChatTemplate& chat_template, std::string_view messages) {
  return joined_text(chat_template.render(request_of(messages)));
}

/// Only the untrusted text, pieces in brackets.
std::string untrusted_text(const std::vector<TextPiece>& pieces) {
  std::string text;
  for (const TextPiece& piece : pieces) {
    if (!piece.trusted) text += "[" + piece.text + "]";
  }
  return text;
}

TEST(ChatTemplate, RendersTheDemonstrationPromptsAsTheyWereTrained) {
  const auto chat_template = ChatTemplate::load(testing::project_path("models/demo"));
  ChatRequest request = request_of(R"([{"role": "user", "content": "Hi"}])");
  request.template_arguments = jinja::parse_json(R"({"enable_thinking": false})");
  const auto golden = nlohmann::json::parse(read_file(testing::project_path("models/demo/golden_replies.json")));
  EXPECT_EQ(joined_text(chat_template.render(request)), golden[0]["prompt"].get<std::string>());
}

TEST(ChatTemplate, MarksEveryByteOfTheRequestAndNothingElse) {
  const ChatTemplate chat_template(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>{% endfor %}");
  const auto pieces = chat_template.render(request_of(R"([{"role": "user", "content": "  x<|im_end|>é "}])"));
  const std::vector<TextPiece> expected = {{"<|im_start|>user\n", true}, {"x<|im_end|>é", false}, {"<|im_end|>", true}};
  EXPECT_EQ(pieces, expected);
}

TEST(ChatTemplate, MarksSurviveTextOperations) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ 'a' + c + 'z' }}", "[one two]"},
      {"{{ c[4:] }}|{{ c[::-1] }}", "[two][owt eno]"},
      {"{{ c | upper }}{{ 'x' }}{{ c.title() }}", "[ONE TWO][One Two]"},
      {"{{ c.split(' ') | join('-') }}", "[one][two]"},
      {"{{ c | replace('one', 'ONE') }}", "[ two]"},
      {"{{ 'a b' | replace('b', c) }}", "[one two]"},
      {"{{ '<%s>' % c }}", "[one two]"},
      {"{{ '<{}>'.format(c) }}", "[one two]"},
      {"{{ ('  ' ~ c ~ ' ') | trim }}", "[one two]"},
      {"{{ c.split(' ')[1].center(7, '*') }}", "[two]"},
      {"{{ [c] | tojson }}", "[[\"one two\"]]"},
      {"{{ [c] }}", "[one two]"},
      {"{% set x %}<{{ c }}>{% endset %}{{ x }}", "[one two]"},
      {"{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(c) }}", "[one two]"},
      {"{% for part in c.partition(' ') %}{{ part }}.{% endfor %}", "[one][ ][two]"},
      {"{% for letter in c[:2] %}{{ letter }}.{% endfor %}", "[o][n]"},
      {"{{ {c: 1} | items | first | first }}", "[one two]"},
      {"{{ c | indent(2, true) }}", "[one two]"},
      {"{{ c | e }}", "[one two]"},
      {"{{ 'one two' if c == 'one two' }}", ""},
  };
  for (const auto& [source, expected] : cases) {
    const ChatTemplate chat_template(std::string("{% set c = messages[0].content %}") + source + "{{ '' }}.");
    EXPECT_EQ(untrusted_text(chat_template.render(request_of(R"([{"role": "user", "content": "one two"}])"))), expected)
        << source;
  }
}

TEST(ChatTemplate, ToolSchemasKeepTheirKeyOrderAndAreUntrusted) {
  const ChatTemplate chat_template("{% for t in tools %}<tool>{{ t | tojson }}</tool>{% endfor %}");
  ChatRequest request = request_of(R"([{"role": "user", "content": "x"}])");
  request.tools = jinja::parse_json(R"([{"z": 1, "a": {"y": [], "b": "<tool>"}}])");
  const std::vector<TextPiece> expected = {
      {"<tool>", true}, {R"({"z": 1, "a": {"y": [], "b": "<tool>"}})", false}, {"</tool>", true}};
  EXPECT_EQ(chat_template.render(request), expected);
}

TEST(ChatTemplate, RaisedMessagesReachTheCallerAsTheyAre) {
  const ChatTemplate chat_template("{{ raise_exception('no ' ~ messages[0].content) }}");
  try {
    render(chat_template, R"([{"role": "user", "content": "way"}])");
    FAIL() << "nothing was raised";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_request);
    EXPECT_STREQ(error.what(), "no way");
  }
}

TEST(ChatTemplate, FailuresNameTheLine) {
  const auto message_of = [](const std::string& source) -> std::string {
    try {
      render(ChatTemplate(source), R"([{"role": "user", "content": "x"}])");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message_of("a\n\n{{ missing.field }}"), "chat template, line 3: 'missing' is undefined");
  EXPECT_EQ(message_of("a\n {% if %}"),
            "chat template, line 2, column 8: expected an expression, got 'end of statement block'");
}

TEST(ChatTemplate, AThinkBlockThatThinkingOffLeavesOpenIsClosed) {
  const ChatTemplate chat_template("{{ messages[0].content }}<|assistant|><think>");
  ChatRequest request = request_of(R"([{"role": "user", "content": "x"}])");
  EXPECT_EQ(joined_text(chat_template.render(request)), "x<|assistant|><think>");
  request.template_arguments = jinja::parse_json(R"({"enable_thinking": false})");
  EXPECT_EQ(joined_text(chat_template.render(request)), "x<|assistant|><think></think>");
}

TEST(ChatTemplate, ReadsEveryFormThatACheckpointHas) {
  const auto directory = std::filesystem::temp_directory_path() / "tensorfold_chat_template_test";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  const auto write = [&](const char* name, const std::string& text) { std::ofstream(directory / name) << text; };
  const auto rendered = [&](bool with_tools) {
    ChatRequest request = request_of(R"([{"role": "user", "content": "x"}])");
    if (with_tools) request.tools = jinja::parse_json(R"([{"type": "function", "function": {"name": "f"}}])");
    return joined_text(ChatTemplate::load(directory).render(request));
  };
  write("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})");
  EXPECT_THROW(ChatTemplate::load(directory), Error);
  write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ bos_token }}one{{ eos_token }}"})");
  EXPECT_EQ(rendered(false), "<s>one</s>");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "plain"},
                                                       {"name": "tool_use", "template": "tools"}]})");
  EXPECT_EQ(rendered(false), "plain");
  EXPECT_EQ(rendered(true), "tools");
  write("chat_template.jinja", "file");
  EXPECT_EQ(rendered(false), "file");
  write("tokenizer_config.json", "[not json");
  EXPECT_THROW(ChatTemplate::load(directory), Error);
  std::filesystem::remove_all(directory);
}

std::string normalised(std::string_view messages, const TemplateTraits& traits = {}) {
  return jinja::dump_json(normalise_messages(jinja::parse_json(messages), traits)).str();
}

TEST(ChatMessages, LeadingInstructionsMergeAndLaterOnesFollowTheTemplate) {
  const std::string_view messages = R"([{"role": "system", "content": "a"}, {"role": "developer", "content": "b"},
      {"role": "user", "content": "c"}, {"role": "developer", "content": "d"}])";
  EXPECT_EQ(normalised(messages), R"([{"role": "system", "content": "a\n\nb"}, {"role": "user", "content": "c"}, )"
                                  R"({"role": "user", "content": "d"}])");
  TemplateTraits traits;
  traits.renders_late_system = true;
  EXPECT_EQ(normalised(messages, traits), R"([{"role": "system", "content": "a\n\nb"}, )"
                                          R"({"role": "user", "content": "c"}, {"role": "system", "content": "d"}])");
}

TEST(ChatMessages, ContentBecomesText) {
  EXPECT_EQ(normalised(R"([{"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
                           {"role": "assistant", "content": null}, {"role": "assistant"}])"),
            R"([{"role": "user", "content": "a b"}, {"role": "assistant", "content": ""}, )"
            R"({"role": "assistant", "content": ""}])");
}

std::string normalised_arguments(const std::string& arguments, const TemplateTraits& traits = {}) {
  const Value messages = normalise_messages(
      jinja::parse_json(R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": )" +
                        arguments + "}}]}]"),
      traits);
  const auto at = [](const Value& value, std::string_view key) { return *value.dict().find(key); };
  const Value calls = at(messages.sequence().items[0], "tool_calls");
  return jinja::dump_json(at(at(calls.sequence().items[0], "function"), "arguments")).str();
}

TEST(ChatMessages, ArgumentsBecomeMappingsAndMalformedOnesStayReadable) {
  EXPECT_EQ(normalised_arguments(R"("{\"b\": 1.0, \"a\": \"x\"}")"), R"({"b": 1.0, "a": "x"})");
  EXPECT_EQ(normalised_arguments(R"({"city": "Oslo"})"), R"({"city": "Oslo"})");
  EXPECT_EQ(normalised_arguments(R"("")"), "{}");
  EXPECT_EQ(normalised_arguments("null"), "{}");
  EXPECT_EQ(normalised_arguments(R"("{\"city")"), R"({"_invalid_arguments": "{\"city"})");
  EXPECT_EQ(normalised_arguments(R"("[1]")"), R"({"_invalid_arguments": "[1]"})");
  TemplateTraits traits;
  traits.arguments_as_text = true;
  EXPECT_EQ(normalised_arguments(R"("{\"city")", traits), R"("{\"city")");
  EXPECT_EQ(normalised_arguments(R"({"city": "Oslo"})", traits), R"("{\"city\": \"Oslo\"}")");
}

TEST(ChatMessages, RefusesWhatIsNotAConversation) {
  for (const char* messages :
       {"[]", "{}", "[1]", R"([{"role": "robot", "content": "x"}])", R"([{"content": "x"}])",
        R"([{"role": "user", "content": 5}])", R"([{"role": "user", "content": [{"text": "x"}]}])",
        R"([{"role": "assistant", "tool_calls": 1}])"}) {
    EXPECT_THROW(normalised(messages), Error) << messages;
  }
}

TEST(TemplateTraits, AreWhatJinja2FindsForEveryTemplate) {
  const auto path = testing::shared_path("golden/text/template_probes.json");
  if (!path) GTEST_SKIP() << "no shared folder with reference vectors";
  const auto probes = nlohmann::json::parse(read_file(*path));
  for (const auto& [name, recorded] : probes["templates"].items()) {
    const auto recording =
        nlohmann::json::parse(read_file(*testing::shared_path("golden/text/chat/" + name + ".json")));
    SpecialTokenTexts special_tokens;
    for (const auto& [token, text] : recording["vars"].items()) special_tokens.emplace_back(token, text);
    const ChatTemplate chat_template(read_file(*testing::shared_path("golden/text/templates/" + name + ".jinja")),
                                     special_tokens);
    const TemplateTraits& traits = chat_template.traits();
    EXPECT_EQ(traits.renders_late_system, recorded["late_system"] == "system") << name;
    EXPECT_EQ(traits.effort_levels, recorded["named_effort_levels"].get<std::vector<std::string>>()) << name;
    EXPECT_EQ(traits.arguments_as_text, name == "functionary_3_2") << name;
    if (!recorded.contains("call_format")) continue;
    ASSERT_EQ(traits.call_format.has_value(), !recorded["call_format"].is_null()) << name;
    if (!traits.call_format) continue;
    EXPECT_EQ(traits.call_format->opener, recorded["call_format"]["opener"]) << name;
    EXPECT_EQ(traits.call_format->lead, recorded["call_format"]["lead"]) << name;
    EXPECT_EQ(traits.call_format->tail, recorded["call_format"]["tail"]) << name;
  }
}

TEST(ChatTemplateLimits, AHostileTemplateIsRefusedWithinASecondOrSo) {
  const char* sources[] = {
      "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{% endfor %}{% endfor %}"
      "{% endfor %}",
      "{% set ns = namespace(s='ab') %}{% for i in range(40) %}{% set ns.s = ns.s | replace('a', 'aa') | replace('b', "
      "'bb') %}{% endfor %}{{ ns.s }}",
  };
  for (const char* source : sources) {
    const auto begin = std::clock();
    const ChatTemplate hostile(source);
    ChatRequest request;
    request.messages = jinja::parse_json(R"([{"role": "user", "content": "hello"}])");
    EXPECT_THROW(static_cast<void>(hostile.render(request)), Error);
    // Sanitizers slow it down by an order of magnitude.
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 30.0);
  }
}

TEST(ChatTemplateLimits, ALongConversationIsNoHostileOne) {
  std::string messages = "[";
  for (int i = 0; i < 3000; ++i) {
    if (i > 0) messages += ",";
    messages += R"({"role": ")" + std::string(i % 2 == 0 ? "user" : "assistant") +
                R"(", "content": "some words that were said here"})";
  }
  ChatRequest request;
  request.messages = jinja::parse_json(messages + "]");
  const ChatTemplate quadratic(
      "{% set ns = namespace(all='') %}{% for message in messages %}{% set ns.all = ns.all + message.role + "
      "message.content %}{% for other in messages[loop.index0:loop.index0 + 100] %}{% if other.role == 'tool' %}x"
      "{% endif %}{% endfor %}{% endfor %}{{ ns.all }}");
  EXPECT_GT(joined_text(quadratic.render(request)).size(), 90'000U);
}

TEST(ChatTemplateFiles, AreReadOrRefusedByName) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("tensorfold-template-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const auto refusal = [&] {
    try {
      ChatTemplate::load(folder);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const fs::path file = folder / "chat_template.jinja";
  fs::create_symlink("missing-blob", file);
  EXPECT_NE(refusal().find("chat_template.jinja points to a missing file"), std::string::npos);
  fs::remove(file);
  fs::create_symlink("/dev/zero", file);
  EXPECT_NE(refusal().find("chat_template.jinja is not a regular file"), std::string::npos);
  fs::remove(file);
  std::ofstream(file) << "caf\xe9";
  EXPECT_NE(refusal().find("chat_template.jinja is not valid UTF-8"), std::string::npos);
  fs::resize_file(file, uint64_t{1} << 40);
  EXPECT_NE(refusal().find("at most 4194304 make sense"), std::string::npos);
  fs::remove_all(folder);
}

TEST(TemplateTraits, EffortGoesToTheNearestNamedLevel) {
  TemplateTraits qwen;
  qwen.effort_levels = {"low", "medium", "xhigh"};
  EXPECT_EQ(effort_for_template(qwen, "high"), "xhigh");
  EXPECT_EQ(effort_for_template(qwen, "max"), "xhigh");
  EXPECT_EQ(effort_for_template(qwen, "minimal"), "low");
  TemplateTraits glm;
  glm.effort_levels = {"low", "high", "max"};
  EXPECT_EQ(effort_for_template(glm, "medium"), "high");
  EXPECT_EQ(effort_for_template({}, "max"), "xhigh");
  EXPECT_EQ(effort_for_template({}, "low"), "low");
  EXPECT_THROW(effort_for_template(qwen, "huge"), Error);
}

}  // namespace
}  // namespace tensorfold::text
