// Sets of Unicode characters, the letters that grammars are made of.
#pragma once

#include <initializer_list>
#include <vector>

namespace tensorfold::text::grammar {

struct CharacterRange {
  char32_t first;
  char32_t last;  ///< inclusive
  friend bool operator==(const CharacterRange&, const CharacterRange&) = default;
};

/// Sorted ranges without overlap. Surrogates are never members: they are no characters of a text.
class CharacterSet {
 public:
  CharacterSet() = default;
  CharacterSet(std::initializer_list<CharacterRange> ranges);

  static CharacterSet all();

  void add(char32_t first, char32_t last);
  void add(const CharacterSet& other);
  [[nodiscard]] CharacterSet complement() const;
  [[nodiscard]] CharacterSet intersected(const CharacterSet& other) const;
  [[nodiscard]] bool contains(char32_t character) const;
  [[nodiscard]] bool empty() const { return ranges_.empty(); }
  [[nodiscard]] const std::vector<CharacterRange>& ranges() const { return ranges_; }
  friend bool operator==(const CharacterSet&, const CharacterSet&) = default;

 private:
  std::vector<CharacterRange> ranges_;
};

}  // namespace tensorfold::text::grammar
