// A model's tokens as a trie over their bytes, so that a grammar looks at shared beginnings once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold::text {
class Tokenizer;
}

namespace tensorfold::text::grammar {

/// One bit a token, token t in bit t mod 32 of word t div 32.
using TokenMask = std::vector<uint32_t>;

/// A trie in the order of a walk that visits a node before its children: a node whose byte does not fit is skipped with
/// all that hangs below it by going on at `after`.
class TokenTrie {
 public:
  struct Node {
    uint32_t after;        ///< first node that does not hang below this one
    uint32_t first_token;  ///< tokens that end here: tokens()[first_token] up to the next node's first_token
    uint16_t depth;        ///< 1 for a token's first byte
    uint8_t byte;
  };
  TokenTrie() = default;
  /// `tokens`: pairs of bytes and ids, sorted by bytes; no empty bytes.
  explicit TokenTrie(const std::vector<std::pair<std::string_view, int32_t>>& tokens);

  /// Ends with a sentinel, which is no node.
  [[nodiscard]] std::span<const Node> nodes() const { return nodes_; }
  [[nodiscard]] size_t size() const { return nodes_.size() - 1; }
  [[nodiscard]] const std::vector<int32_t>& tokens() const { return tokens_; }
  [[nodiscard]] size_t depth() const { return depth_; }

 private:
  std::vector<Node> nodes_ = {{0, 0, 0, 0}};
  std::vector<int32_t> tokens_;
  size_t depth_ = 0;
};

/// Immutable; made once a model and shared by all grammars.
class Vocabulary {
 public:
  /// bytes[t]: what token t adds to a text; empty: no grammar ever allows t (control tokens). Tokens longer than
  /// 65,535 bytes count as empty.
  explicit Vocabulary(std::vector<std::string> bytes);
  /// Ordinary tokens with their bytes; added tokens are left out.
  static std::vector<std::string> ordinary_tokens(const Tokenizer& tokenizer);

  [[nodiscard]] size_t size() const { return bytes_.size(); }
  [[nodiscard]] std::string_view bytes(int32_t token) const {
    return token < 0 || static_cast<size_t>(token) >= bytes_.size() ? std::string_view()
                                                                    : bytes_[static_cast<size_t>(token)];
  }
  /// Words of a mask.
  [[nodiscard]] size_t words() const { return (bytes_.size() + 31) / 32; }
  /// All tokens, and those that are not plain.
  [[nodiscard]] const TokenTrie& all() const { return all_; }
  [[nodiscard]] const TokenTrie& not_plain() const { return not_plain_; }
  /// The plain tokens of at most `characters` characters. A token is plain if it is whole UTF-8 characters that may
  /// stand in a JSON string without an escape: none below U+0020, no quote, no backslash.
  [[nodiscard]] const TokenMask& plain(uint64_t characters) const;

 private:
  std::vector<std::string> bytes_;
  TokenTrie all_;
  TokenTrie not_plain_;
  std::vector<TokenMask> plain_;  ///< [k]: of at most k characters
};

}  // namespace tensorfold::text::grammar
