// JSON Schema: which texts a schema's grammar holds, and what is refused with its path.
#include "text/grammar/json_schema.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/grammar/grammar.h"
#include "text/grammar/matcher.h"

namespace tensorfold::text::grammar {
namespace {

using nlohmann::ordered_json;

struct Case {
  const char* schema;
  std::vector<const char*> valid;
  std::vector<const char*> invalid;
};

Matcher matcher(Automaton automaton) {
  return Matcher(std::move(automaton), std::make_shared<Vocabulary>(std::vector<std::string>{}));
}

class Schemas : public ::testing::TestWithParam<Case> {};

TEST_P(Schemas, HoldTheRightTexts) {
  Matcher grammar(compile_json_schema(ordered_json::parse(GetParam().schema)),
                  std::make_shared<Vocabulary>(std::vector<std::string>{}));
  for (const char* text : GetParam().valid) EXPECT_TRUE(grammar.matches(text)) << GetParam().schema << "\n" << text;
  for (const char* text : GetParam().invalid) EXPECT_FALSE(grammar.matches(text)) << GetParam().schema << "\n" << text;
}

INSTANTIATE_TEST_SUITE_P(
    Objects, Schemas,
    ::testing::Values(
        Case{R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})",
             {R"({"a":1})", R"({"a":-12,"b":""})", "{ \"a\" : 0 , \"b\" : \"x\" }", "{\n  \"a\": 5\n}"},
             {"{}", R"({"b":"x"})", R"({"a":1,})", R"({"a":01})", R"({"a":1.5})", R"({"a":1,"c":2})", R"({"a":1}x)",
              R"({"b":"x","a":1})", R"({"a":"1"})", R"({"a":1 "b":"x"})"}},
        Case{R"({"type":"object","properties":{"a":{},"b":{},"c":{}}})",
             {"{}", R"({"a":[1,{"x":null}]})", R"({"b":2})", R"({"a":1,"c":3})", R"({"b":1,"c":"\u00e9"})"},
             {R"({"d":1})", R"({"a":1,"a":2})", R"({"c":1,"b":2})"}},
        Case{R"({"type":"object","properties":{"ab":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
             {"{}", R"({"ab":1})", R"({"ab":1,"a":true,"abc":false})", R"({"":true})", R"({"x\u0041":true})",
              R"({"a\"b":true})", R"({"b":true})"},
             {R"({"ab":true})", R"({"ab":1,"ab":true})", R"({"\u0061b":true})", R"({"a\u0062":true})", R"({"x":1})"}},
        Case{R"({"type":"object"})", {"{}", R"({"a":1,"b":{"c":[]}})"}, {"[]", "null", R"({"a"})"}},
        Case{R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"a":1})"}},
        Case{R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a","z"]})",
             {R"({"a":1,"z":[]})"},
             {R"({"a":1})", R"({"z":1})"}},
        Case{R"({"type":"object","patternProperties":{"^x_[0-9]$":{"type":"integer"}},"additionalProperties":false})",
             {"{}", R"({"x_1":1,"x_2":2})"},
             {R"({"x_a":1})", R"({"x_1":"a"})", R"({"y":1})"}},
        Case{R"({"type":"object","propertyNames":{"pattern":"^[a-c]+$"},"additionalProperties":{"type":"integer"}})",
             {"{}", R"({"abc":1})"},
             {R"({"d":1})", R"({"":1})"}},
        Case{R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"minProperties":1,"maxProperties":2})",
             {R"({"a":1})", R"({"c":1})", R"({"a":1,"c":2})"},
             {"{}", R"({"a":1,"b":1,"c":1})"}},
        Case{R"({"additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":3})",
             {R"({"a":1})", R"({"a":1,"b":2,"c":3})"},
             {"{}", R"({"a":1,"b":2,"c":3,"d":4})"}},
        Case{R"({"type":"object","properties":{"q\"uo\\te\n":{"const":1}},"required":["q\"uo\\te\n"]})",
             {R"({"q\"uo\\te\n":1})"},
             {R"({"quote":1})"}}));

