#include "text/grammar/automaton.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace tensorfold::text::grammar {
namespace {

constexpr size_t most_states = 1'000'000;
/// A counted repeat is written out when that takes no more states than this.
constexpr uint64_t written_out = 24;
/// Counted repeats of what may be empty go through all their counts at once.
constexpr uint32_t most_empty_repeats = 1024;

using Kind = Expression::Kind;

/// States with epsilon edges, as they come from the expressions.
struct Draft {
  std::vector<State> states;
  std::vector<std::vector<uint32_t>> epsilons;
  std::vector<Loop> loops;

  uint32_t add() {
    if (states.size() >= most_states) fail(ErrorKind::invalid_request, "the grammar is too large");
    states.emplace_back();
    epsilons.emplace_back();
    return static_cast<uint32_t>(states.size() - 1);
  }
};

/// Cuts a range of characters where the length of their UTF-8 form or the span of its last bytes changes, so that each
/// piece is a product of byte ranges.
void cut_range(char32_t first, char32_t last, std::vector<std::pair<char32_t, char32_t>>& pieces) {
  for (const char32_t border : {0x7FU, 0x7FFU, 0xFFFFU}) {
    if (first <= border && last > border) {
      cut_range(first, border, pieces);
      cut_range(border + 1, last, pieces);
      return;
    }
  }
  if (last > 0x7F) {
    for (const char32_t mask : {0x3FU, 0xFFFU, 0x3FFFFU}) {
      if ((first & ~mask) == (last & ~mask)) break;
      if ((first & mask) != 0) {
        cut_range(first, first | mask, pieces);
        cut_range((first | mask) + 1, last, pieces);
        return;
      }
      if ((last & mask) != mask) {
        cut_range(first, (last & ~mask) - 1, pieces);
        cut_range(last & ~mask, last, pieces);
        return;
      }
    }
  }
  pieces.emplace_back(first, last);
}

/// Turns expressions into states; the bodies of counted loops become rules of their own.
class Builder {
 public:
  explicit Builder(const RuleSet& rules) : rules_(rules) {
    for (const Rule& rule : rules.rules) {
      check(rule.body != nullptr, "a grammar rule without a body");
      bodies_.push_back(rule.body);
      names_.push_back(rule.name);
    }
    for (size_t i = 0; i < bodies_.size(); ++i) {
      const uint32_t start = draft_.add();
      const uint32_t end = draft_.add();
      draft_.states[end].final = true;
      starts_.push_back(start);
      const Expr body = bodies_[i];
      build(*body, start, end);
    }
  }

  Draft draft_;
  std::vector<uint32_t> starts_;
  std::vector<std::string> names_;

 private:
  void build(const Expression& expression, uint32_t from, uint32_t to) {
    switch (expression.kind) {
      case Kind::never:
        break;
      case Kind::literals:
        build_literals(expression.texts, 0, expression.texts.size(), 0, from, to);
        break;
      case Kind::characters:
        build_characters(expression.set, from, to);
        break;
      case Kind::sequence:
        for (size_t i = 0; i < expression.parts.size(); ++i) {
          const uint32_t next = i + 1 < expression.parts.size() ? draft_.add() : to;
          build(*expression.parts[i], from, next);
          from = next;
        }
        break;
      case Kind::choice:
        for (const Expr& part : expression.parts) build(*part, from, to);
        break;
      case Kind::repeat:
        build_repeat(expression, from, to);
        break;
      case Kind::rule:
        draft_.states[from].calls.push_back({expression.rule, to});
        break;
    }
  }

