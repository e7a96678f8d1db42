// Tokens and their ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold::text {

/// A two-way map between token strings and ids. Built once, then read only.
class Vocabulary {
 public:
  /// Room for `count` tokens of `bytes` bytes together.
  void reserve(std::size_t count, std::size_t bytes);

  /// Adds a token. Error corrupt_file if the string or the id is already taken, or the string is empty.
  void insert(std::string_view token, std::int32_t id);

  [[nodiscard]] std::optional<std::int32_t> find(std::string_view token) const;

  /// The string of an id; nothing for an id without a token.
  [[nodiscard]] std::optional<std::string_view> token(std::int32_t id) const;

  [[nodiscard]] std::size_t size() const { return count_; }
  /// The largest id + 1.
  [[nodiscard]] std::size_t id_limit() const { return places_.size(); }

 private:
  struct Place {
    std::uint32_t offset = 0;
    std::uint32_t length = 0;  // 0: no token
  };
  [[nodiscard]] std::string_view text(Place place) const {
    return std::string_view(texts_).substr(place.offset, place.length);
  }
  [[nodiscard]] std::size_t slot_of(std::string_view token) const;
  void grow(std::size_t slots);

  std::string texts_;
  std::vector<Place> places_;        // by id
  std::vector<std::int32_t> slots_;  // open addressing, id or -1; size is a power of two
  std::size_t count_ = 0;
};

/// A fast hash of bytes, for tables of ours (not stable between versions, not safe against attackers).
std::uint64_t hash_bytes(std::string_view bytes);

}  // namespace tensorfold::text
