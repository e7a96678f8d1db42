// What a draw needs of the host: settings and constraints of one row. The arithmetic is backend/keyed_sampling.h,
// one source for every backend.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace tensorfold::backend {

/// Sampling settings of a request. temperature <= 0: greedy. top_k 0: no cut. top_p outside (0, 1): no cut.
struct SamplingSettings {
  double temperature = 0.0;
  int32_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  uint64_t seed = 0;
};

/// How often a token stands in the prompt and reply up to this row, along the row's own path.
struct TokenCount {
  int32_t token = 0;
  int32_t in_prompt = 0;
  int32_t in_reply = 0;
};

struct LogitBias {
  int32_t token = 0;
  float bias = 0.0F;
};

/// Changes to a row's logits before the draw, in this order: repetition (divide positive, multiply negative logits of
/// seen tokens), frequency, presence (reply tokens only), bias. Neutral values change nothing.
struct Penalties {
  float repetition = 1.0F;
  float frequency = 0.0F;
  float presence = 0.0F;
  std::span<const TokenCount> counts;
  std::span<const LogitBias> biases;
};

/// One draw: a pure function of the row's logits and of what stands here.
struct DrawRow {
  int32_t logit_row = 0;  ///< row of the logits tensor
  int64_t position = 0;   ///< absolute position of the token being drawn
  SamplingSettings settings;
  Penalties penalties;
  std::span<const uint32_t> mask;  ///< one bit a token, set = allowed; empty: all allowed
  int32_t forced = -1;             ///< >= 0: this token, whatever the logits say
  int32_t top_logprobs = -1;       ///< >= 0: report the drawn token's share and this many best (at most 20)
};

/// A token and the natural logarithm of its share.
struct RankedToken {
  int32_t token = -1;
  float logprob = 0.0F;
};

/// What came out. All but `token` only with DrawRow::top_logprobs >= 0: shares at temperature 1 of the row's logits as
/// the model gave them (before penalties, mask and cuts).
struct Drawn {
  static constexpr int32_t most_logprobs = 20;
  int32_t token = -1;
  float probability = 0.0F;  ///< of `token`: a draft's confidence
  float logprob = 0.0F;      ///< its logarithm
  int32_t ranked = 0;        ///< how many of `top` are filled
  std::array<RankedToken, most_logprobs> top{};
};

}  // namespace tensorfold::backend
