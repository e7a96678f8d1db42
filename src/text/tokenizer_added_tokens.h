// Added tokens: strings that are found in text before anything else is done to it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tensorfold::text {

/// An entry of tokenizer.json's `added_tokens`.
struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false;      ///< a control token: decoding can leave it out
  bool left_strip = false;   ///< takes the blanks before it
  bool right_strip = false;  ///< takes the blanks behind it
  bool single_word = false;  ///< found only where no word character touches it
  bool normalized = false;   ///< looked for in the normalised text
};

/// Which added tokens a search may find.
enum class AddedTokenSearch { all, not_special, none };

/// Part of a text: an added token (`id`), or text between them.
struct TextSegment {
  std::size_t begin;
  std::size_t end;
  std::optional<std::int32_t> id;
};

/// Finds a set of added tokens, leftmost first and of those the longest, without overlaps.
class AddedTokenFinder {
 public:
  /// Adds a token that is looked for as `content` (its own, or the normalised one).
  void add(std::string content, const AddedToken& token);

  [[nodiscard]] bool empty() const { return tokens_.empty(); }

  /// Cuts `text` (valid UTF-8) at the tokens. A token is found only where every byte is trusted: `trust` has one flag a
  /// byte, or is empty if all are. Time is linear in the text times at most the longest token's length.
  void cut(std::string_view text, std::span<const std::uint8_t> trust, AddedTokenSearch search,
           std::vector<TextSegment>& out) const;

 private:
  struct Node {
    std::int32_t token = -1;  // index into tokens_
    std::vector<std::pair<unsigned char, std::int32_t>> children;
  };
  struct Match {
    std::size_t length;
    const AddedToken* token;
  };
  [[nodiscard]] std::int32_t child(std::int32_t node, unsigned char byte) const;
  [[nodiscard]] std::optional<Match> longest_match(std::string_view text, std::span<const std::uint8_t> trust,
                                                   std::size_t position) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};
  std::array<bool, 256> first_bytes_{};
};

}  // namespace tensorfold::text
