// The fields that say how a reply is drawn and when it ends, shared by every dialect, and the defaults they override.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/draw.h"
#include "engine/request.h"
#include "server/json_body.h"

namespace tensorfold::server {

/// What a request gets where it says nothing: generation_config.json, then the command line.
struct GenerationDefaults {
  double temperature = 1.0;
  double top_p = 1.0;
  int32_t top_k = 0;
  double min_p = 0.0;
  int32_t max_tokens = 4096;  ///< capped by the room in the context
  bool thinking = true;
  std::string reasoning_effort;  ///< empty: the template's own
  int32_t thinking_budget = 0;   ///< 0: none
};

/// Checked fields of one request.
struct GenerationFields {
  backend::SamplingSettings sampling;  ///< seed filled later, see `seed`
  std::optional<uint64_t> seed;        ///< absent: derived from the prompt
  float repetition_penalty = 1.0F;
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  std::vector<backend::LogitBias> logit_bias;
  std::optional<int32_t> max_tokens;       ///< absent: the default, capped by the room
  std::string limit_field = "max_tokens";  ///< that set max_tokens, for messages
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;  ///< end the reply as the model's own end tokens do
  bool ignore_eos = false;
  int32_t choices = 1;
  bool stream = false;
  bool include_usage = false;
  bool draft = true;
  bool return_token_ids = false;
  engine::Priority priority = engine::Priority::foreground;
  int32_t top_logprobs = -1;  ///< -1: none
};

/// Copies the fields that would change or restrict the reply and that every dialect must therefore honour or refuse.
void copy_restricting_fields(const Json& from, Json& to);

/// Throws ApiError (400) for the first field that asks for what is not done here.
void refuse_unsupported_fields(const Json& body);

/// Reads and checks the fields. `chat`: logprobs are a switch with top_logprobs beside it; otherwise a count. Throws
/// ApiError (400) that names the field.
GenerationFields read_generation_fields(const Json& body, const GenerationDefaults& defaults, int64_t vocabulary,
                                        bool chat);

/// First 12 hex digits of SHA-256 over the comma-joined ids: the public probe of exactness.
std::string token_sha(const std::vector<int32_t>& tokens);

}  // namespace tensorfold::server