  /// texts[begin, end) share their first `depth` bytes.
  void build_literals(const std::vector<std::string>& texts, size_t begin, size_t end, size_t depth, uint32_t from,
                      uint32_t to) {
    while (begin < end) {
      if (texts[begin].size() == depth) {
        draft_.epsilons[from].push_back(to);
        ++begin;
        continue;
      }
      const char letter = texts[begin][depth];
      size_t group = begin + 1;
      while (group < end && texts[group][depth] == letter) ++group;
      const auto byte = static_cast<uint8_t>(letter);
      if (group == begin + 1) {  // one text alone: its rest is a chain
        build_chain(texts[begin], depth, from, to);
      } else {
        const uint32_t next = draft_.add();
        draft_.states[from].bytes.push_back({byte, byte, next});
        build_literals(texts, begin, group, depth + 1, next, to);
      }
      begin = group;
    }
  }

  void build_chain(const std::string& text, size_t depth, uint32_t from, uint32_t to) {
    for (; depth < text.size(); ++depth) {
      const uint32_t next = depth + 1 < text.size() ? draft_.add() : to;
      const auto byte = static_cast<uint8_t>(text[depth]);
      draft_.states[from].bytes.push_back({byte, byte, next});
      from = next;
    }
  }

  void build_characters(const CharacterSet& set, uint32_t from, uint32_t to) {
    std::vector<std::pair<char32_t, char32_t>> pieces;
    for (const CharacterRange& range : set.ranges()) cut_range(range.first, range.last, pieces);
    // States shared between pieces that have the same tail of byte ranges.
    std::map<std::vector<std::pair<uint8_t, uint8_t>>, uint32_t> tails;
    for (const auto& [first, last] : pieces) {
      std::string low;
      std::string high;
      append_utf8(low, first);
      append_utf8(high, last);
      std::vector<std::pair<uint8_t, uint8_t>> tail;
      uint32_t target = to;
      for (size_t i = low.size(); i-- > 1;) {
        tail.emplace_back(static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i]));
        auto [found, fresh] = tails.try_emplace(tail, 0);
        if (fresh) {
          found->second = draft_.add();
          draft_.states[found->second].bytes.push_back({tail.back().first, tail.back().second, target});
        }
        target = found->second;
      }
      draft_.states[from].bytes.push_back({static_cast<uint8_t>(low[0]), static_cast<uint8_t>(high[0]), target});
    }
  }

  /// How many states a part takes, about.
  static uint64_t size_of(const Expression& expression) {
    uint64_t size = 1;
    if (expression.kind == Kind::literals) {
      for (const std::string& text : expression.texts) size += text.size();
    }
    if (expression.kind == Kind::characters) size += expression.set.ranges().size();
    for (const Expr& part : expression.parts) size += size_of(*part);
    if (expression.kind == Kind::repeat && expression.most != unbounded) size *= expression.most;
    return std::min<uint64_t>(size, most_states);
  }

  void build_repeat(const Expression& expression, uint32_t from, uint32_t to) {
    const Expression& part = *expression.parts[0];
    const uint32_t least = expression.least;
    const uint32_t most = expression.most;
    const uint64_t copies = most == unbounded ? uint64_t{least} + 1 : most;
    // Matcher knows strings by their loops.
    const bool in_string = part.kind == Kind::rule && rules_.json_character == part.rule;
    const bool counted = least > 0 || most != unbounded;
    if (copies > 1 && (copies * size_of(part) > written_out || (in_string && counted))) {
      build_loop(expression, from, to);
      return;
    }
    for (uint32_t i = 0; i < least; ++i) from = append_copy(part, from);
    if (most == unbounded) {
      const uint32_t again = draft_.add();
      draft_.epsilons[from].push_back(again);
      build(part, again, again);
      draft_.epsilons[again].push_back(to);
      return;
    }
    for (uint32_t i = least; i < most; ++i) {
      draft_.epsilons[from].push_back(to);
      from = append_copy(part, from);
    }
    draft_.epsilons[from].push_back(to);
  }

  uint32_t append_copy(const Expression& part, uint32_t from) {
    const uint32_t next = draft_.add();
    build(part, from, next);
    return next;
  }

  void build_loop(const Expression& expression, uint32_t from, uint32_t to) {
    const Expr& part = expression.parts[0];
    uint32_t body = 0;
    if (part->kind == Kind::rule) {
      body = part->rule;
    } else {
      const auto [found, fresh] = loop_bodies_.try_emplace(part.get(), static_cast<uint32_t>(bodies_.size()));
      body = found->second;
      if (fresh) {
        bodies_.push_back(part);
        names_.emplace_back("a repeated part");
      }
    }
    const uint32_t state = draft_.add();
    draft_.states[state].loop = static_cast<int32_t>(draft_.loops.size());
    draft_.loops.push_back({body, expression.least, expression.most, to});
    draft_.states[from].loops.push_back(state);
  }

  const RuleSet& rules_;
  std::vector<Expr> bodies_;
  std::map<const Expression*, uint32_t> loop_bodies_;
};