INSTANTIATE_TEST_SUITE_P(
    Arrays, Schemas,
    ::testing::Values(
        Case{R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
             {"[1,2]", "[ 1 , 2 , 3 ]"},
             {"[]", "[1]", "[1,2,3,4]", "[1,]", "[1 2]", "[\"a\",1]"}},
        Case{R"({"type":"array","maxItems":1})", {"[]", "[{}]"}, {"[1,2]"}},
        Case{R"({"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":{"type":"null"}})",
             {"[]", "[\"a\"]", "[\"a\",1]", "[\"a\",1,null,null]"},
             {"[1]", "[\"a\",\"b\"]", "[\"a\",1,2]"}},
        Case{R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"items":false,"minItems":2})",
             {"[1,2]"},
             {"[1]", "[]", "[1,2,3]"}},
        Case{R"({"type":"array","items":[{"const":1}],"additionalItems":{"const":2},"minItems":3})",
             {"[1,2,2]", "[1,2,2,2]"},
             {"[1,2]", "[1]"}},
        Case{R"({"type":"array","items":{"type":"integer"},"minItems":30,"maxItems":31})",
             {"[0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9]"},
             {"[0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8]"}},
        Case{R"({"items":{"type":"array","items":{"type":"boolean"}}})", {"[]", "[[true],[]]"}, {"{}", "[1]"}}));

