#include "text/grammar/schema_objects.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/grammar/automaton.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/matcher.h"
#include "text/grammar/regex.h"

namespace tensorfold::text::grammar {
namespace {

constexpr size_t most_counted_members = 64;

uint32_t count_field(const Json& schema, const char* key, uint32_t otherwise, const std::string& path) {
  const auto found = schema.find(key);
  if (found == schema.end()) return otherwise;
  if (!found->is_number() || found->get<double>() < 0 || found->get<double>() >= 4e9) {
    refuse_schema(path + "/" + key, "must be a count");
  }
  return static_cast<uint32_t>(found->get<double>());
}

/// A path's segment, as JSON pointers escape it.
std::string segment(std::string name) {
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '~' || name[i] == '/') name.replace(i, 1, name[i] == '~' ? "~0" : "~1");
  }
  return "/" + name;
}

bool pattern_matches(const std::string& pattern, const std::string& text) {
  RuleSet rules;
  RegexUse use;
  use.search = true;
  rules.root = rules.add("pattern", regex(pattern, use, rules));
  return Matcher(compile(rules), std::make_shared<Vocabulary>(std::vector<std::string>{})).matches(text);
}

class ObjectBuilder {
 public:
  ObjectBuilder(const Json& schema, std::string path, SchemaContext& context)
      : schema_(schema), path_(std::move(path)), context_(context), json_(context.json()) {}

  Expr build() {
    read_members();
    read_tail();
    read_counts();
    const Expr inside = rule(state(0, 0));
    return sequence({literal("{"), json_.blanks(), inside});
  }

 private:
  struct Member {
    std::string name;
    Expr expression;  ///< with its key, without a comma
    bool required = false;
  };

  void read_members() {
    const auto required = schema_.find("required");
    std::vector<std::string> needed;
    if (required != schema_.end()) {
      if (!required->is_array()) refuse_schema(path_ + "/required", "must be a list of names");
      for (const Json& name : *required) {
        if (!name.is_string()) refuse_schema(path_ + "/required", "must be a list of names");
        needed.push_back(name.get<std::string>());
      }
    }
    const auto is_needed = [&](const std::string& name) {
      return std::find(needed.begin(), needed.end(), name) != needed.end();
    };
    const auto properties = schema_.find("properties");
    if (properties != schema_.end()) {
      if (!properties->is_object()) refuse_schema(path_ + "/properties", "must be an object");
      for (const auto& [name, value] : properties->items()) {
        add_member(name, value, path_ + "/properties" + segment(name), is_needed(name));
      }
    }
    for (const std::string& name : needed) {
      const bool named = properties != schema_.end() && properties->contains(name);
      if (named || has_member(name)) continue;
      const auto further = schema_.find("additionalProperties");
      const Json value = further != schema_.end() ? *further : Json(true);
      add_member(name, value, path_ + "/additionalProperties", true);
    }
  }

  [[nodiscard]] bool has_member(const std::string& name) const {
    return std::any_of(members_.begin(), members_.end(), [&](const Member& member) { return member.name == name; });
  }

