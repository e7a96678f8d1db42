// The `post_processor` of tokenizer.json, as far as it changes ids: which special tokens go around a text.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer_json.h"

namespace tensorfold::text {

/// Ids put before and behind the ids of a text.
struct PostProcessor {
  std::vector<std::int32_t> prefix;
  std::vector<std::int32_t> suffix;
};

/// Builds what `value` describes (null: nothing is added). Knows ByteLevel (which changes only offsets),
/// TemplateProcessing, RobertaProcessing, BertProcessing and Sequence; any other type is Error unsupported with its
/// name.
PostProcessor make_post_processor(const JsonValue* value);

}  // namespace tensorfold::text
