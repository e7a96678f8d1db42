#include "text/grammar/regex.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "text/grammar/regex_tree.h"

namespace tensorfold::text::grammar {
namespace {

using Kind = RegexNode::Kind;

constexpr size_t most_positions = 4000;
constexpr size_t most_counted_rules = 50'000;
constexpr size_t most_follows = 2'000'000;

RegexNode anything() {
  RegexNode all;
  all.kind = Kind::set;
  all.set = CharacterSet::all();
  RegexNode repeated;
  repeated.kind = Kind::repeat;
  repeated.parts.push_back(std::move(all));
  repeated.most = unbounded;
  return repeated;
}

/// Resolves the anchors at one side: what is not anchored there gets `anything` in front of it (or behind it) in a
/// search. Anchors elsewhere stay and are refused later.
class Anchoring {
 public:
  Anchoring(bool at_start, bool search) : at_start_(at_start), search_(search) {}

  [[nodiscard]] bool touches_anchor(const RegexNode& node) const {
    if (node.kind == anchor()) return true;
    if (node.kind == Kind::choice) {
      return std::any_of(node.parts.begin(), node.parts.end(),
                         [this](const auto& part) { return touches_anchor(part); });
    }
    return node.kind == Kind::sequence && !node.parts.empty() && touches_anchor(edge(node));
  }

  RegexNode resolve(RegexNode node) const {
    if (!touches_anchor(node)) return open(std::move(node));
    if (node.kind == anchor()) return RegexNode{};
    if (node.kind == Kind::choice) {
      for (RegexNode& part : node.parts) part = resolve(std::move(part));
      return node;
    }
    if (edge(node).kind != anchor()) {
      edge(node) = resolve(std::move(edge(node)));
      return node;
    }
    // A sequence that begins with anchors: they fall away, whatever their number.
    while (!node.parts.empty() && edge(node).kind == anchor()) {
      node.parts.erase(at_start_ ? node.parts.begin() : node.parts.end() - 1);
    }
    return node;
  }

 private:
  [[nodiscard]] Kind anchor() const { return at_start_ ? Kind::begin : Kind::end; }
  [[nodiscard]] const RegexNode& edge(const RegexNode& node) const {
    return at_start_ ? node.parts.front() : node.parts.back();
  }
  [[nodiscard]] RegexNode& edge(RegexNode& node) const { return at_start_ ? node.parts.front() : node.parts.back(); }
  [[nodiscard]] RegexNode open(RegexNode node) const {
    if (!search_) return node;
    RegexNode result;
    if (at_start_) result.parts.push_back(anything());
    result.parts.push_back(std::move(node));
    if (!at_start_) result.parts.push_back(anything());
    return result;
  }

  bool at_start_;
  bool search_;
};

void refuse_inner_anchors(const RegexNode& node) {
  if (node.kind == Kind::begin || node.kind == Kind::end) {
    fail(ErrorKind::invalid_request, "an anchor inside a regular expression cannot be enforced");
  }
  for (const RegexNode& part : node.parts) refuse_inner_anchors(part);
}

struct Lengths {
  uint64_t least = 0;
  uint64_t most = 0;  ///< `unbounded` and above: no bound
};

Lengths lengths(const RegexNode& node) {
  Lengths result;
  switch (node.kind) {
    case Kind::set:
      return {1, 1};
    case Kind::sequence:
      for (const RegexNode& part : node.parts) {
        const Lengths one = lengths(part);
        result = {std::min<uint64_t>(result.least + one.least, unbounded),
                  std::min<uint64_t>(result.most + one.most, unbounded)};
      }
      return result;
    case Kind::choice:
      result.least = unbounded;
      for (const RegexNode& part : node.parts) {
        const Lengths one = lengths(part);
        result = {std::min(result.least, one.least), std::max(result.most, one.most)};
      }
      return result;
    case Kind::repeat: {
      const Lengths one = lengths(node.parts[0]);
      const uint64_t most = one.most == 0 ? 0 : node.most == unbounded ? unbounded : one.most * node.most;
      return {std::min<uint64_t>(one.least * node.least, unbounded), std::min<uint64_t>(most, unbounded)};
    }
    case Kind::begin:
    case Kind::end:
      break;
  }
  return result;
}

using Write = std::function<Expr(const CharacterSet&)>;

Expr expression(const RegexNode& node, const Write& write) {
  std::vector<Expr> parts;
  switch (node.kind) {
    case Kind::set:
      return write(node.set);
    case Kind::sequence:
      for (const RegexNode& part : node.parts) parts.push_back(expression(part, write));
      return sequence(std::move(parts));
    case Kind::choice:
      for (const RegexNode& part : node.parts) parts.push_back(expression(part, write));
      return choice(std::move(parts));
    case Kind::repeat:
      return repeat(expression(node.parts[0], write), node.least, node.most);
    case Kind::begin:
    case Kind::end:
      break;
  }
  return empty();
}

/// Which character sets of a pattern may stand first, last and behind one another (Glushkov's construction).
class Positions {
 public:
  explicit Positions(const RegexNode& node) {
    sets.emplace_back();  // 0: before the first character
    follow.emplace_back();
    Part whole = add(node);
    follow[0] = whole.first;
    last = std::move(whole.last);
    if (whole.empty) last.push_back(0);
  }
  std::vector<CharacterSet> sets;
  std::vector<std::vector<uint32_t>> follow;
  std::vector<uint32_t> last;

