// What users of such servers report about chat templates and their tokens, each with its minimal case.
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/chat_template.h"
#include "text/jinja/json_value.h"
#include "text/jinja/template.h"
#include "text/tokenizer.h"

namespace tensorfold::text {
namespace {

using ::testing::HasSubstr;

std::string render(const std::string& source, const std::string& variables = "{}") {
  jinja::RenderOptions options;
  options.now = [] {
    std::tm time{};
    time.tm_year = 2031 - 1900;
    time.tm_mday = 1;
    return time;
  };
  return jinja::Template(source).render(jinja::parse_json(variables), options).str();
}

TEST(UserTemplates, ToJsonWritesWhatTransformersWrites) {
  const std::string variables =
      "{\"x\": {\"b\": 1, \"a\": \"/é—<&'\"}, \"list\": [1, 2], \"one\": 1.0, \"large\": 1e22, \"yes\": true, \"no\": "
      "null}";
  EXPECT_EQ(render("{{ x|tojson }}", variables), "{\"b\": 1, \"a\": \"/é—<&'\"}");
  EXPECT_EQ(render("{{ list|tojson }} {{ one|tojson }} {{ large|tojson }} {{ yes|tojson }} {{ no|tojson }}", variables),
            "[1, 2] 1.0 1e+22 true null");
  EXPECT_EQ(render("{{ x|tojson(ensure_ascii=False) }}", variables), "{\"b\": 1, \"a\": \"/é—<&'\"}");
  EXPECT_EQ(render("{{ x|tojson(ensure_ascii=True) }}", variables), "{\"b\": 1, \"a\": \"/\\u00e9\\u2014<&'\"}");
  EXPECT_EQ(render("{{ list|tojson(indent=2) }}", variables), "[\n  1,\n  2\n]");
  EXPECT_EQ(render("{{ x|tojson(separators=(',',':')) }}", variables), "{\"b\":1,\"a\":\"/é—<&'\"}");
  EXPECT_EQ(render("{{ x|tojson(sort_keys=True) }}", variables), "{\"a\": \"/é—<&'\", \"b\": 1}");
}

TEST(UserTemplates, WhatOtherEnginesLack) {
  const std::string variables =
      R"({"parts": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}],
      "tree": [{"n": 1, "c": [{"n": 2}]}], "messages": [{"role": "user"}, {"role": "tool"}]})";
  const std::vector<std::pair<std::string, std::string>> battery = {
      {"{% for i in [1,2,3] %}{% if i==2 %}{% break %}{% endif %}{{i}}{% endfor %}", "1"},
      {"{% for i in [1,2,3] %}{% if i==2 %}{% continue %}{% endif %}{{i}}{% endfor %}", "13"},
      {"{% generation %}x{% endgeneration %}", "x"},
      {"{{ strftime_now(\"%Y\") }}", "2031"},
      {"{{ ('a</t>b'.split('</t>')|first).rstrip('\\n') }}", "a"},
      {"{{ ('a</t>b'.split('</t>')|last).lstrip('\\n') }}", "b"},
      {"{% for m in [1,2] %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
       "FalseTrueTrueFalse"},
      {"{% for x in tree recursive %}{{ x.n }}{% if x.c %}{{ loop(x.c) }}{% endif %}{% endfor %}", "12"},
      {"{% for p in parts|selectattr('type','equalto','text') %}{{p.text}}{% endfor %}", "ab"},
      {"{% set ns = namespace(k=0) %}{% for i in [1,2] %}{% set ns.k = ns.k+i %}{% endfor %}{{ns.k}}", "3"},
      {"{{ messages[::-1][0].role }} {{ 'abcd'[1:-1] }} {{ messages[-1].role }}", "tool bc tool"},
  };
  for (const auto& [source, expected] : battery) EXPECT_EQ(render(source, variables), expected) << source;
  try {
    render("{{ raise_exception('no') }}");
    FAIL() << "must throw";
  } catch (const Error& refusal) {
    EXPECT_STREQ(refusal.what(), "no");
  }
}

/// The arguments of a replayed call, by a template that writes them in its own way.
std::string replayed(const std::string& way, const std::string& arguments) {
  const ChatTemplate chat_template("|{% for m in messages %}{% for c in m.tool_calls or [] %}" + way +
                                   "{% endfor %}{% endfor %}");
  ChatRequest request;
  request.messages =
      jinja::parse_json(R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls":
      [{"id": "c", "type": "function", "function": {"name": "f", "arguments": )" +
                        arguments + "}}]}]");
  return joined_text(chat_template.render(request));
}

TEST(UserTemplates, ReplayedArgumentsFitEveryWayOfWritingThem) {
  const std::string items = "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}";
  const std::string json = "{{ c.function.arguments|tojson }}";
  const std::string text = "{{ 'call ' + c.function.arguments }}";
  const std::string oslo = R"("{\"city\":\"Oslo\"}")";
  EXPECT_EQ(replayed(items, oslo), "|city=Oslo;");
  EXPECT_EQ(replayed(json, oslo), R"(|{"city": "Oslo"})") << "not encoded twice";
  EXPECT_EQ(replayed(text, oslo), R"(|call {"city":"Oslo"})");
  EXPECT_EQ(replayed(items, R"("")"), "|");
  EXPECT_EQ(replayed(json, R"("")"), "|{}");
  for (const std::string& way : {items, json, text}) {
    EXPECT_THAT(replayed(way, R"("{city")"), HasSubstr("{city")) << "malformed history renders";
  }
}

TEST(UserTemplates, APromptHasTheBeginningTokenOnce) {
  // A tokenizer that adds <s> by itself, and a template that writes it.
  const Tokenizer tokenizer = Tokenizer::parse(
      R"({"added_tokens":[{"id":2,"content":"<s>","special":true}],"model":{"type":"BPE","vocab":{"a":0,"b":1,"<s>":2},"merges":[]},
      "post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
      "pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[2],"tokens":["<s>"]}}}})");
  const ChatTemplate chat_template("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
                                   {{"bos_token", "<s>"}});
  ChatRequest request;
  request.messages = jinja::parse_json(R"([{"role": "user", "content": "ab"}])");
  EXPECT_EQ(tokenizer.encode(chat_template.render(request)), (std::vector<std::int32_t>{2, 0, 1}));
  EXPECT_EQ(tokenizer.encode("ab", {.add_special_tokens = true}), (std::vector<std::int32_t>{2, 0, 1}));
  EXPECT_EQ(tokenizer.encode("<s>ab"), (std::vector<std::int32_t>{2, 0, 1})) << "raw prompts: nothing is added unasked";
}

}  // namespace
}  // namespace tensorfold::text
