// Hostile templates and inputs end in one clear error.
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/jinja/json_value.h"
#include "text/jinja/template.h"

namespace tensorfold::text::jinja {
namespace {

std::string repeat(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

RenderOptions small_limits() {
  RenderOptions options;
  options.limits.steps = 300'000;
  options.limits.memory = 16 << 20;
  options.limits.text = 1 << 20;
  return options;
}

void expect_refused(const std::string& source, const Value& variables = Value::dict({})) {
  EXPECT_THROW(static_cast<void>(Template(source).render(variables, small_limits())), Error) << source.substr(0, 200);
}

TEST(JinjaLimits, EndlessWorkIsRefused) {
  expect_refused("{% for i in range(10**9) %}x{% endfor %}");
  expect_refused(
      "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% endfor %}{% endfor %}{% endfor "
      "%}");
  expect_refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  expect_refused("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}");
  expect_refused("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}");
  expect_refused("{{ 2 ** 10 ** 10 ** 10 }}");
  expect_refused("{{ 10 ** 40 }}");
}

TEST(JinjaLimits, GrowingTextIsRefused) {
  expect_refused("{{ 'x' * 10**12 }}");
  expect_refused("{% set ns = namespace(s='xy') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}");
  expect_refused("{{ 'x'.ljust(10**15) }}");
  expect_refused("{{ '%1000000000d' % 1 }}");
  expect_refused("{{ '{:>999999999}'.format(1) }}");
  expect_refused("{{ 'a' | indent(10**12) }}");
  expect_refused("{{ ('ab' * 1000).replace('', 'x' * 10000) }}");
  expect_refused("{{ 'x' | center(10**13) }}");
  expect_refused("{{ [1] | tojson(indent=10**9) }}");
}

TEST(JinjaLimits, GrowingListsAreRefused) {
  expect_refused("{{ [1] * 10**12 }}");
  expect_refused("{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}");
  expect_refused("{{ [1] | batch(10**15, 'x') | list }}");
  expect_refused("{{ [1] | slice(10**15) | list }}");
}

TEST(JinjaLimits, DeepNestingIsRefused) {
  expect_refused("{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}");
  expect_refused("{% set ns = namespace(l={}) %}{% for i in range(1000) %}{% set ns.l = {'a': ns.l} %}{% endfor %}");
  expect_refused("{% set ns = namespace(f=1) %}{% for i in range(1000) %}{% set ns.f = [ns.f].count %}{% endfor %}");
  expect_refused(
      "{% set ns = namespace(f=1) %}{% for i in range(1000) %}{% for x in [ns.f] %}{% set ns.f = loop %}{% endfor %}{% "
      "endfor %}");
  for (const auto& [open, close] :
       {std::pair("(", ")"), std::pair("[", "]"), std::pair("{1:", "}"), std::pair("-", ""), std::pair("not ", ""),
        std::pair("1+", ""), std::pair("f(", ")"), std::pair("1 if ", "")}) {
    expect_refused("{{ " + repeat(open, 5000) + "1" + repeat(close, 5000) + " }}");
  }
  expect_refused("{{ a" + repeat(".b", 5000) + " }}");
  expect_refused("{{ a" + repeat("|upper", 5000) + " }}");
  expect_refused(repeat("{% if 1 %}", 5000) + repeat("{% endif %}", 5000));
  expect_refused("{% for " + repeat("(", 5000) + "x" + repeat(")", 5000) + " in [] %}{% endfor %}");
  EXPECT_THROW(parse_json(repeat("[", 100000)), Error);
  EXPECT_THROW(parse_json(repeat("{\"a\":", 100000)), Error);
}

TEST(JinjaLimits, CyclesAndLongChainsEndWithTheRendering) {
  const char* chain =
      "{% set h = namespace(c=namespace()) %}{% for i in range(5000) %}{% set n = namespace() %}{% set c = h.c %}"
      "{% set c.next = n %}{% set h.c = n %}{% endfor %}{% set h.self = h %}"
      "{% for x in [1, 2] %}{% set _ = loop.changed(loop) %}{% endfor %}done";
  EXPECT_EQ(Template(chain).render(Value::dict({}), small_limits()).view(), "done");
}

TEST(JinjaLimits, DeepButReasonableTemplatesStillRender) {
  EXPECT_EQ(Template("{% macro f(n) %}{{ n }}{% if n > 0 %},{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}")
                .render(Value::dict({}))
                .view()
                .substr(0, 9),
            "60,59,58,");
  const Value deep = parse_json(repeat("[", 150) + repeat("]", 150));
  EXPECT_EQ(Template("{{ x | tojson | length }}").render(Value::dict({{Value("x"), deep}})).view(), "300");
}

TEST(JinjaLimits, RandomSourcesNeverCrash) {
  const std::vector<std::string> parts = {
      "{{",       "}}",       "{%",          "%}",      "{#",      "#}",    "-",   " ", "\n",    "if",   "else",
      "endif",    "for",      "in",          "endfor",  "set",     "=",     "x",   "1", "'a'",   "(",    ")",
      "[",        "]",        "{",           "}",       ":",       ",",     ".",   "|", "upper", "loop", "macro",
      "endmacro", "is",       "not",         "defined", "~",       "+",     "*",   "é", "\"",    "\\",   "raw",
      "endraw",   "range(3)", "namespace()", "call",    "endcall", "break", "0.5", "**"};
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 3000; ++round) {
    std::string source = round % 2 == 0 ? "{{ " : "{% ";
    const int length = static_cast<int>(random() % 20) + 1;
    for (int i = 0; i < length; ++i) source += parts[random() % parts.size()] + (random() % 2 == 0 ? " " : "");
    source += round % 2 == 0 ? " }}" : " %}";
    try {
      static_cast<void>(Template(source).render(Value::dict({{Value("x"), Value("text")}}), small_limits()));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_request) << source;
    }
  }
}

TEST(JsonValue, RefusesWhatIsNotJson) {
  for (const char* json : {"",
                           "{",
                           "[1,]",
                           "{\"a\":1,}",
                           "01",
                           "1.",
                           "+1",
                           "nul",
                           "\"\\x\"",
                           "\"\n\"",
                           "\"\\ud83d\"",
                           "1 2",
                           "\"\xC3\x28\"",
                           "\"\xED\xA0\x80\"",
                           "NaN",
                           "1e999",
                           "{1:2}",
                           "\"\\u12\"",
                           "\"\\u-123\"",
                           "-"}) {
    EXPECT_THROW(parse_json(json), Error) << json;
  }
}

TEST(JsonValue, KeepsOrderNumbersAndText) {
  const std::string json =
      R"({"z": [1, -2.5, 1e+22, 12345678901234567890123], "a": "é😀\"\\\n", "z2": {}, "b": [true, null]})";
  EXPECT_EQ(dump_json(parse_json(json)).view(), json);
  EXPECT_EQ(parse_json(R"("\ud83d\ude00\u0000")").text().view(), std::string_view("😀\0", 5));
  EXPECT_EQ(dump_json(parse_json(R"({"a": 1, "b": 2, "a": 3})")).view(), R"({"a": 3, "b": 2})");
}

}  // namespace
}  // namespace tensorfold::text::jinja
