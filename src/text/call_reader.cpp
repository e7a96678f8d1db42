#include "text/call_reader.h"

#include <algorithm>
#include <array>

namespace tensorfold::text {

namespace {

constexpr std::string_view tool_call_tag = "tool_call>";
constexpr std::string_view gemma_opener = "<|tool_call>";
constexpr std::array<std::string_view, 2> dsml_openers = {"<｜DSML｜tool_calls>", "<｜DSML｜ calls>"};
constexpr std::size_t longest_namespace = 32;

char lower(char letter) { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + 32) : letter; }

bool is_name_letter(char letter) {
  const char small = lower(letter);
  return (small >= 'a' && small <= 'z') || (letter >= '0' && letter <= '9') || letter == '_' || letter == '-';
}

/// <tool_call> or <namespace:tool_call>.
CallMarker match_tool_call_tag(std::string_view text) {
  const MarkerMatch plain = match_tag(text.substr(1), tool_call_tag);
  if (plain == MarkerMatch::full) return {plain, tool_call_tag.size() + 1};
  std::size_t colon = 1;
  while (colon < text.size() && is_name_letter(text[colon]) && colon <= longest_namespace) ++colon;
  if (colon == text.size() && colon <= longest_namespace) return {MarkerMatch::partial, 0};
  if (colon == 1 || colon == text.size() || text[colon] != ':') return {plain, 0};
  const MarkerMatch spaced = match_tag(text.substr(colon + 1), tool_call_tag);
  return {spaced, spaced == MarkerMatch::full ? colon + 1 + tool_call_tag.size() : 0};
}

/// Chooses the reader by what follows the opening tag.
class TaggedCallReader : public CallReader {
 public:
  TaggedCallReader(std::size_t position, std::string closer, const OfferedTools& tools)
      : position_(position), closer_(std::move(closer)), tools_(tools) {}

  ReadStatus read(std::string_view block, bool finished) override {
    if (!reader_ && !choose(block)) return finished ? give_text(block.size()) : ReadStatus::more;
    const ReadStatus status = reader_->read(block, finished);
    if (status == ReadStatus::calls) return give_calls(reader_->calls(), reader_->end());
    return status == ReadStatus::text ? give_text(reader_->end()) : status;
  }

  [[nodiscard]] const ToolCall* growing() const override { return reader_ ? reader_->growing() : nullptr; }

 private:
  bool choose(std::string_view block) {
    const std::size_t first = skip_blanks(block, position_);
    if (first == block.size()) return false;
    if (block[first] == '{' || block[first] == '[') {
      reader_ = make_json_reader(first, closer_, tools_);
    } else if (block[first] == '<') {
      reader_ = make_function_reader(first, closer_, tools_);
    } else {
      reader_ = make_argument_pair_reader(first, closer_, tools_);
    }
    return true;
  }

  std::size_t position_;
  std::string closer_;
  const OfferedTools& tools_;
  std::unique_ptr<CallReader> reader_;
};

}  // namespace

MarkerMatch match_tag(std::string_view text, std::string_view tag) {
  const std::size_t size = std::min(text.size(), tag.size());
  for (std::size_t i = 0; i < size; ++i) {
    if (lower(text[i]) != lower(tag[i])) return MarkerMatch::none;
  }
  return size == tag.size() ? MarkerMatch::full : MarkerMatch::partial;
}

std::size_t find_tag(std::string_view text, std::string_view tag, std::size_t from) {
  for (std::size_t at = text.find(tag[0], from); at != std::string_view::npos; at = text.find(tag[0], at + 1)) {
    if (match_tag(text.substr(at), tag) == MarkerMatch::full) return at;
  }
  return std::string_view::npos;
}

std::size_t skip_blanks(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(" \t\r\n", at), text.size());
}

CallMarker match_call_marker(std::string_view text) {
  CallMarker best = match_tool_call_tag(text);
  for (const std::string_view opener : {gemma_opener, dsml_openers[0], dsml_openers[1]}) {
    const MarkerMatch match = match_tag(text, opener);
    if (match == MarkerMatch::full) return {match, opener.size()};
    if (match == MarkerMatch::partial) best.match = std::max(best.match, match);
  }
  return best;
}

std::string call_closer(std::string_view opener) {
  return opener == gemma_opener ? "<tool_call|>" : "</" + std::string(opener.substr(1));
}

std::unique_ptr<CallReader> make_call_reader(std::string_view block, std::size_t marker_size,
                                             const OfferedTools& tools) {
  const std::string_view marker = block.substr(0, marker_size);
  const std::string closer = call_closer(marker);
  if (marker == gemma_opener) return make_gemma_reader(marker_size, tools);
  if (std::find(dsml_openers.begin(), dsml_openers.end(), marker) != dsml_openers.end()) {
    return make_dsml_reader(marker_size, closer, tools);
  }
  return std::make_unique<TaggedCallReader>(marker_size, closer, tools);
}

}  // namespace tensorfold::text
