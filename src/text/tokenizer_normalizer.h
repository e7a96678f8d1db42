// The `normalizer` of tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_json.h"

namespace tensorfold::text {

/// Text whose bytes may be marked as trusted or not.
struct MarkedText {
  std::string text;                 ///< valid UTF-8
  std::vector<std::uint8_t> trust;  ///< one flag a byte when `tracked`, otherwise empty
  bool tracked = false;
};

/// Changes text before it is split. Immutable, safe to share between threads.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Rewrites the text in place; a replaced stretch is trusted only if all of what it replaces was.
  virtual void apply(MarkedText& text) const = 0;
};

/// Builds the normaliser that `value` describes (null: none). Knows NFC, NFD, NFKC, NFKD, Lowercase, Strip,
/// StripAccents, Replace, Prepend and Sequence; any other type is Error unsupported with its name.
std::unique_ptr<const Normalizer> make_normalizer(const JsonValue* value);

}  // namespace tensorfold::text
