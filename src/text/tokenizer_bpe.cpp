#include "text/tokenizer_bpe.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer_byte_level.h"

namespace tensorfold::text {
namespace {

constexpr std::size_t cache_slots = 32768;
constexpr std::size_t longest_short_word = 48;  // symbols; longer words take the queue
constexpr std::size_t neighbour_bits = std::size_t{1} << 20;
constexpr std::uint64_t no_pair = UINT64_MAX;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

std::size_t pair_hash(std::uint64_t key) {
  const std::uint64_t hash = key * 0x9E3779B97F4A7C15ULL;
  return hash ^ hash >> 32;
}

std::size_t neighbour_bit(char32_t left, char32_t right) {
  return pair_hash(static_cast<std::uint64_t>(left) << 32 | right) % neighbour_bits;
}

}  // namespace

BpeScratch::BpeScratch() : cache_(cache_slots) {}

BpeModel::BpeModel(Vocabulary vocabulary, std::span<const BpeMerge> merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)) {
  byte_ids_.fill(-1);
  fallback_ids_.fill(-1);
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string character;
    append_utf8(character, byte_level_character(static_cast<unsigned char>(byte)));
    byte_ids_[byte] = vocabulary_.find(character).value_or(-1);
    fallback_ids_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
  fallback_complete_ = options_.byte_fallback && std::count(fallback_ids_.begin(), fallback_ids_.end(), -1) == 0;
  add_merges(merges);
  find_cuts();
}

void BpeModel::add_merges(std::span<const BpeMerge> merges) {
  pairs_.resize(std::bit_ceil(std::max<std::size_t>(16, merges.size() * 2)));
  const std::size_t mask = pairs_.size() - 1;
  std::string joined;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view left = merges[rank].left;
    const std::string_view right = merges[rank].right;
    joined = left;
    if (right.size() < options_.continuing_prefix.size()) {
      fail(ErrorKind::corrupt_file, "tokenizer.json: merge {} ('{}' '{}') lacks the continuing prefix", rank, left,
           right);
    }
    joined += right.substr(options_.continuing_prefix.size());
    const auto id = [&](std::string_view token) {
      const std::optional<std::int32_t> found = vocabulary_.find(token);
      if (!found) {
        fail(ErrorKind::corrupt_file,
             "tokenizer.json: merge {} ('{}' '{}') needs the token '{}', which the vocabulary lacks", rank, left, right,
             token);
      }
      return *found;
    };
    const std::uint64_t key = pair_key(id(left), id(right));
    std::size_t slot = pair_hash(key) & mask;
    while (pairs_[slot].key != no_pair && pairs_[slot].key != key) slot = (slot + 1) & mask;
    pairs_[slot] = {key, static_cast<std::uint32_t>(rank), id(joined)};
    const bool joins_bytes = options_.byte_fallback && (left.starts_with("<0x") || right.starts_with("<0x"));
    if (joins_bytes) fallback_complete_ = false;  // then an unknown character may merge with its neighbours
  }
}

// Two characters that stand side by side in no token can never end up in one token, so a long word may be cut between
// them and its parts encoded (and cached) alone. Whole words that are tokens (ignore_merges) would see the difference,
// and so would marks of a word's inside or end.
void BpeModel::find_cuts() {
  if (options_.ignore_merges || !options_.continuing_prefix.empty() || !options_.end_of_word_suffix.empty()) return;
  cuts_ = true;
  neighbours_.assign(neighbour_bits / 64, 0);
  for (std::size_t id = 0; id < vocabulary_.id_limit(); ++id) {
    const std::optional<std::string_view> token = vocabulary_.token(static_cast<std::int32_t>(id));
    if (!token) continue;
    std::size_t position = 0;
    char32_t left = next_code_point(*token, position);
    while (position < token->size()) {
      char32_t right = next_code_point(*token, position);
      const std::size_t bit = neighbour_bit(left, right);
      neighbours_[bit / 64] |= std::uint64_t{1} << bit % 64;
      left = right;
    }
  }
}

const BpeModel::Pair* BpeModel::find_pair(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  const std::size_t mask = pairs_.size() - 1;
  std::size_t slot = pair_hash(key) & mask;
  while (pairs_[slot].key != key) {
    if (pairs_[slot].key == no_pair) return nullptr;
    slot = (slot + 1) & mask;
  }
  return &pairs_[slot];
}

std::optional<std::int32_t> BpeModel::find_character(std::string_view character) const {
  return vocabulary_.find(character);
}

