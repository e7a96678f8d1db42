#include "text/grammar/vocabulary.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

namespace tensorfold::text::grammar {
namespace {

constexpr size_t longest_token = 65535;
/// Plain tokens longer than this are few; they are found by walking, not by a mask of their own.
constexpr size_t most_plain_characters = 64;

/// The characters of a plain token, or nothing.
std::optional<size_t> plain_characters(std::string_view bytes) {
  if (!is_valid_utf8(bytes)) return std::nullopt;
  size_t count = 0;
  for (const char c : bytes) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\') return std::nullopt;
    if (!is_utf8_continuation(c)) ++count;
  }
  return count;
}

}  // namespace

TokenTrie::TokenTrie(const std::vector<std::pair<std::string_view, int32_t>>& tokens) {
  nodes_.clear();
  std::vector<uint32_t> path;  // nodes of the token before
  std::string_view before;
  for (const auto& [bytes, id] : tokens) {
    check(!bytes.empty() && bytes.size() <= longest_token, "a token's bytes");
    size_t shared = 0;
    while (shared < before.size() && shared < bytes.size() && before[shared] == bytes[shared]) ++shared;
    while (path.size() > shared) {
      nodes_[path.back()].after = static_cast<uint32_t>(nodes_.size());
      path.pop_back();
    }
    for (size_t depth = shared; depth < bytes.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<uint32_t>(tokens_.size()), static_cast<uint16_t>(depth + 1),
                        static_cast<uint8_t>(bytes[depth])});
    }
    tokens_.push_back(id);
    depth_ = std::max(depth_, bytes.size());
    before = bytes;
  }
  const auto end = static_cast<uint32_t>(nodes_.size());
  for (const uint32_t node : path) nodes_[node].after = end;
  nodes_.push_back({end, static_cast<uint32_t>(tokens_.size()), 0, 0});
}

Vocabulary::Vocabulary(std::vector<std::string> bytes) : bytes_(std::move(bytes)) {
  std::vector<std::pair<std::string_view, int32_t>> sorted;
  sorted.reserve(bytes_.size());
  for (size_t id = 0; id < bytes_.size(); ++id) {
    if (bytes_[id].size() > longest_token) bytes_[id].clear();
    if (!bytes_[id].empty()) sorted.emplace_back(bytes_[id], static_cast<int32_t>(id));
  }
  std::sort(sorted.begin(), sorted.end());
  all_ = TokenTrie(sorted);
  plain_.assign(most_plain_characters + 1, TokenMask(words(), 0U));
  std::erase_if(sorted, [this](const auto& token) {
    const auto count = plain_characters(token.first);
    if (!count || *count > most_plain_characters) return false;
    const auto id = static_cast<size_t>(token.second);
    plain_[*count][id / 32] |= 1U << (id % 32);
    return true;
  });
  for (size_t count = 1; count < plain_.size(); ++count) {
    for (size_t word = 0; word < words(); ++word) plain_[count][word] |= plain_[count - 1][word];
  }
  not_plain_ = TokenTrie(sorted);
}

std::vector<std::string> Vocabulary::ordinary_tokens(const Tokenizer& tokenizer) {
  std::vector<std::string> bytes(tokenizer.vocabulary_size());
  for (size_t id = 0; id < bytes.size(); ++id) {
    if (!tokenizer.is_added(static_cast<int32_t>(id))) bytes[id] = tokenizer.token_bytes(static_cast<int32_t>(id));
  }
  return bytes;
}

const TokenMask& Vocabulary::plain(uint64_t characters) const {
  return plain_[std::min<uint64_t>(characters, most_plain_characters)];
}

}  // namespace tensorfold::text::grammar
