#include "text/grammar/grammar.h"

#include "base/error.h"
#include "text/grammar/ebnf.h"
#include "text/grammar/json_rules.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/regex.h"

namespace tensorfold::text::grammar {

Automaton compile_json_schema(const nlohmann::ordered_json& schema, bool blanks) {
  const RuleSet rules = json_schema_rules(schema, blanks);
  try {
    return compile(rules);
  } catch (const Error& failure) {
    if (failure.kind() != ErrorKind::invalid_request) throw;
    refuse_schema("#", failure.what());
  }
}

Automaton compile_json_object(bool blanks) {
  RuleSet rules;
  rules.json_blanks = blanks;
  JsonRules json(rules);
  rules.root = rules.add("root", json.object());
  return compile(rules);
}

Automaton compile_json_value(bool blanks) {
  RuleSet rules;
  rules.json_blanks = blanks;
  JsonRules json(rules);
  rules.root = rules.add("root", json.value());
  return compile(rules);
}

Automaton compile_regex(std::string_view pattern) {
  RuleSet rules;
  rules.root = rules.add("the pattern", regex(pattern, {}, rules));
  return compile(rules);
}

Automaton compile_choice(const std::vector<std::string>& texts) {
  RuleSet rules;
  rules.root = rules.add("the choice", literals(texts));
  return compile(rules);
}

Automaton compile_ebnf(std::string_view text) { return compile(ebnf_rules(text)); }

}  // namespace tensorfold::text::grammar
