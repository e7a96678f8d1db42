#include "text/tokenizer_added_tokens.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/unicode.h"

namespace tensorfold::text {
namespace {

bool ends_in_word(std::string_view text) {
  if (text.empty()) return false;
  std::size_t position = previous_code_point_start(text, text.size());
  return is_word(next_code_point(text, position));
}

bool begins_with_word(std::string_view text) {
  std::size_t position = 0;
  return !text.empty() && is_word(next_code_point(text, position));
}

// Where the blanks at the end of text[0, end) begin, not before `limit`.
std::size_t blanks_before(std::string_view text, std::size_t end, std::size_t limit) {
  while (end > limit) {
    const std::size_t start = previous_code_point_start(text, end);
    std::size_t position = start;
    if (!is_whitespace(next_code_point(text, position))) break;
    end = start;
  }
  return std::max(end, limit);
}

std::size_t blanks_after(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    std::size_t next = begin;
    if (!is_whitespace(next_code_point(text, next))) break;
    begin = next;
  }
  return begin;
}

}  // namespace

std::int32_t AddedTokenFinder::child(std::int32_t node, unsigned char byte) const {
  const auto& children = nodes_[static_cast<std::size_t>(node)].children;
  const auto found = std::lower_bound(children.begin(), children.end(), byte,
                                      [](const auto& entry, unsigned char value) { return entry.first < value; });
  return found != children.end() && found->first == byte ? found->second : -1;
}

void AddedTokenFinder::add(std::string content, const AddedToken& token) {
  if (content.empty()) return;
  std::int32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    std::int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      nodes_.emplace_back();
      auto& children = nodes_[static_cast<std::size_t>(node)].children;
      const auto place = std::lower_bound(children.begin(), children.end(), byte,
                                          [](const auto& entry, unsigned char value) { return entry.first < value; });
      children.insert(place, {byte, next});
    }
    node = next;
  }
  first_bytes_[static_cast<unsigned char>(content[0])] = true;
  // Two tokens can be looked for as the same normalised text; the first keeps it, as in an Aho-Corasick search.
  Node& end = nodes_[static_cast<std::size_t>(node)];
  if (end.token < 0) end.token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::longest_match(std::string_view text,
                                                                       std::span<const std::uint8_t> trust,
                                                                       std::size_t position) const {
  std::optional<Match> best;
  std::int32_t node = 0;
  for (std::size_t end = position; end < text.size(); ++end) {
    if (!trust.empty() && trust[end] == 0) break;
    node = child(node, static_cast<unsigned char>(text[end]));
    if (node < 0) break;
    const std::int32_t token = nodes_[static_cast<std::size_t>(node)].token;
    if (token >= 0) best = Match{end + 1 - position, &tokens_[static_cast<std::size_t>(token)]};
  }
  return best;
}

void AddedTokenFinder::cut(std::string_view text, std::span<const std::uint8_t> trust, AddedTokenSearch search,
                           std::vector<TextSegment>& out) const {
  out.clear();
  std::size_t done = 0;
  for (std::size_t position = 0; position < text.size() && search != AddedTokenSearch::none;) {
    if (!first_bytes_[static_cast<unsigned char>(text[position])]) {
      ++position;
      continue;
    }
    const std::optional<Match> match = longest_match(text, trust, position);
    if (!match) {
      ++position;
      continue;
    }
    std::size_t begin = position;
    std::size_t end = position + match->length;
    position = end;  // a match that is refused below still hides shorter ones inside it
    if (search == AddedTokenSearch::not_special && match->token->special) continue;
    if (match->token->single_word && (ends_in_word(text.substr(0, begin)) || begins_with_word(text.substr(end))))
      continue;
    // A token that begins with blanks is found even where the token before has taken those blanks, as in Hugging Face's
    // code.
    if (match->token->left_strip) begin = blanks_before(text, begin, done);
    if (match->token->right_strip) end = blanks_after(text, end);
    if (done < begin) out.push_back({done, begin, std::nullopt});
    out.push_back({begin, end, match->token->id});
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), std::nullopt});
}

}  // namespace tensorfold::text
