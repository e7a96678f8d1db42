// Forms of JSON texts that a request can ask for beside its schema: named string formats, JSON without blanks.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "text/grammar/grammar.h"
#include "text/grammar/matcher.h"

namespace tensorfold::text::grammar {
namespace {

Matcher matcher(Automaton automaton) {
  return Matcher(std::move(automaton), std::make_shared<Vocabulary>(std::vector<std::string>{}));
}

TEST(StringFormats, AUriReferenceMayBeRelative) {
  for (const char* format : {"uri-reference", "iri-reference"}) {
    Matcher grammar = matcher(compile_json_schema({{"type", "string"}, {"format", format}}));
    for (const char* valid : {"", "/", "/a/b.html", "a/b:c", "../up?x=1#here", "?q", "#top", "//host.example:80/x",
                              "https://host.example/a//b?c=d/e"}) {
      EXPECT_TRUE(grammar.matches("\"" + std::string(valid) + "\"")) << valid;
    }
    for (const char* invalid : {"a b", "1a:b", ":a", "a%2", "///x", "<a>", "#a#b"}) {
      EXPECT_FALSE(grammar.matches("\"" + std::string(invalid) + "\"")) << invalid;
    }
  }
  Matcher absolute = matcher(compile_json_schema({{"type", "string"}, {"format", "uri"}}));
  EXPECT_TRUE(absolute.matches("\"https://host.example/a?b#c\""));
  EXPECT_FALSE(absolute.matches("\"/a/b.html\""));
}

TEST(Blanks, AreNowhereInJsonThatMayHaveNone) {
  const nlohmann::ordered_json schema = {
      {"type", "object"},
      {"properties",
       {{"a", {{"type", "array"}, {"items", {{"type", "integer"}}}}}, {"b", nlohmann::ordered_json::object()}}}};
  Matcher compact = matcher(compile_json_schema(schema, false));
  Matcher free = matcher(compile_json_schema(schema));
  const std::string dense = R"({"a":[1,2],"b":{"c":" "}})";
  EXPECT_TRUE(compact.matches(dense));
  EXPECT_TRUE(free.matches(dense));
  for (const char* blank :
       {R"({ "a":[1]})", R"({"a": [1]})", R"({"a":[1, 2]})", R"({"a":[1] })", R"({"b":{"c" :1}})"}) {
    EXPECT_FALSE(compact.matches(blank)) << blank;
    EXPECT_TRUE(free.matches(blank)) << blank;
  }
  EXPECT_FALSE(matcher(compile_json_object(false)).matches(R"({"a": 1})"));
  EXPECT_TRUE(matcher(compile_json_value(false)).matches(R"([1,{"a":null}])"));
}

}  // namespace
}  // namespace tensorfold::text::grammar