/// Gives each state the edges of all states that it reaches through epsilon edges.
void drop_epsilons(Draft& draft) {
  std::vector<State> merged(draft.states.size());
  std::vector<uint32_t> reached;
  std::vector<uint32_t> stamp(draft.states.size(), unbounded);
  for (uint32_t state = 0; state < draft.states.size(); ++state) {
    reached.assign(1, state);
    stamp[state] = state;
    State& result = merged[state];
    for (size_t i = 0; i < reached.size(); ++i) {
      const State& part = draft.states[reached[i]];
      if (part.loop >= 0) {
        check(reached[i] == state, "an epsilon edge into a loop");
        result.loop = part.loop;
      }
      result.final = result.final || part.final;
      result.bytes.insert(result.bytes.end(), part.bytes.begin(), part.bytes.end());
      result.calls.insert(result.calls.end(), part.calls.begin(), part.calls.end());
      result.loops.insert(result.loops.end(), part.loops.begin(), part.loops.end());
      for (const uint32_t next : draft.epsilons[reached[i]]) {
        if (stamp[next] == state) continue;
        stamp[next] = state;
        reached.push_back(next);
      }
    }
  }
  draft.states = std::move(merged);
}

/// What the analyses below share: the states of a rule are found by walking from its start.
class Analysis {
 public:
  Analysis(Draft& draft, const std::vector<uint32_t>& starts, const std::vector<std::string>& names)
      : draft_(draft), starts_(starts), names_(names) {
    for (const uint32_t start : starts) states_of_.push_back(walk(start));
  }

  /// Removes what can never end: states that do not reach a final one, and calls of rules that match nothing.
  void prune() {
    std::vector<bool> live(draft_.states.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      // Rules mostly call rules that were made after them.
      for (auto rule = states_of_.rbegin(); rule != states_of_.rend(); ++rule) {
        const auto& states = *rule;
        for (auto state = states.rbegin(); state != states.rend(); ++state) {
          if (live[*state] || !reaches_end(draft_.states[*state], live)) continue;
          live[*state] = true;
          changed = true;
        }
      }
    }
    for (size_t index = 0; index < draft_.states.size(); ++index) {
      State& state = draft_.states[index];
      if (!live[index]) state = State{};
      std::erase_if(state.bytes, [&](const ByteEdge& edge) { return !live[edge.target]; });
      std::erase_if(state.calls, [&](const CallEdge& call) { return !live[call.target] || !live[starts_[call.rule]]; });
      std::erase_if(state.loops, [&](uint32_t loop) { return !live[loop]; });
    }
    live_ = std::move(live);
  }

  [[nodiscard]] bool matches_something(uint32_t rule) const { return live_[starts_[rule]]; }

