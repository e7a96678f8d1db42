#include "server/generation_fields.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "base/sha256.h"
#include "server/api_error.h"

namespace tensorfold::server {
namespace {

constexpr int64_t most_choices = 8;
constexpr int64_t most_top_logprobs = 20;
constexpr size_t most_stops = 64;
constexpr size_t most_biases = 1024;

/// A field that is refused unless its value asks for nothing.
struct Unsupported {
  const char* name;
  const char* instead = "";  ///< what does the same here
};

constexpr std::array unsupported_fields = {
    Unsupported{"best_of", "use n"},
    Unsupported{"echo"},
    Unsupported{"suffix"},
    Unsupported{"functions", "use tools"},
    Unsupported{"function_call", "use tool_choice"},
    Unsupported{"allowed_token_ids", "use guided_choice or guided_regex"},
    Unsupported{"bad_words", "use logit_bias"},
    Unsupported{"min_tokens"},
    Unsupported{"continue_final_message"},
    Unsupported{"chat_template"},
    Unsupported{"documents"},
    Unsupported{"include_stop_str_in_output"},
    Unsupported{"use_beam_search"},
    Unsupported{"truncate_prompt_tokens"},
    Unsupported{"prompt_logprobs"},
    Unsupported{"logits_processors"},
    Unsupported{"web_search_options"},
};

/// Fields of every dialect that restrict the reply and are honoured.
constexpr std::array honoured_fields = {"stop_token_ids",   "logit_bias",         "frequency_penalty",
                                        "presence_penalty", "repetition_penalty", "repeat_penalty"};

/// Whether the value is one that clients send for "no".
bool asks_for_nothing(const std::string& name, const Json& value) {
  if (value == false || value == 0) return name != "prompt_logprobs" || value == false;
  if (name == "best_of") return value == 1;
  if (name == "function_call") return value == "none" || value == "auto" || value == "";
  if (name == "truncate_prompt_tokens") return value == -1;
  return (value.is_structured() || value.is_string()) && (value.empty() || value == "");
}

std::vector<backend::LogitBias> read_logit_bias(const Json& body, int64_t vocabulary) {
  const Json* object = member(body, "logit_bias");
  if (object == nullptr) return {};
  if (!object->is_object()) throw bad_request("logit_bias must be an object of token ids to numbers", "logit_bias");
  if (object->size() > most_biases) {
    throw bad_request(fmt::format("logit_bias has more than {} entries", most_biases), "logit_bias");
  }
  std::vector<backend::LogitBias> biases;
  for (const auto& [key, value] : object->items()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 || token >= vocabulary) {
      throw bad_request(fmt::format("logit_bias: '{}' is not a token id below {}", key, vocabulary), "logit_bias");
    }
    if (!value.is_number() || value.get<double>() < -100.0 || value.get<double>() > 100.0) {
      throw bad_request("logit_bias values must be numbers between -100 and 100", "logit_bias");
    }
    biases.push_back({token, value.get<float>()});
  }
  return biases;
}

int32_t read_top_logprobs(const Json& body, bool chat) {
  if (!chat) {
    const auto count = integer_field(body, "logprobs", 0, most_top_logprobs);
    return count ? static_cast<int32_t>(*count) : -1;
  }
  const auto top = integer_field(body, "top_logprobs", 0, most_top_logprobs);
  const bool wanted = boolean_field(body, "logprobs").value_or(false);
  if (top && *top > 0 && !wanted) throw bad_request("top_logprobs needs logprobs: true", "top_logprobs");
  return wanted ? static_cast<int32_t>(top.value_or(0)) : -1;
}

std::vector<int32_t> read_stop_tokens(const Json& body, int64_t vocabulary) {
  const Json* list = member(body, "stop_token_ids");
  if (list == nullptr) return {};
  if (!list->is_array() || list->size() > most_stops) {
    throw bad_request(fmt::format("stop_token_ids must be a list of at most {} token ids", most_stops),
                      "stop_token_ids");
  }
  std::vector<int32_t> tokens;
  for (const Json& id : *list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocabulary) {
      throw bad_request(fmt::format("stop_token_ids must be token ids from 0 to {}", vocabulary - 1), "stop_token_ids");
    }
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

/// The first limit that is neither absent, null, 0 nor -1 counts; the last of the names is llama.cpp's.
void read_limit(const Json& body, GenerationFields& fields) {
  for (const char* name : {"max_tokens", "max_completion_tokens", "n_predict"}) {
    const auto limit = integer_field(body, name, -1);
    if (limit.value_or(0) <= 0 || fields.max_tokens) continue;
    fields.max_tokens = static_cast<int32_t>(std::min<int64_t>(*limit, INT32_MAX));
    fields.limit_field = name;
  }
}

std::vector<std::string> read_stops(const Json& body) {
  std::vector<std::string> stops = strings_field(body, "stop");
  if (stops.size() > most_stops) throw bad_request(fmt::format("stop has more than {} strings", most_stops), "stop");
  std::erase(stops, std::string());
  return stops;
}

engine::Priority read_priority(const Json& body) {
  const Json* value = member(body, "priority");
  if (value == nullptr) return engine::Priority::foreground;
  // vLLM's integers: lower is earlier, 0 is ordinary.
  if (value->is_number_integer()) {
    return value->get<int64_t>() > 0 ? engine::Priority::background : engine::Priority::foreground;
  }
  if (*value == "background") return engine::Priority::background;
  if (*value == "foreground" || *value == "default") return engine::Priority::foreground;
  throw bad_request("priority must be \"background\", an integer or absent", "priority");
}

}  // namespace

void copy_restricting_fields(const Json& from, Json& to) {
  copy_members(from, honoured_fields, to);
  for (const Unsupported& field : unsupported_fields) copy_members(from, {{field.name}}, to);
}

void refuse_unsupported_fields(const Json& body) {
  for (const Unsupported& field : unsupported_fields) {
    const Json* value = member(body, field.name);
    if (value == nullptr || asks_for_nothing(field.name, *value)) continue;
    const std::string instead = *field.instead != '\0' ? fmt::format("; {}", field.instead) : "";
    throw bad_request(fmt::format("{} is not supported{}", field.name, instead), field.name);
  }
}

GenerationFields read_generation_fields(const Json& body, const GenerationDefaults& defaults, int64_t vocabulary,
                                        bool chat) {
  GenerationFields fields;
  fields.sampling.temperature = number_field(body, "temperature").value_or(defaults.temperature);
  fields.sampling.top_p = number_field(body, "top_p", 0.0, 1.0).value_or(defaults.top_p);
  const auto top_k = integer_field(body, "top_k").value_or(defaults.top_k);
  fields.sampling.top_k = static_cast<int32_t>(std::clamp<int64_t>(top_k, 0, vocabulary));
  fields.sampling.min_p = number_field(body, "min_p", 0.0, 1.0).value_or(defaults.min_p);
  if (const auto seed = integer_field(body, "seed")) fields.seed = static_cast<uint64_t>(*seed);
  auto repetition = number_field(body, "repetition_penalty", 0.01, 100.0);
  if (!repetition) repetition = number_field(body, "repeat_penalty", 0.01, 100.0);  // llama.cpp's name
  fields.repetition_penalty = static_cast<float>(repetition.value_or(1.0));
  fields.frequency_penalty = static_cast<float>(number_field(body, "frequency_penalty", -2.0, 2.0).value_or(0.0));
  fields.presence_penalty = static_cast<float>(number_field(body, "presence_penalty", -2.0, 2.0).value_or(0.0));
  fields.logit_bias = read_logit_bias(body, vocabulary);
  read_limit(body, fields);
  fields.stop = read_stops(body);
  fields.stop_tokens = read_stop_tokens(body, vocabulary);
  fields.ignore_eos = boolean_field(body, "ignore_eos").value_or(false);
  fields.choices = static_cast<int32_t>(integer_field(body, "n", 1, most_choices).value_or(1));
  fields.stream = boolean_field(body, "stream").value_or(false);
  if (const Json* options = member(body, "stream_options")) {
    if (!options->is_object()) throw bad_request("stream_options must be an object", "stream_options");
    fields.include_usage = boolean_field(*options, "include_usage").value_or(false);
  }
  fields.draft = boolean_field(body, "draft").value_or(true);
  fields.return_token_ids = boolean_field(body, "return_token_ids").value_or(false);
  fields.priority = read_priority(body);
  fields.top_logprobs = read_top_logprobs(body, chat);
  return fields;
}

std::string token_sha(const std::vector<int32_t>& tokens) {
  return to_hex(sha256(fmt::format("{}", fmt::join(tokens, ",")))).substr(0, 12);
}

}  // namespace tensorfold::server
