#include "text/grammar/matcher.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tensorfold::text::grammar {
namespace {

constexpr size_t mask_bytes_kept = size_t{32} << 20;
/// Stacks that one text may lead to at once, with those that read nothing.
constexpr size_t most_places = 50'000;

}  // namespace

Matcher::Matcher(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary)
    : automaton_(std::move(automaton)), vocabulary_(std::move(vocabulary)) {
  for (size_t byte = 256; byte-- > 0;) class_byte_[automaton_.byte_class[byte]] = static_cast<uint8_t>(byte);
  most_masks_ = std::max<size_t>(mask_bytes_kept / (vocabulary_->words() * 4 + 64), 16);
  const std::lock_guard lock(mutex_);
  clear();
}

void Matcher::set_limits(size_t configurations, size_t masks) {
  const std::lock_guard lock(mutex_);
  most_configurations_ = configurations;
  most_masks_ = masks;
}

void Matcher::clear() {
  ++epoch_;
  places_.assign(1, {0, 0, 0});
  place_ids_.clear();
  seen_.assign(1, 0);
  expansion_ = 0;
  configurations_.assign(1, {});
  configuration_ids_.clear();
  next_.assign(automaton_.byte_classes, dead_configuration);
  masks_.clear();
  ++expansion_;
  visit(place(automaton_.starts[automaton_.root], no_place, 0));
  first_ = finish_expansion();
}

void Matcher::revive(Cursor& cursor) {
  if (cursor.configuration_ == dead_configuration) return;
  if (configurations_.size() > most_configurations_ || places_.size() > most_configurations_ * 16) clear();
  if (cursor.epoch_ == epoch_) return;
  uint32_t configuration = first_;
  for (const char byte : cursor.text_) configuration = next(configuration, static_cast<uint8_t>(byte));
  check(configuration != dead_configuration, "a grammar's text does not fit when it is read again");
  cursor.configuration_ = configuration;
  cursor.epoch_ = epoch_;
}

uint32_t Matcher::place(uint32_t state, uint32_t parent, uint32_t count) {
  const auto [found, fresh] = place_ids_.try_emplace({state, parent, count}, static_cast<uint32_t>(places_.size()));
  if (fresh) {
    places_.push_back({state, parent, count});
    seen_.push_back(0);
  }
  return found->second;
}

void Matcher::visit(uint32_t place) {
  if (seen_[place] == expansion_) return;
  seen_[place] = expansion_;
  pending_.push_back(place);
}

/// Follows calls, loops and ends of rules from the pending places until bytes must be read.
void Matcher::expand() {
  for (size_t visited = 0; !pending_.empty(); ++visited) {
    if (visited > most_places) {
      pending_.clear();
      fail(ErrorKind::invalid_request, "the grammar is too ambiguous: one text has more than {} readings", most_places);
    }
    const uint32_t id = pending_.back();
    pending_.pop_back();
    const Place at = places_[id];
    const State& state = automaton_.states[at.state];
    if (state.loop >= 0) {
      const Loop& loop = automaton_.loops[static_cast<size_t>(state.loop)];
      if (at.count < loop.most) {
        // Without an upper bound only the way to the lower one counts.
        const uint32_t count = loop.most == unbounded ? std::min(at.count + 1, loop.least) : at.count + 1;
        visit(place(automaton_.starts[loop.body], place(at.state, at.parent, count), 0));
      }
      if (at.count >= loop.least) visit(place(loop.target, at.parent, 0));
      continue;
    }
    if (!state.bytes.empty()) reading_.push_back(id);
    for (const CallEdge& call : state.calls) {
      const bool last = automaton_.states[call.target].only_final();
      visit(place(automaton_.starts[call.rule], last ? at.parent : place(call.target, at.parent, 0), 0));
    }
    for (const uint32_t loop : state.loops) visit(place(loop, at.parent, 0));
    if (!state.final) continue;
    if (at.parent == no_place) {
      accepting_ = true;
    } else {
      visit(at.parent);
    }
  }
}

uint32_t Matcher::finish_expansion() {
  reading_.clear();
  accepting_ = false;
  expand();
  return configuration(reading_, accepting_);
}

uint32_t Matcher::configuration(std::vector<uint32_t> places, bool accepting) {
  if (places.empty() && !accepting) return dead_configuration;
  std::sort(places.begin(), places.end());
  std::u32string key(places.begin(), places.end());
  key.push_back(accepting ? 1 : 0);
  const auto [found, fresh] =
      configuration_ids_.try_emplace(std::move(key), static_cast<uint32_t>(configurations_.size()));
  if (fresh) {
    configurations_.push_back({std::move(places), accepting});
    next_.resize(next_.size() + automaton_.byte_classes, unknown);
  }
  return found->second;
}

uint32_t Matcher::compute_next(uint32_t configuration, uint8_t byte_class) {
  const uint8_t byte = class_byte_[byte_class];
  ++expansion_;
  for (const uint32_t id : configurations_[configuration].places) {
    const Place at = places_[id];
    for (const ByteEdge& edge : automaton_.states[at.state].bytes) {
      if (edge.first <= byte && byte <= edge.last) visit(place(edge.target, at.parent, 0));
    }
  }
  const uint32_t target = finish_expansion();
  next_[size_t{configuration} * automaton_.byte_classes + byte_class] = target;
  return target;
}

