// Text to token ids and back, exactly as Hugging Face's tokenizers library does it for a tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_piece.h"
#include "text/tokenizer_added_tokens.h"

namespace tensorfold::text {

struct EncodeOptions {
  /// Apply the post-processor (for example put a begin-of-text token in front).
  bool add_special_tokens = false;
  /// Which added tokens are read out of trusted text; `not_special` still reads <think> and the like.
  AddedTokenSearch added_tokens = AddedTokenSearch::all;
};

/// A tokenizer. Immutable after loading; every const function may be called from several threads at once.
class Tokenizer {
 public:
  struct State;  ///< what it consists of; for the tokenizer's own sources

  /// Reads `directory`/tokenizer.json and, if it is there, tokenizer_config.json, whose added_tokens_decoder adds what
  /// the first file lacks. Errors: not_found, corrupt_file (what is wrong, and where), unsupported (a component that we
  /// do not know, by name).
  static Tokenizer load(const std::string& directory);

  /// The same from the files' contents; an empty `config_json` means that there is no such file.
  static Tokenizer parse(std::string tokenizer_json, std::string config_json = {});

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Ids of a text that is trusted as a whole: added tokens in it are read. Bytes that are not UTF-8 become U+FFFD.
  /// Error invalid_request for texts of 1 GiB or more.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// Ids of the joined texts of `pieces`. In an untrusted piece no added token is read, not even partly: its text
  /// becomes ordinary tokens, whatever it says. Apart from that, the borders of pieces leave no trace.
  [[nodiscard]] std::vector<std::int32_t> encode(std::span<const TextPiece> pieces,
                                                 const EncodeOptions& options = {}) const;

  /// Text of `ids`; ids without a token add nothing. Bytes that are not UTF-8 become U+FFFD.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  /// The bytes an id adds to a text when it is not the first (empty for an id without a token). They need not be UTF-8.
  [[nodiscard]] std::string token_bytes(std::int32_t id) const;

  /// The token as tokenizer.json writes it; an added token that is looked for in normalised text as normalised.
  [[nodiscard]] std::optional<std::string_view> token(std::int32_t id) const;
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const;

  /// Ids lie in [0, vocabulary_size()). The model's logits may have more entries (padding).
  [[nodiscard]] std::size_t vocabulary_size() const;

  /// Whether an id is an added token flagged `special`, which decoding can skip.
  [[nodiscard]] bool is_special(std::int32_t id) const;
  /// Whether an id is an added token of any kind.
  [[nodiscard]] bool is_added(std::int32_t id) const;
  /// All added tokens, by id.
  [[nodiscard]] std::span<const AddedToken> added_tokens() const;

  /// A named token of tokenizer_config.json ("bos_token", "eos_token", "pad_token", "unk_token"), as templates use it.
  [[nodiscard]] std::optional<std::string> named_token(std::string_view name) const;

 private:
  friend class StreamingDecoder;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Decodes ids as they come. The returned pieces, joined with the last one from flush(), are Tokenizer::decode of all
/// ids; none of them ends inside a character. The tokenizer must outlive the decoder.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer, bool skip_special = false);
  StreamingDecoder(StreamingDecoder&&) noexcept;
  StreamingDecoder& operator=(StreamingDecoder&&) noexcept;
  ~StreamingDecoder();

  /// Text that `id` makes certain; may be empty.
  std::string push(std::int32_t id);
  /// What is still owed; the decoder can then be used for another text.
  std::string flush();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tensorfold::text