INSTANTIATE_TEST_SUITE_P(
    Scalars, Schemas,
    ::testing::Values(
        Case{R"({"type":"string"})",
             {R"("")", R"("é日本𝄞")", R"("\"\\\/\b\f\n\r\t")", R"("\u00e9\uD834\uDD1E\ud7ff\uE000")", "\"\x7F\""},
             {"\"\n\"", "\"\xC3\"", "\"\xED\xA0\x80\"", R"("\uD834")", R"("\uDD1E")", R"("\uD834\u0041")", R"("\x")",
              R"("a)", R"(a)", R"("\u12g4")", "\"\xF4\x90\x80\x80\"", "\"\xC0\xAF\""}},
        Case{R"({"type":"string","minLength":2,"maxLength":3})",
             {R"("ab")", R"("é日本")", R"("\n\u0041")", R"("\uD834\uDD1Ea")"},
             {R"("")", R"("a")", R"("abcd")", R"("\uD834\uDD1E")"}},
        Case{R"({"type":"string","minLength":40})",
             {R"("0123456789012345678901234567890123456789")", R"("0123456789012345678901234567890123456789xyz")"},
             {R"("012345678901234567890123456789012345678")"}},
        Case{
            R"({"type":"string","pattern":"^[A-Z]{2}-\\d+$"})", {R"("AB-1")", R"("ZZ-007")"}, {R"("A-1")", R"("AB-")"}},
        Case{R"({"type":"string","pattern":"b+"})", {R"("b")", R"("abbc")", R"("\nb\"")"}, {R"("a")", R"("")"}},
        Case{R"({"type":"string","pattern":"^a|b$"})", {R"("ax")", R"("xb")", R"("a")"}, {R"("xa")", R"("bx")"}},
        Case{R"({"pattern":"^[a-z]([a-z0-9]*-)*[a-z0-9]$","maxLength":5,"minLength":3})",
             {R"("a-c")", R"("a-b-c")", R"("abc-e")"},
             {R"("ab")", R"("abcdef")", R"("ab-cd")", R"("1-c")"}},
        Case{R"({"type":"string","pattern":"^[\"\\\\\\n]+$"})", {R"("\"\\\n")"}, {R"("a")", "\"\n\""}},
        Case{R"({"type":"integer"})", {"0", "-1", "123456789012345678"}, {"01", "-", "1.0", "1e3", "+1", ""}},
        Case{R"({"type":"number"})",
             {"0", "-0.5", "1e5", "1.25E-07", "12.0"},
             {".5", "1.", "1e", "00.1", "NaN", "Infinity", "1e999"}},
        Case{R"({"type":"integer","minimum":-7,"maximum":123})",
             {"-7", "-1", "0", "9", "10", "99", "100", "119", "120", "123"},
             {"-8", "124", "-10", "1000", "130", "-0"}},
        Case{R"({"type":"integer","exclusiveMinimum":9,"exclusiveMaximum":101})",
             {"10", "99", "100"},
             {"9", "101", "1", "0"}},
        Case{R"({"type":"integer","minimum":1.5,"maximum":3.5})", {"2", "3"}, {"1", "4"}},
        Case{R"({"type":"integer","maximum":-15})", {"-15", "-16", "-100", "-20"}, {"-14", "0", "5", "-9"}},
        Case{R"({"type":"integer","minimum":1000})", {"1000", "99999"}, {"999", "-1000"}},
        Case{R"({"type":"number","minimum":0,"maximum":1})",
             {"0", "0.0", "0.5", "0.999", "1", "1.0", "1.000"},
             {"-0.1", "1.1", "1.0001", "2", "1e0"}},
        Case{R"({"type":"number","exclusiveMinimum":0.25,"exclusiveMaximum":12.5})",
             {"0.26", "0.2501", "1", "12", "12.49", "12.4", "9.999"},
             {"0.25", "0.250", "0.2", "12.5", "12.50", "12.51", "13", "0"}},
        Case{R"({"type":"number","minimum":-1.5,"maximum":-0.5})",
             {"-0.5", "-0.50", "-1", "-1.5", "-0.75"},
             {"-0.4", "-1.6", "0", "1", "-1.51"}},
        Case{R"({"type":["integer","null"]})", {"5", "null"}, {"\"5\"", "true"}},
        Case{R"({"type":"boolean"})", {"true", "false"}, {"True", "0"}},
        Case{R"({"enum":["a",1,null,{"k":[1,2]},"é\n"]})",
             {R"("a")", "1", "null", R"({"k":[1,2]})", R"({ "k" : [ 1, 2 ] })", R"("é\n")"},
             {R"("b")", "2", "{}"}},
        Case{R"({"type":"integer","enum":[1,"x",2,300],"maximum":10})", {"1", "2"}, {"300", R"("x")"}},
        Case{R"({"const":"yes"})", {R"("yes")"}, {R"("no")", "yes"}},
        Case{"true", {"1", "[]", R"({"a":null})"}, {"", "nul"}}));

