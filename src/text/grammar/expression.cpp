#include "text/grammar/expression.h"

#include <algorithm>
#include <utility>

namespace tensorfold::text::grammar {
namespace {

using Kind = Expression::Kind;

Expr make(Expression expression) { return std::make_shared<const Expression>(std::move(expression)); }

}  // namespace

Expr never() {
  static const Expr shared = make({});
  return shared;
}

Expr empty() {
  static const Expr shared = literals({""});
  return shared;
}

Expr literal(std::string_view text) { return literals({std::string(text)}); }

Expr literals(std::vector<std::string> texts) {
  if (texts.empty()) return never();
  Expression result;
  result.kind = Kind::literals;
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  result.texts = std::move(texts);
  return make(std::move(result));
}

Expr characters(CharacterSet set) {
  if (set.empty()) return never();
  Expression result;
  result.kind = Kind::characters;
  result.set = std::move(set);
  return make(std::move(result));
}

Expr sequence(std::vector<Expr> parts) {
  std::vector<Expr> flat;
  for (Expr& part : parts) {
    if (part->kind == Kind::never) return never();
    const bool single = part->kind == Kind::literals && part->texts.size() == 1;
    if (single && part->texts[0].empty()) continue;
    if (part->kind == Kind::sequence) {
      flat.insert(flat.end(), part->parts.begin(), part->parts.end());
    } else if (single && !flat.empty() && flat.back()->kind == Kind::literals && flat.back()->texts.size() == 1) {
      flat.back() = literal(flat.back()->texts[0] + part->texts[0]);
    } else {
      flat.push_back(std::move(part));
    }
  }
  if (flat.empty()) return empty();
  if (flat.size() == 1) return flat.front();
  Expression result;
  result.kind = Kind::sequence;
  result.parts = std::move(flat);
  return make(std::move(result));
}

Expr choice(std::vector<Expr> parts) {
  std::vector<Expr> flat;
  std::vector<std::string> texts;
  for (Expr& part : parts) {
    if (part->kind == Kind::never) continue;
    if (part->kind == Kind::choice) {
      flat.insert(flat.end(), part->parts.begin(), part->parts.end());
    } else if (part->kind == Kind::literals) {
      texts.insert(texts.end(), part->texts.begin(), part->texts.end());
    } else {
      flat.push_back(std::move(part));
    }
  }
  if (!texts.empty()) flat.push_back(literals(std::move(texts)));
  if (flat.empty()) return never();
  if (flat.size() == 1) return flat.front();
  Expression result;
  result.kind = Kind::choice;
  result.parts = std::move(flat);
  return make(std::move(result));
}

Expr repeat(Expr part, uint32_t least, uint32_t most) {
  if (least > most) return never();
  if (most == 0) return empty();
  if (part->kind == Kind::never) return least == 0 ? empty() : never();
  if (least == 1 && most == 1) return part;
  Expression result;
  result.kind = Kind::repeat;
  result.parts.push_back(std::move(part));
  result.least = least;
  result.most = most;
  return make(std::move(result));
}

Expr optional(Expr part) { return repeat(std::move(part), 0, 1); }

Expr rule(uint32_t number) {
  Expression result;
  result.kind = Kind::rule;
  result.rule = number;
  return make(std::move(result));
}

uint32_t RuleSet::declare(std::string name) { return add(std::move(name), nullptr); }

uint32_t RuleSet::add(std::string name, Expr body) {
  rules.push_back({std::move(name), std::move(body)});
  return static_cast<uint32_t>(rules.size() - 1);
}

}  // namespace tensorfold::text::grammar