  void find_empty_rules() {
    empty_.assign(starts_.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t rule = starts_.size(); rule-- > 0;) {
        if (empty_[rule] || !can_be_empty(starts_[rule])) continue;
        empty_[rule] = true;
        changed = true;
      }
    }
    for (Loop& loop : draft_.loops) {
      if (!empty_[loop.body]) continue;
      loop.least = 0;
      if (loop.most != unbounded && loop.most > most_empty_repeats) {
        fail(ErrorKind::invalid_request, "a part that may be empty is repeated more than {} times", most_empty_repeats);
      }
    }
  }

  void refuse_left_recursion() const {
    enum class Mark : uint8_t { fresh, open, done };
    std::vector<Mark> marks(starts_.size(), Mark::fresh);
    // Depth first with a stack of our own: rules may be many.
    struct Step {
      uint32_t rule;
      std::vector<uint32_t> calls;
      size_t next = 0;
    };
    for (uint32_t root = 0; root < starts_.size(); ++root) {
      if (marks[root] != Mark::fresh) continue;
      std::vector<Step> stack;
      stack.push_back({root, first_calls(root)});
      marks[root] = Mark::open;
      while (!stack.empty()) {
        Step& step = stack.back();
        if (step.next == step.calls.size()) {
          marks[step.rule] = Mark::done;
          stack.pop_back();
          continue;
        }
        const uint32_t called = step.calls[step.next++];
        if (marks[called] == Mark::open) {
          fail(ErrorKind::invalid_request, "{} is left-recursive: it can reach itself before it has read a character",
               names_[called]);
        }
        if (marks[called] == Mark::fresh) {
          marks[called] = Mark::open;
          stack.push_back({called, first_calls(called)});
        }
      }
    }
  }

 private:
  std::vector<uint32_t> walk(uint32_t start) {
    std::vector<uint32_t> found = {start};
    seen_.resize(draft_.states.size(), false);
    seen_[start] = true;
    const auto add = [&](uint32_t state) {
      if (seen_[state]) return;
      seen_[state] = true;
      found.push_back(state);
    };
    for (size_t i = 0; i < found.size(); ++i) {
      const State& state = draft_.states[found[i]];
      for (const ByteEdge& edge : state.bytes) add(edge.target);
      for (const CallEdge& call : state.calls) add(call.target);
      for (const uint32_t loop : state.loops) add(loop);
      if (state.loop >= 0) add(draft_.loops[static_cast<size_t>(state.loop)].target);
    }
    return found;
  }

  [[nodiscard]] bool reaches_end(const State& state, const std::vector<bool>& live) const {
    if (state.final) return true;
    for (const ByteEdge& edge : state.bytes) {
      if (live[edge.target]) return true;
    }
    for (const CallEdge& call : state.calls) {
      if (live[call.target] && live[starts_[call.rule]]) return true;
    }
    for (const uint32_t loop : state.loops) {
      if (live[loop]) return true;
    }
    if (state.loop < 0) return false;
    const Loop& loop = draft_.loops[static_cast<size_t>(state.loop)];
    return live[loop.target] && (loop.least == 0 || live[starts_[loop.body]]);
  }

  /// States reached from `start` without reading a byte.
  [[nodiscard]] std::vector<uint32_t> silent_states(uint32_t start) const {
    std::vector<uint32_t> found = {start};
    const auto add = [&](uint32_t state) {
      if (std::find(found.begin(), found.end(), state) == found.end()) found.push_back(state);
    };
    for (size_t i = 0; i < found.size(); ++i) {
      const State& state = draft_.states[found[i]];
      for (const CallEdge& call : state.calls) {
        if (empty_[call.rule]) add(call.target);
      }
      for (const uint32_t loop : state.loops) add(loop);
      if (state.loop < 0) continue;
      const Loop& loop = draft_.loops[static_cast<size_t>(state.loop)];
      if (loop.least == 0 || empty_[loop.body]) add(loop.target);
    }
    return found;
  }

  [[nodiscard]] bool can_be_empty(uint32_t start) const {
    const auto states = silent_states(start);
    return std::any_of(states.begin(), states.end(), [this](uint32_t state) { return draft_.states[state].final; });
  }

  [[nodiscard]] std::vector<uint32_t> first_calls(uint32_t rule) const {
    std::vector<uint32_t> called;
    for (const uint32_t index : silent_states(starts_[rule])) {
      const State& state = draft_.states[index];
      for (const CallEdge& call : state.calls) called.push_back(call.rule);
      if (state.loop >= 0) called.push_back(draft_.loops[static_cast<size_t>(state.loop)].body);
    }
    std::sort(called.begin(), called.end());
    called.erase(std::unique(called.begin(), called.end()), called.end());
    return called;
  }

  Draft& draft_;
  const std::vector<uint32_t>& starts_;
  const std::vector<std::string>& names_;
  std::vector<std::vector<uint32_t>> states_of_;
  std::vector<bool> seen_;
  std::vector<bool> live_;
  std::vector<bool> empty_;
};

