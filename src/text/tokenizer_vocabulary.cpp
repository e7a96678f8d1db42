#include "text/tokenizer_vocabulary.h"

#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace tensorfold::text {

std::uint64_t hash_bytes(std::string_view bytes) {
  constexpr std::uint64_t multiplier = 0x9E3779B97F4A7C15ULL;
  std::uint64_t hash = bytes.size() * multiplier;
  const char* data = bytes.data();
  std::size_t left = bytes.size();
  const auto mix = [&](std::uint64_t word) {
    hash = (hash ^ word) * multiplier;
    hash ^= hash >> 29;
  };
  for (; left >= 8; left -= 8, data += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data, 8);
    mix(word);
  }
  if (left > 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, data, left);
    mix(word);
  }
  hash *= multiplier;
  return hash ^ hash >> 32;
}

void Vocabulary::reserve(std::size_t count, std::size_t bytes) {
  texts_.reserve(bytes);
  places_.reserve(count);
  grow(std::bit_ceil(std::max<std::size_t>(16, count * 2)));
}

void Vocabulary::insert(std::string_view token, std::int32_t id) {
  if (token.empty()) fail(ErrorKind::corrupt_file, "tokenizer.json: the token with id {} is empty", id);
  if ((count_ + 1) * 2 > slots_.size()) grow(std::max<std::size_t>(16, slots_.size() * 2));
  const std::size_t slot = slot_of(token);
  if (slots_[slot] >= 0) {
    fail(ErrorKind::corrupt_file, "tokenizer.json: the token '{}' is listed twice, with ids {} and {}", token,
         slots_[slot], id);
  }
  const auto index = static_cast<std::size_t>(id);
  if (index >= places_.size()) places_.resize(index + 1);
  if (places_[index].length != 0) {
    fail(ErrorKind::corrupt_file, "tokenizer.json: the id {} belongs to two tokens, '{}' and '{}'", id,
         text(places_[index]), token);
  }
  if (texts_.size() + token.size() > std::numeric_limits<std::uint32_t>::max()) {
    fail(ErrorKind::capacity, "tokenizer.json: the vocabulary is larger than 4 GiB");
  }
  places_[index] = {static_cast<std::uint32_t>(texts_.size()), static_cast<std::uint32_t>(token.size())};
  texts_ += token;
  slots_[slot] = id;
  ++count_;
}

std::optional<std::int32_t> Vocabulary::find(std::string_view token) const {
  if (slots_.empty() || token.empty()) return std::nullopt;
  const std::int32_t id = slots_[slot_of(token)];
  return id < 0 ? std::nullopt : std::optional(id);
}

std::optional<std::string_view> Vocabulary::token(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= places_.size()) return std::nullopt;
  const Place place = places_[static_cast<std::size_t>(id)];
  return place.length == 0 ? std::nullopt : std::optional(text(place));
}

std::size_t Vocabulary::slot_of(std::string_view token) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash_bytes(token) & mask;
  while (slots_[slot] >= 0 && text(places_[static_cast<std::size_t>(slots_[slot])]) != token) slot = (slot + 1) & mask;
  return slot;
}

void Vocabulary::grow(std::size_t slots) {
  slots_.assign(slots, -1);
  for (std::size_t id = 0; id < places_.size(); ++id) {
    if (places_[id].length != 0) slots_[slot_of(text(places_[id]))] = static_cast<std::int32_t>(id);
  }
}

}  // namespace tensorfold::text
