#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer_state.h"

namespace tensorfold::text {
namespace {

constexpr std::size_t longest_text = std::size_t{1} << 30;

// Encodes one text: cut at added tokens, normalise, cut again, split into words, merge.
class Encoder {
 public:
  Encoder(const Tokenizer::State& state, const EncodeOptions& options)
      : state_(state), options_(options), scratch_(state.scratch.take()) {}
  ~Encoder() { state_.scratch.give_back(std::move(scratch_)); }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  std::vector<std::int32_t> run(const MarkedText& text) {
    if (text.text.size() >= longest_text)
      fail(ErrorKind::invalid_request, "a text of 1 GiB or more cannot be tokenized");
    if (options_.add_special_tokens) ids_ = state_.post_processor.prefix;
    const AddedTokenSearch search = any_trusted(text) ? options_.added_tokens : AddedTokenSearch::none;
    state_.raw_finder.cut(text.text, text.trust, search, segments_);
    for (const TextSegment& segment : segments_) {
      if (segment.id) {
        ids_.push_back(*segment.id);
      } else {
        encode_between(text, segment, search);
      }
    }
    if (options_.add_special_tokens) {
      ids_.insert(ids_.end(), state_.post_processor.suffix.begin(), state_.post_processor.suffix.end());
    }
    return std::move(ids_);
  }

 private:
  static bool any_trusted(const MarkedText& text) {
    return !text.tracked ||
           std::any_of(text.trust.begin(), text.trust.end(), [](std::uint8_t flag) { return flag != 0; });
  }

  // Text between the tokens that are found before normalisation.
  void encode_between(const MarkedText& text, const TextSegment& segment, AddedTokenSearch search) {
    const std::size_t length = segment.end - segment.begin;
    const bool at_start = segment.begin == 0;
    const bool searches_again = !state_.normalized_finder.empty() && search != AddedTokenSearch::none;
    const std::string_view part = std::string_view(text.text).substr(segment.begin, length);
    if (!state_.normalizer && !searches_again) {
      encode_words(part, at_start);
      return;
    }
    MarkedText normal{std::string(part), {}, text.tracked && searches_again};
    if (normal.tracked) {
      const auto from = text.trust.begin() + static_cast<std::ptrdiff_t>(segment.begin);
      normal.trust.assign(from, from + static_cast<std::ptrdiff_t>(length));
    }
    if (state_.normalizer) state_.normalizer->apply(normal);
    if (!searches_again) {
      encode_words(normal.text, at_start);
      return;
    }
    std::vector<TextSegment> parts;
    state_.normalized_finder.cut(normal.text, normal.trust, search, parts);
    for (const TextSegment& inner : parts) {
      if (inner.id) {
        ids_.push_back(*inner.id);
      } else {
        encode_words(std::string_view(normal.text).substr(inner.begin, inner.end - inner.begin),
                     at_start && inner.begin == 0);
      }
    }
  }

  void encode_words(std::string_view text, bool at_start) {
    PreTokenizedText words(text, at_start);
    for (const auto& step : state_.pre_tokenizer.steps) step->apply(words);
    for (const WordSpan word : words.words) {
      state_.model.encode_word(words.text().substr(word.begin, word.end - word.begin), *scratch_, ids_);
    }
  }

  const Tokenizer::State& state_;
  const EncodeOptions& options_;
  std::unique_ptr<BpeScratch> scratch_;
  std::vector<TextSegment> segments_;
  std::vector<std::int32_t> ids_;
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  return Encoder(*state_, options).run({replace_invalid_utf8(text), {}, false});
}

std::vector<std::int32_t> Tokenizer::encode(std::span<const TextPiece> pieces, const EncodeOptions& options) const {
  MarkedText joined;
  joined.tracked = !std::all_of(pieces.begin(), pieces.end(), [](const TextPiece& piece) { return piece.trusted; });
  for (const TextPiece& piece : pieces) {
    joined.text += replace_invalid_utf8(piece.text);
    if (joined.tracked) joined.trust.resize(joined.text.size(), piece.trusted ? 1 : 0);
  }
  return Encoder(*state_, options).run(joined);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  StreamingDecoder decoder(*this, skip_special);
  std::string text;
  for (const std::int32_t id : ids) text += decoder.push(id);
  return text + decoder.flush();
}

std::string Tokenizer::token_bytes(std::int32_t id) const {
  const std::optional<std::string_view> found = state_->token(id);
  return found ? decode_token(state_->decoder, *found, false) : std::string();
}

std::optional<std::string_view> Tokenizer::token(std::int32_t id) const { return state_->token(id); }

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  if (const std::optional<std::int32_t> id = state_->model.vocabulary().find(token)) return id;
  const auto added = state_->added_ids.find(token);
  return added == state_->added_ids.end() ? std::nullopt : std::optional(added->second);
}

std::size_t Tokenizer::vocabulary_size() const {
  return std::max(state_->model.vocabulary().id_limit(), state_->added_index.size());
}

bool Tokenizer::is_special(std::int32_t id) const {
  const AddedToken* added = state_->find_added(id);
  return added != nullptr && added->special;
}

bool Tokenizer::is_added(std::int32_t id) const { return state_->find_added(id) != nullptr; }

std::span<const AddedToken> Tokenizer::added_tokens() const { return state_->added; }

std::optional<std::string> Tokenizer::named_token(std::string_view name) const {
  const auto found = state_->named_tokens.find(name);
  return found == state_->named_tokens.end() ? std::nullopt : std::optional(found->second);
}

struct StreamingDecoder::State {
  const Tokenizer::State* tokenizer;
  bool skip_special;
  DecoderState decoder;
};

StreamingDecoder::StreamingDecoder(const Tokenizer& tokenizer, bool skip_special)
    : state_(std::make_unique<State>(
          State{tokenizer.state_.get(), skip_special, DecoderState(tokenizer.state_->decoder)})) {}
StreamingDecoder::StreamingDecoder(StreamingDecoder&&) noexcept = default;
StreamingDecoder& StreamingDecoder::operator=(StreamingDecoder&&) noexcept = default;
StreamingDecoder::~StreamingDecoder() = default;

std::string StreamingDecoder::push(std::int32_t id) {
  const AddedToken* added = state_->tokenizer->find_added(id);
  if (added != nullptr && added->special && state_->skip_special) return {};
  const std::optional<std::string_view> token = state_->tokenizer->token(id);
  return token ? state_->decoder.push(*token) : std::string();
}

std::string StreamingDecoder::flush() { return state_->decoder.finish(); }

}  // namespace tensorfold::text
