#include "text/grammar/character_set.h"

#include <algorithm>

namespace tensorfold::text::grammar {
namespace {

constexpr char32_t last_character = 0x10FFFF;
constexpr CharacterRange surrogates = {0xD800, 0xDFFF};

}  // namespace

CharacterSet::CharacterSet(std::initializer_list<CharacterRange> ranges) {
  for (const CharacterRange& range : ranges) add(range.first, range.last);
}

CharacterSet CharacterSet::all() { return {{0, last_character}}; }

void CharacterSet::add(char32_t first, char32_t last) {
  last = std::min(last, last_character);
  if (first < surrogates.first && last >= surrogates.first) {
    add(first, surrogates.first - 1);
    first = surrogates.last + 1;
  }
  if (first >= surrogates.first && first <= surrogates.last) first = surrogates.last + 1;
  if (last >= surrogates.first && last <= surrogates.last) last = surrogates.first - 1;
  if (first > last) return;
  // Everything that overlaps or touches the new range becomes part of it.
  auto begin = std::lower_bound(ranges_.begin(), ranges_.end(), first, [](const CharacterRange& range, char32_t value) {
    return range.last < value && range.last + 1 < value;
  });
  auto end = begin;
  while (end != ranges_.end() && end->first <= last + 1) {
    first = std::min(first, end->first);
    last = std::max(last, end->last);
    ++end;
  }
  begin = ranges_.erase(begin, end);
  ranges_.insert(begin, {first, last});
}

void CharacterSet::add(const CharacterSet& other) {
  if (ranges_.empty()) {
    ranges_ = other.ranges_;
    return;
  }
  for (const CharacterRange& range : other.ranges_) add(range.first, range.last);
}

CharacterSet CharacterSet::complement() const {
  CharacterSet result;
  char32_t next = 0;
  for (const CharacterRange& range : ranges_) {
    if (range.first > next) result.add(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= last_character) result.add(next, last_character);
  return result;
}

CharacterSet CharacterSet::intersected(const CharacterSet& other) const {
  CharacterSet result;
  for (size_t i = 0, j = 0; i < ranges_.size() && j < other.ranges_.size();) {
    const CharacterRange& mine = ranges_[i];
    const CharacterRange& theirs = other.ranges_[j];
    const CharacterRange both = {std::max(mine.first, theirs.first), std::min(mine.last, theirs.last)};
    if (both.first <= both.last) result.ranges_.push_back(both);
    mine.last < theirs.last ? ++i : ++j;
  }
  return result;
}

bool CharacterSet::contains(char32_t character) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [character](const CharacterRange& range) {
    return range.first <= character && character <= range.last;
  });
}

}  // namespace tensorfold::text::grammar