// The end of the part of `word` that begins at `position`: the next place that no token spans, or the word's end.
std::size_t BpeModel::next_cut(std::string_view word, std::size_t position) const {
  const auto read = [&](std::size_t& at) {
    return options_.byte_level ? byte_level_character(static_cast<unsigned char>(word[at++]))
                               : next_code_point(word, at);
  };
  const auto is_known = [&](std::string_view character) {
    return options_.byte_level ? byte_ids_[static_cast<unsigned char>(character[0])] >= 0
                               : fallback_complete_ || find_character(character).has_value();
  };
  std::size_t left_begin = position;
  char32_t left = read(position);
  while (position < word.size()) {
    const std::size_t right_begin = position;
    const char32_t right = read(position);
    const std::size_t bit = neighbour_bit(left, right);
    if ((neighbours_[bit / 64] >> bit % 64 & 1U) == 0 && is_known(word.substr(left_begin, right_begin - left_begin)) &&
        is_known(word.substr(right_begin, position - right_begin))) {
      return right_begin;
    }
    left = right;
    left_begin = right_begin;
  }
  return position;
}

void BpeModel::encode_word(std::string_view word, BpeScratch& scratch, std::vector<std::int32_t>& out) const {
  if (!cuts_ || word.size() <= BpeScratch::longest_cached_word) {
    encode_uncut(word, scratch, out);
    return;
  }
  for (std::size_t begin = 0; begin < word.size();) {
    const std::size_t end = next_cut(word, begin);
    encode_uncut(word.substr(begin, end - begin), scratch, out);
    begin = end;
  }
}

void BpeModel::encode_uncut(std::string_view word, BpeScratch& scratch, std::vector<std::int32_t>& out) const {
  if (word.empty()) return;
  if (word.size() > BpeScratch::longest_cached_word) {
    encode_fresh(word, scratch, out);
    return;
  }
  const std::uint64_t hash = hash_bytes(word);
  BpeScratch::CachedWord& slot = scratch.cache_[hash % cache_slots];
  if (slot.hash == hash && slot.length == word.size() && std::equal(word.begin(), word.end(), slot.text.begin())) {
    out.insert(out.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
    return;
  }
  const std::size_t before = out.size();
  encode_fresh(word, scratch, out);
  const std::size_t count = out.size() - before;
  if (count > BpeScratch::most_cached_ids) return;
  slot.hash = hash;
  slot.length = static_cast<std::uint8_t>(word.size());
  slot.count = static_cast<std::uint8_t>(count);
  std::copy(word.begin(), word.end(), slot.text.begin());
  std::copy(out.end() - static_cast<std::ptrdiff_t>(count), out.end(), slot.ids.begin());
}

void BpeModel::encode_fresh(std::string_view word, BpeScratch& scratch, std::vector<std::int32_t>& out) const {
  if (options_.ignore_merges) {
    const std::optional<std::int32_t> whole =
        vocabulary_.find(options_.byte_level ? to_byte_level(word) : std::string(word));
    if (whole) {
      out.push_back(*whole);
      return;
    }
  }
  scratch.symbols_.clear();
  const bool plain_bytes =
      options_.byte_level && options_.continuing_prefix.empty() && options_.end_of_word_suffix.empty();
  if (plain_bytes) {
    split_bytes(word, scratch);
  } else if (options_.byte_level) {
    split_characters(to_byte_level(word), scratch);
  } else {
    split_characters(word, scratch);
  }
  if (scratch.symbols_.size() <= longest_short_word) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  for (const BpeScratch::Symbol& symbol : scratch.symbols_) {
    if (symbol.alive != 0) out.push_back(symbol.id);
  }
}

void BpeModel::split_bytes(std::string_view word, BpeScratch& scratch) const {
  for (const char c : word) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (id < 0) {  // a vocabulary without all bytes: take the path that knows unknown tokens
      scratch.symbols_.clear();
      split_characters(to_byte_level(word), scratch);
      return;
    }
    scratch.symbols_.push_back({id, 0, 0, 1});
  }
}