 private:
  struct Part {
    std::vector<uint32_t> first;
    std::vector<uint32_t> last;
    bool empty = true;
  };

  void connect(const std::vector<uint32_t>& from, const std::vector<uint32_t>& to) {
    follows_ += from.size() * to.size();
    if (follows_ > most_follows) too_large();
    for (const uint32_t position : from) {
      auto& list = follow[position];
      list.insert(list.end(), to.begin(), to.end());
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
  }
  static void append(std::vector<uint32_t>& list, const std::vector<uint32_t>& more) {
    list.insert(list.end(), more.begin(), more.end());
  }
  void join(Part& before, const Part& after) {
    connect(before.last, after.first);
    if (before.empty) append(before.first, after.first);
    if (!after.empty) before.last.clear();
    append(before.last, after.last);
    before.empty = before.empty && after.empty;
  }
  [[noreturn]] static void too_large() {
    fail(ErrorKind::invalid_request, "a regular expression is too large to be combined with bounds on the length");
  }

  Part add(const RegexNode& node) {
    Part part;
    switch (node.kind) {
      case Kind::set:
        if (sets.size() > most_positions) too_large();
        part.first = part.last = {static_cast<uint32_t>(sets.size())};
        part.empty = false;
        sets.push_back(node.set);
        follow.emplace_back();
        break;
      case Kind::sequence:
        for (const RegexNode& one : node.parts) join(part, add(one));
        break;
      case Kind::choice:
        part.empty = node.parts.empty();
        for (const RegexNode& one : node.parts) {
          const Part added = add(one);
          append(part.first, added.first);
          append(part.last, added.last);
          part.empty = part.empty || added.empty;
        }
        break;
      case Kind::repeat: {
        for (uint32_t i = 0; i < node.least; ++i) join(part, add(node.parts[0]));
        const uint32_t more = node.most == unbounded ? 1 : node.most - node.least;
        for (uint32_t i = 0; i < more; ++i) {
          Part one = add(node.parts[0]);
          one.empty = true;
          if (node.most == unbounded) connect(one.last, one.first);
          join(part, one);
        }
        break;
      }
      case Kind::begin:
      case Kind::end:
        break;
    }
    return part;
  }
  size_t follows_ = 0;
};

/// The pattern with the number of characters counted: a rule for each position and count that can be reached.
Expr counted(const RegexNode& node, const RegexUse& use, const Write& write, RuleSet& rules) {
  const Positions positions(node);
  const uint32_t counts = use.most == unbounded ? use.least : use.most;  // beyond it the count stays
  if (uint64_t{counts} * positions.sets.size() > most_counted_rules * 64) {
    fail(ErrorKind::invalid_request, "a pattern with bounds on the length is too large");
  }
  std::vector<Expr> written;
  written.reserve(positions.sets.size());
  for (const CharacterSet& set : positions.sets) written.push_back(write(set));
  std::vector<bool> is_last(positions.sets.size(), false);
  for (const uint32_t position : positions.last) is_last[position] = true;
  std::vector<int64_t> number(positions.sets.size() * (size_t{counts} + 1), -1);
  std::vector<std::pair<uint32_t, uint32_t>> reached;
  const auto rule_of = [&](uint32_t position, uint32_t count) {
    int64_t& known = number[position * (size_t{counts} + 1) + count];
    if (known < 0) {
      if (reached.size() >= most_counted_rules) {
        fail(ErrorKind::invalid_request, "a pattern with bounds on the length is too large");
      }
      known = rules.declare("a counted pattern");
      reached.emplace_back(position, count);
    }
    return static_cast<uint32_t>(known);
  };
  const uint32_t first = rule_of(0, 0);
  for (size_t i = 0; i < reached.size(); ++i) {
    const auto [position, count] = reached[i];
    std::vector<Expr> ways;
    if (is_last[position] && count >= use.least) ways.push_back(empty());
    if (use.most == unbounded || count < use.most) {
      for (const uint32_t next : positions.follow[position]) {
        ways.push_back(sequence({written[next], rule(rule_of(next, std::min(count + 1, counts)))}));
      }
    }
    rules.rules[rule_of(position, count)].body = choice(std::move(ways));
  }
  return rule(first);
}

}  // namespace

Expr regex(std::string_view pattern, const RegexUse& use, RuleSet& rules) {
  RegexNode node = parse_regex(pattern);
  node = Anchoring(true, use.search).resolve(std::move(node));
  node = Anchoring(false, use.search).resolve(std::move(node));
  refuse_inner_anchors(node);
  const Write write = use.write ? use.write : Write([](const CharacterSet& set) { return characters(set); });
  const Lengths natural = lengths(node);
  if (natural.least >= use.least && (use.most == unbounded || natural.most <= use.most)) {
    return expression(node, write);
  }
  return counted(node, use, write, rules);
}

}  // namespace tensorfold::text::grammar