INSTANTIATE_TEST_SUITE_P(
    Formats, Schemas,
    ::testing::Values(Case{R"({"type":"string","format":"date"})",
                           {R"("2024-02-29")", R"("2026-11-30")", R"("2000-02-29")", R"("0001-01-01")"},
                           {R"("2023-02-29")", R"("1900-02-29")", R"("2026-04-31")", R"("2026-13-01")", R"("2026-1-1")",
                            R"("0000-01-01")"}},
                      Case{R"({"type":"string","format":"date-time"})",
                           {R"("2026-11-30T23:59:59Z")", R"("2026-11-30T00:00:00.123+02:00")"},
                           {R"("2026-11-30")", R"("2026-11-30T24:00:00Z")", R"("2026-11-30T10:00:00")"}},
                      Case{
                          R"({"type":"string","format":"time"})", {R"("10:00:00Z")"}, {R"("10:60:00Z")", R"("10:00")"}},
                      Case{R"({"type":"string","format":"duration"})",
                           {R"("P3DT4H")", R"("PT5M")", R"("P2W")"},
                           {R"("P")", R"("3D")", R"("PT")"}},
                      Case{R"({"type":"string","format":"uuid"})",
                           {R"("123e4567-e89b-12d3-a456-426614174000")"},
                           {R"("123e4567-e89b-12d3-a456-42661417400")"}},
                      Case{R"({"type":"string","format":"email"})",
                           {R"("a.b+c@example.co.uk")"},
                           {R"("a@b")", R"("@b.com")", R"("a b@c.com")", R"(".a@b.com")"}},
                      Case{R"({"type":"string","format":"ipv4"})",
                           {R"("192.168.0.255")", R"("0.0.0.0")"},
                           {R"("256.1.1.1")", R"("01.1.1.1")", R"("1.1.1")"}},
                      Case{R"({"type":"string","format":"ipv6"})",
                           {R"("::")", R"("::1")", R"("2001:db8::1")", R"("1:2:3:4:5:6:7:8")", R"("1::")"},
                           {R"("1:2:3:4:5:6:7")", R"("1::2::3")", R"("1:2:3:4:5:6:7:8::")", R"("12345::")"}},
                      Case{R"({"type":"string","format":"hostname"})",
                           {R"("a.example.com")", R"("localhost")"},
                           {R"("-a.com")", R"("a..b")"}},
                      Case{R"({"type":"string","format":"uri"})",
                           {R"("https://example.com/a%20b?c=d#e")", R"("http://localhost:8080")"},
                           {R"("example.com")", R"("http://a b")", R"("https://")"}}));

INSTANTIATE_TEST_SUITE_P(
    Composition, Schemas,
    ::testing::Values(
        Case{R"({"anyOf":[{"type":"integer"},{"type":"object","properties":{"a":{"const":1}},"required":["a"]}]})",
             {"7", R"({"a":1})"},
             {"{}", "\"7\""}},
        Case{R"({"oneOf":[{"type":"string","maxLength":1},{"type":"null"}]})", {R"("a")", "null"}, {R"("ab")"}},
        Case{R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
                 "anyOf":[{"required":["a"]},{"required":["b"]}]})",
             {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
             {"{}"}},
        Case{R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
                          {"properties":{"b":{"type":"string"}},"required":["b"]}]})",
             {R"({"a":1,"b":"x"})"},
             {R"({"a":1})", R"({"b":"x"})"}},
        Case{R"({"allOf":[{"type":"integer","minimum":3,"maximum":10},{"minimum":5,"maximum":20}]})",
             {"5", "10"},
             {"4", "11"}},
        Case{R"({"allOf":[{"type":["string","integer"]},{"type":["number","string"]},{"enum":[1,"a",2.5]}]})",
             {"1", R"("a")"},
             {"2.5"}},
        Case{R"({"$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},
                 "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"]}},"$ref":"#/$defs/node"})",
             {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
             {R"({"v":1})", R"({"v":1,"next":{}})"}},
        Case{R"({"type":"object","properties":{"child":{"$ref":"#"},"n":{"type":"integer"}},"required":["n"]})",
             {R"({"n":1})", R"({"child":{"n":2},"n":1})"},
             {R"({"child":{},"n":1})"}},
        Case{R"({"definitions":{"s p/c":{"const":1}},"items":{"$ref":"#/definitions/s%20p~1c"}})", {"[1,1]"}, {"[2]"}},
        Case{R"({"$defs":{"s":{"type":"string"}},"$ref":"#/$defs/s","maxLength":2})", {R"("ab")"}, {R"("abc")"}},
        Case{
            R"({"title":"T","description":"D","default":3,"examples":[1],"x-order":2,"type":"integer","deprecated":true})",
            {"3"},
            {"\"3\""}}));

TEST(JsonSchema, BoundsBlanksBetweenTokens) {
  Matcher grammar =
      matcher(compile_json_schema(ordered_json::parse(R"({"type":"object","properties":{"a":{"type":"string"}}})")));
  EXPECT_TRUE(grammar.matches("{" + std::string(32, ' ') + "\"a\":\"\"}"));
  EXPECT_FALSE(grammar.matches("{" + std::string(33, ' ') + "\"a\":\"\"}"));
  EXPECT_FALSE(grammar.matches(" {}"));
  EXPECT_FALSE(grammar.matches("{} "));
}