void BpeModel::split_characters(std::string_view word, BpeScratch& scratch) const {
  const auto push = [&](std::int32_t id) { scratch.symbols_.push_back({id, 0, 0, 1}); };
  std::int32_t pending_unknown = -1;
  std::string decorated;
  for (std::size_t position = 0; position < word.size();) {
    const std::size_t begin = position;
    next_code_point(word, position);
    std::string_view character = word.substr(begin, position - begin);
    const bool continues = begin > 0 && !options_.continuing_prefix.empty();
    const bool ends = position == word.size() && !options_.end_of_word_suffix.empty();
    if (continues || ends) {
      decorated = continues ? options_.continuing_prefix : std::string();
      decorated += character;
      if (ends) decorated += options_.end_of_word_suffix;
      character = decorated;
    }
    if (const std::optional<std::int32_t> id = find_character(character)) {
      if (pending_unknown >= 0) push(pending_unknown);
      pending_unknown = -1;
      push(*id);
      continue;
    }
    const auto has_fallback = [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)] >= 0; };
    if (options_.byte_fallback && std::all_of(character.begin(), character.end(), has_fallback)) {
      // A pending unknown token stays pending, as in Hugging Face's code.
      for (const char c : character) push(fallback_ids_[static_cast<unsigned char>(c)]);
      continue;
    }
    if (!options_.unknown_token) continue;  // no token at all: the character is dropped
    const std::optional<std::int32_t> unknown = vocabulary_.find(*options_.unknown_token);
    if (!unknown) {
      fail(ErrorKind::corrupt_file, "tokenizer.json: the unknown token '{}' is not in the vocabulary",
           *options_.unknown_token);
    }
    if (pending_unknown >= 0 && !options_.fuse_unknown) push(pending_unknown);
    pending_unknown = *unknown;
  }
  if (pending_unknown >= 0) push(pending_unknown);
}

// Repeatedly merges the leftmost pair of the lowest rank; quadratic, for few symbols.
void BpeModel::merge_short(BpeScratch& scratch) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols_;
  std::vector<std::uint64_t>& ranks = scratch.ranks_;  // of symbol i and i + 1: rank << 32 | merged id
  const auto rank_of = [&](std::size_t i) {
    const Pair* pair = find_pair(symbols[i].id, symbols[i + 1].id);
    return pair == nullptr ? no_pair
                           : static_cast<std::uint64_t>(pair->rank) << 32 | static_cast<std::uint32_t>(pair->merged);
  };
  ranks.clear();
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) ranks.push_back(rank_of(i));
  while (!ranks.empty()) {
    const auto best = std::min_element(ranks.begin(), ranks.end());
    if (*best == no_pair) return;
    const std::ptrdiff_t place = best - ranks.begin();
    const auto i = static_cast<std::size_t>(place);
    symbols[i].id = static_cast<std::int32_t>(*best & 0xFFFFFFFFU);
    symbols.erase(symbols.begin() + place + 1);
    ranks.erase(best);
    if (i < ranks.size()) ranks[i] = rank_of(i);
    if (i > 0) ranks[i - 1] = rank_of(i - 1);
  }
}

// The same with a linked list and a queue, for many symbols.
void BpeModel::merge_long(BpeScratch& scratch) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols_;
  std::vector<BpeScratch::Candidate>& queue = scratch.queue_;
  const auto later = [](const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const auto at = [&](std::int32_t position) -> BpeScratch::Symbol& {
    return symbols[static_cast<std::size_t>(position)];
  };
  const auto consider = [&](std::int32_t left, bool sift) {
    const Pair* pair = find_pair(at(left).id, at(at(left).next).id);
    if (pair == nullptr) return;
    queue.push_back({pair->rank, static_cast<std::uint32_t>(left), pair->merged});
    if (sift) std::push_heap(queue.begin(), queue.end(), later);
  };
  const auto count = static_cast<std::int32_t>(symbols.size());
  for (std::int32_t i = 0; i < count; ++i) {
    at(i).previous = i - 1;
    at(i).next = i + 1 < count ? i + 1 : -1;
  }
  queue.clear();
  for (std::int32_t i = 0; i + 1 < count; ++i) consider(i, false);
  std::make_heap(queue.begin(), queue.end(), later);
  while (!queue.empty()) {
    const BpeScratch::Candidate best = queue.front();
    std::pop_heap(queue.begin(), queue.end(), later);
    queue.pop_back();
    const auto position = static_cast<std::int32_t>(best.position);
    BpeScratch::Symbol& left = at(position);
    if (left.alive == 0 || left.next < 0) continue;
    BpeScratch::Symbol& right = at(left.next);
    const Pair* pair = find_pair(left.id, right.id);
    if (pair == nullptr || pair->merged != best.merged) continue;  // the neighbours have changed since
    left.id = best.merged;
    right.alive = 0;
    left.next = right.next;
    if (left.next >= 0) at(left.next).previous = position;
    if (left.previous >= 0) consider(left.previous, true);
    if (left.next >= 0) consider(position, true);
  }
}

}  // namespace tensorfold::text