Matcher::Cursor Matcher::begin() {
  const std::lock_guard lock(mutex_);
  Cursor cursor;
  cursor.configuration_ = first_;
  cursor.epoch_ = epoch_;
  return cursor;
}

bool Matcher::advance(Cursor& cursor, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  revive(cursor);
  for (const char byte : bytes) cursor.configuration_ = next(cursor.configuration_, static_cast<uint8_t>(byte));
  if (dead(cursor)) return false;
  cursor.text_ += bytes;
  return true;
}

uint32_t Matcher::reach(Cursor& cursor, std::string_view ahead) {
  revive(cursor);
  uint32_t configuration = cursor.configuration_;
  for (const char byte : ahead) configuration = next(configuration, static_cast<uint8_t>(byte));
  return configuration;
}

Matcher::Standing Matcher::standing_of(uint32_t configuration) const {
  const Configuration& reached = configurations_[configuration];
  if (reached.places.empty()) return reached.accepting ? Standing::exhausted : Standing::dead;
  return reached.accepting ? Standing::complete : Standing::open;
}

Matcher::Standing Matcher::standing(Cursor& cursor, std::string_view ahead) {
  const std::lock_guard lock(mutex_);
  return standing_of(reach(cursor, ahead));
}

Matcher::Standing Matcher::mask(Cursor& cursor, std::string_view ahead, std::span<uint32_t> bits) {
  const std::lock_guard lock(mutex_);
  const uint32_t configuration = reach(cursor, ahead);
  if (configuration == dead_configuration) return Standing::dead;
  auto found = masks_.find(configuration);
  if (found == masks_.end()) {
    if (masks_.size() >= most_masks_) masks_.clear();
    found = masks_.emplace(configuration, compute_mask(configuration)).first;
  }
  const size_t words = std::min(bits.size(), found->second.size());
  std::copy_n(found->second.begin(), words, bits.begin());
  std::fill(bits.begin() + static_cast<std::ptrdiff_t>(words), bits.end(), 0U);
  return standing_of(configuration);
}

bool Matcher::matches(std::string_view text) {
  Cursor cursor = begin();
  const Standing reached = standing(cursor, text);
  return reached == Standing::complete || reached == Standing::exhausted;
}

/// Adds every token of the trie that the configuration can read.
void Matcher::walk(const TokenTrie& trie, uint32_t configuration, TokenMask& mask) {
  walk_stack_.resize(trie.depth() + 1);
  walk_stack_[0] = configuration;
  const std::span<const TokenTrie::Node> nodes = trie.nodes();
  const std::vector<int32_t>& tokens = trie.tokens();
  for (size_t i = 0; i < trie.size();) {
    const TokenTrie::Node& node = nodes[i];
    const uint32_t reached = next(walk_stack_[node.depth - 1U], node.byte);
    if (reached == dead_configuration) {
      i = node.after;
      continue;
    }
    walk_stack_[node.depth] = reached;
    for (uint32_t t = node.first_token; t < nodes[i + 1].first_token; ++t) {
      const auto id = static_cast<size_t>(tokens[t]);
      mask[id / 32] |= 1U << (id % 32);
    }
    ++i;
  }
}

/// The characters that a JSON string still has room for when its next one is read at this place; 0: it is no such
/// place.
uint64_t Matcher::room_in_string(const Place& at) const {
  if (automaton_.json_character_start != at.state || at.parent == no_place) return 0;
  const Place& parent = places_[at.parent];
  const State& state = automaton_.states[parent.state];
  if (state.loop >= 0) {
    const Loop& loop = automaton_.loops[static_cast<size_t>(state.loop)];
    // The count includes the character to be read.
    return loop.most == unbounded ? unbounded : uint64_t{loop.most} - parent.count + 1;
  }
  const bool again = std::any_of(state.calls.begin(), state.calls.end(), [&](const CallEdge& call) {
    return call.target == parent.state && automaton_.starts[call.rule] == at.state;
  });
  return again ? unbounded : 1;
}

/// Inside a JSON string most of the vocabulary is allowed. Those tokens need no walk: the plain ones of no more
/// characters than the string still has room for are read by the string's place, whatever surrounds it.
TokenMask Matcher::compute_mask(uint32_t configuration_id) {
  const std::vector<uint32_t> places = configurations_[configuration_id].places;
  std::vector<uint32_t> others;
  uint64_t room = 0;
  for (const uint32_t id : places) {
    const uint64_t here = room_in_string(places_[id]);
    room = std::max(room, here);
    // One character and then something else: what follows may be plain too.
    if (here <= 1) others.push_back(id);
  }
  TokenMask mask(vocabulary_->words(), 0U);
  if (room == 0) {
    walk(vocabulary_->all(), configuration_id, mask);
    return mask;
  }
  mask = vocabulary_->plain(room);
  walk(vocabulary_->not_plain(), configuration_id, mask);
  // The rest of the stacks may read plain tokens too; they do only if one of them reads a plain byte.
  std::erase_if(others, [this](uint32_t id) {
    const auto& edges = automaton_.states[places_[id].state].bytes;
    return std::all_of(edges.begin(), edges.end(), [](const ByteEdge& edge) {
      return edge.first == edge.last && (edge.first == '"' || edge.first == '\\' || edge.first < 0x20);
    });
  });
  if (!others.empty()) walk(vocabulary_->all(), configuration(std::move(others), false), mask);
  return mask;
}

}  // namespace tensorfold::text::grammar