TEST(JsonSchema, RefusesInTimeWhatDoublesAtEveryStep) {
  ordered_json schema = {{"$ref", "#/$defs/d0"}};
  for (int i = 0; i < 60; ++i) {
    const ordered_json next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    schema["$defs"]["d" + std::to_string(i)]["allOf"] = {next, next};
  }
  schema["$defs"]["d60"] = {{"type", "integer"}};
  EXPECT_THROW((void)compile_json_schema(schema), Error);
}

struct Refusal {
  const char* schema;
  const char* message;
};

class RefusedSchemas : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusedSchemas, NameThePath) {
  try {
    (void)compile_json_schema(ordered_json::parse(GetParam().schema));
    FAIL() << "compiled: " << GetParam().schema;
  } catch (const Error& failure) {
    EXPECT_EQ(failure.kind(), ErrorKind::invalid_request);
    EXPECT_THAT(failure.what(), ::testing::HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    JsonSchema, RefusedSchemas,
    ::testing::Values(
        Refusal{R"({"type":"nonsense"})", "at #/type: 'nonsense' is no JSON type"},
        Refusal{R"({"type":7})", "at #/type"}, Refusal{R"({"properties":{"a":{"not":{}}}})", "at #/properties/a/not"},
        Refusal{R"({"properties":{"a/b":{"items":{"if":{}}}}})", "at #/properties/a~1b/items/if"},
        Refusal{R"s({"type":"array","items":{"type":"string","pattern":"(?=x)"}})s", "at #/items/pattern: "},
        Refusal{R"({"type":"string","format":"regex"})", "at #/format: 'regex'"},
        Refusal{R"({"properties":{"a":{"const":123456789012345678901234567890}}})",
                "at #/properties/a/const: has a number"},
        Refusal{R"({"enum":[1,{"a":[-123456789012345678901]}]})", "at #/enum: has a number of more than 18 digits"},
        Refusal{R"({"type":"array","uniqueItems":true})", "at #/uniqueItems"},
        Refusal{R"({"type":"array","contains":{}})", "at #/contains"},
        Refusal{R"({"type":"number","multipleOf":0.01})", "at #/multipleOf"},
        Refusal{R"({"$ref":"https://example.com/s.json"})", "at #/$ref"},
        Refusal{R"({"properties":{"a":{"$ref":"#/$defs/none"}}})", "at #/properties/a/$ref: '#/$defs/none'"},
        Refusal{R"({"$ref":"#"})", "at #: the grammar matches no text"},
        Refusal{R"({"allOf":[{"$ref":"#"},{"type":"object"}]})", "refers to itself"},
        Refusal{R"({"type":"string","minLength":-1})", "at #/minLength"},
        Refusal{R"({"type":"integer","minimum":"3"})", "at #/minimum"},
        Refusal{R"({"type":"integer","minimum":5,"maximum":3})", "matches no text at all"},
        Refusal{R"({"type":"object","properties":{"a":false},"required":["a"]})", "matches no text at all"},
        Refusal{R"({"type":"object","properties":[]})", "at #/properties"},
        Refusal{R"({"type":"object","properties":{"a":3}})", "at #/properties/a"},
        Refusal{R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", "at #/pattern"},
        Refusal{R"({"patternProperties":{"^a":{}},"properties":{"ab":{}}})", "at #/patternProperties/^a"},
        Refusal{R"({"type":"object","additionalProperties":true,"minProperties":2})", "at #/minProperties"},
        Refusal{R"({"dependentRequired":{"a":["b"]}})", "at #/dependentRequired"}));

}  // namespace
}  // namespace tensorfold::text::grammar