  void add_member(const std::string& name, const Json& value, const std::string& path, bool required) {
    Expr values = value == false ? never() : context_.schema(value, path);
    Expr whole = json_.member(JsonRules::quoted(literal(json_spelling(name))), std::move(values));
    members_.push_back({name, std::move(whole), required});
  }

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const Member& member : members_) result.push_back(member.name);
    return result;
  }

  /// Members beyond the named ones.
  void read_tail() {
    const auto further = schema_.find("additionalProperties");
    const auto patterns = schema_.find("patternProperties");
    const auto key_schema = schema_.find("propertyNames");
    if (patterns != schema_.end() && !patterns->empty()) {
      if (!patterns->is_object()) refuse_schema(path_ + "/patternProperties", "must be an object");
      if (further != schema_.end() && *further != false) {
        refuse_schema(path_ + "/additionalProperties",
                      "beside patternProperties cannot be enforced unless it is false");
      }
      if (key_schema != schema_.end())
        refuse_schema(path_ + "/propertyNames", "beside patternProperties cannot be enforced");
      tail_ = pattern_members(*patterns);
      return;
    }
    const bool open =
        further != schema_.end() ? *further != false : members_.empty() && !schema_.contains("properties");
    if (key_schema != schema_.end() && *key_schema != true) {
      if (!members_.empty()) refuse_schema(path_ + "/propertyNames", "beside named properties cannot be enforced");
      if (open) tail_ = json_.member(name_expression(*key_schema), further_value());
      return;
    }
    if (open) tail_ = json_.member(JsonRules::quoted(json_.other_than(names())), further_value());
  }

  Expr further_value() {
    const auto further = schema_.find("additionalProperties");
    if (further == schema_.end()) return json_.value();
    return context_.schema(*further, path_ + "/additionalProperties");
  }

  /// Names are strings whatever their schema says about a type.
  Expr name_expression(const Json& key_schema) {
    if (!key_schema.is_object()) return never();
    return context_.schema({{"allOf", Json::array({{{"type", "string"}}, key_schema})}}, path_ + "/propertyNames");
  }

  Expr pattern_members(const Json& patterns) {
    std::vector<Expr> ways;
    for (const auto& [pattern, value] : patterns.items()) {
      const std::string where = path_ + "/patternProperties" + segment(pattern);
      if (value != *patterns.begin()) {
        refuse_schema(where, "differs from another pattern's schema; names that match both cannot be kept apart");
      }
      Expr key = context_.pattern(pattern, 0, unbounded, where);
      for (const Member& member : members_) {
        if (pattern_matches(pattern, member.name)) {
          refuse_schema(where, "matches the named property '" + member.name + "'");
        }
      }
      ways.push_back(json_.member(std::move(key), context_.schema(value, where)));
    }
    return choice(std::move(ways));
  }

  void read_counts() {
    least_ = count_field(schema_, "minProperties", 0, path_);
    most_ = count_field(schema_, "maxProperties", unbounded, path_);
    const auto required = std::count_if(members_.begin(), members_.end(), [](const auto& one) { return one.required; });
    if (least_ <= static_cast<uint32_t>(required)) least_ = 0;
    // Names beyond the listed ones might repeat, and a repeated name counts once.
    if (tail_ && least_ > 1) refuse_schema(path_ + "/minProperties", "above 1 cannot be enforced where names are open");
    counted_ = least_ > 0 || most_ != unbounded;
    if (!counted_) return;
    if (members_.size() > most_counted_members || (most_ != unbounded && tail_ && most_ > 4096)) {
      refuse_schema(path_, "counts too many members");
    }
  }

  /// The rest of the object before member `next`, when `count` members stand already (0 or 1 if they need not be
  /// counted).
  uint32_t state(size_t next, uint32_t count) {
    const auto key = std::pair(next, count);
    const auto known = states_.find(key);
    if (known != states_.end()) return known->second;
    const uint32_t number = context_.rules().declare("the object at " + path_);
    states_[key] = number;
    std::vector<Expr> ways;
    const Expr lead = count > 0 ? json_.comma() : empty();
    if (next == members_.size()) {
      ways.push_back(end_of(count));
    } else {
      const Member& member = members_[next];
      if (count < most_) ways.push_back(sequence({lead, member.expression, rule(state(next + 1, after(count)))}));
      if (!member.required) ways.push_back(rule(state(next + 1, count)));
    }
    context_.rules().rules[number].body = choice(std::move(ways));
    return number;
  }

  [[nodiscard]] uint32_t after(uint32_t count) const { return counted_ ? count + 1 : 1; }

  Expr end_of(uint32_t count) {
    const Expr close = literal("}");
    const uint32_t missing = count < least_ ? least_ - count : 0;
    if (!tail_) return missing > 0 ? never() : close;
    const uint32_t room = most_ == unbounded ? unbounded : most_ - std::min(count, most_);
    const Expr next = sequence({json_.comma(), *tail_});
    if (count > 0) return sequence({repeat(next, missing, room), close});
    if (room == 0) return close;
    const Expr some =
        sequence({*tail_, repeat(next, missing > 0 ? missing - 1 : 0, room == unbounded ? room : room - 1)});
    return sequence({missing > 0 ? some : optional(some), close});
  }

  const Json& schema_;
  std::string path_;
  SchemaContext& context_;
  JsonRules& json_;
  std::vector<Member> members_;
  std::optional<Expr> tail_;  ///< one further member
  uint32_t least_ = 0;
  uint32_t most_ = unbounded;
  bool counted_ = false;
  std::map<std::pair<size_t, uint32_t>, uint32_t> states_;
};

}  // namespace

Expr object_expression(const Json& schema, const std::string& path, SchemaContext& context) {
  return ObjectBuilder(schema, path, context).build();
}

Expr array_expression(const Json& schema, const std::string& path, SchemaContext& context) {
  JsonRules& json = context.json();
  const auto unique = schema.find("uniqueItems");
  const uint32_t least = count_field(schema, "minItems", 0, path);
  uint32_t most = count_field(schema, "maxItems", unbounded, path);
  if (unique != schema.end() && *unique == true && most > 1) {
    refuse_schema(path + "/uniqueItems", "cannot be enforced");
  }
  // Draft 2020-12 writes the first elements as prefixItems, earlier drafts as a list under items.
  const auto prefix = schema.find("prefixItems");
  const auto items = schema.find("items");
  const bool old_style = prefix == schema.end() && items != schema.end() && items->is_array();
  const Json first = prefix != schema.end() ? *prefix : old_style ? *items : Json::array();
  if (!first.is_array()) refuse_schema(path + "/prefixItems", "must be a list of schemas");
  const char* rest_name = old_style ? "additionalItems" : "items";
  const auto rest = schema.find(rest_name);
  std::optional<Expr> more;
  if (rest != schema.end()) {
    if (*rest != false) more = context.schema(*rest, path + "/" + rest_name);
  } else if (first.empty() || least > first.size()) {
    more = json.value();
  }
  std::vector<Expr> elements;
  for (size_t i = 0; i < first.size() && i < most; ++i) {
    const std::string where = path + (old_style ? "/items/" : "/prefixItems/") + std::to_string(i);
    elements.push_back(sequence({context.schema(first[i], where), json.blanks()}));
  }
  const Expr close = literal("]");
  const auto count = static_cast<uint32_t>(elements.size());
  Expr tail = close;
  if (more && most > count) {
    const Expr one = sequence({*more, json.blanks()});
    const Expr next = sequence({json.comma(), one});
    const uint32_t owed = least > count ? least - count : 0;
    const uint32_t room = most == unbounded ? unbounded : most - count;
    if (count > 0) {
      tail = sequence({repeat(next, owed, room), close});
    } else {
      const Expr some = sequence({one, repeat(next, owed > 0 ? owed - 1 : 0, room == unbounded ? room : room - 1)});
      tail = sequence({owed > 0 ? some : optional(some), close});
    }
  } else if (least > count) {
    return never();
  }
  for (uint32_t i = count; i-- > 0;) {
    Expr with = i > 0 ? sequence({json.comma(), elements[i], tail}) : sequence({elements[i], tail});
    tail = i >= least ? choice({close, std::move(with)}) : std::move(with);
  }
  return sequence({literal("["), json.blanks(), tail});
}

}  // namespace tensorfold::text::grammar