/// Loops whose body died keep their way out only.
void close_dead_loops(Draft& draft, const std::vector<uint32_t>& starts) {
  for (Loop& loop : draft.loops) {
    const State& start = draft.states[starts[loop.body]];
    const bool dead =
        !start.final && start.bytes.empty() && start.calls.empty() && start.loops.empty() && start.loop < 0;
    if (dead) loop.most = 0;
  }
}

void classify_bytes(Automaton& automaton) {
  std::array<bool, 257> border{};
  for (const State& state : automaton.states) {
    for (const ByteEdge& edge : state.bytes) {
      border[edge.first] = true;
      border[size_t{edge.last} + 1] = true;
    }
  }
  uint32_t current = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (border[byte] && byte > 0) ++current;
    automaton.byte_class[byte] = static_cast<uint8_t>(current);
  }
  automaton.byte_classes = current + 1;
}

/// Keeps the states that a rule can be in; epsilon edges left many that none can.
void renumber(Automaton& automaton) {
  std::vector<uint32_t> number(automaton.states.size(), unbounded);
  std::vector<uint32_t> order;
  const auto see = [&](uint32_t state) {
    if (number[state] != unbounded) return;
    number[state] = static_cast<uint32_t>(order.size());
    order.push_back(state);
  };
  for (const uint32_t start : automaton.starts) see(start);
  for (size_t i = 0; i < order.size(); ++i) {
    const State& state = automaton.states[order[i]];
    for (const ByteEdge& edge : state.bytes) see(edge.target);
    for (const CallEdge& call : state.calls) see(call.target);
    for (const uint32_t loop : state.loops) see(loop);
    if (state.loop >= 0) see(automaton.loops[static_cast<size_t>(state.loop)].target);
  }
  std::vector<State> kept;
  kept.reserve(order.size());
  for (const uint32_t old : order) {
    State& state = automaton.states[old];
    for (ByteEdge& edge : state.bytes) edge.target = number[edge.target];
    for (CallEdge& call : state.calls) call.target = number[call.target];
    for (uint32_t& loop : state.loops) loop = number[loop];
    kept.push_back(std::move(state));
  }
  for (Loop& loop : automaton.loops) {
    loop.target = number[loop.target] == unbounded ? 0 : number[loop.target];
  }
  for (uint32_t& start : automaton.starts) start = number[start];
  automaton.states = std::move(kept);
}

}  // namespace

Automaton compile(const RuleSet& rules) {
  Builder builder(rules);
  drop_epsilons(builder.draft_);
  Analysis analysis(builder.draft_, builder.starts_, builder.names_);
  analysis.prune();
  if (!analysis.matches_something(rules.root)) fail(ErrorKind::invalid_request, "the grammar matches no text at all");
  close_dead_loops(builder.draft_, builder.starts_);
  analysis.find_empty_rules();
  analysis.refuse_left_recursion();
  Automaton automaton;
  automaton.states = std::move(builder.draft_.states);
  automaton.loops = std::move(builder.draft_.loops);
  automaton.starts = std::move(builder.starts_);
  automaton.root = rules.root;
  renumber(automaton);
  if (rules.json_character) automaton.json_character_start = automaton.starts[*rules.json_character];
  classify_bytes(automaton);
  return automaton;
}

}  // namespace tensorfold::text::grammar
