#include "format/config.h"

#include <algorithm>
#include <string>

#include "base/presence.h"
#include "format/json_file.h"

namespace tensorfold::format {
namespace {

using nlohmann::json;

constexpr uint64_t kLargestConfig = 16'000'000;  // per-module quantisation maps run to megabytes

/// eos_token_id is a number, a list of numbers, null or absent.
void add_end_tokens(const json& object, const char* file, std::vector<int32_t>& tokens, ProblemList& problems) {
  const auto found = object.find("eos_token_id");
  if (found == object.end() || found->is_null()) return;
  const json list = found->is_array() ? *found : json::array({*found});
  for (const json& id : list) {
    if (id.is_number_integer() && id >= 0 && id <= INT32_MAX) {
      tokens.push_back(id.get<int32_t>());
    } else {
      problems.add("{} has the eos_token_id {}", file, printable_json(id));
    }
  }
}

void add_config_end_tokens(const json& config, std::vector<int32_t>& tokens, ProblemList& problems) {
  add_end_tokens(config, "config.json", tokens, problems);
  const json& text = text_config(config);
  if (&text != &config) add_end_tokens(text, "config.json", tokens, problems);
}

/// End tokens that the vocabulary does not have would never end a reply.
void check_end_tokens(const json& config, const std::vector<int32_t>& tokens, ProblemList& problems) {
  const auto size = text_config(config).find("vocab_size");
  if (size == text_config(config).end() || !size->is_number_integer()) return;
  for (const int32_t token : tokens) {
    if (*size > 0 && *size <= token)
      problems.add("the eos_token_id {} is not in the vocabulary of {} tokens", token, size->get<int64_t>());
  }
}

void sort_unique(std::vector<int32_t>& tokens) {
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
}

/// A number in [least, most].
template <typename Value>
std::optional<Value> read_number(const json& object, const char* name, double least, double most,
                                 ProblemList& problems) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return std::nullopt;
  const double value = found->is_number() ? found->get<double>() : -1.0;
  if (!(value >= least && value <= most)) {
    problems.add("generation_config.json has the {} {}, not a number from {} to {}", name, printable_json(*found),
                 least, most);
    return std::nullopt;
  }
  return static_cast<Value>(value);
}

void read_sampling(const json& object, GenerationDefaults& defaults, ProblemList& problems) {
  constexpr double kMost = 1e9;
  defaults.temperature = read_number<double>(object, "temperature", 0.0, kMost, problems);
  defaults.top_k = read_number<int32_t>(object, "top_k", 0.0, kMost, problems);
  defaults.top_p = read_number<double>(object, "top_p", 0.0, 1.0, problems);
  defaults.min_p = read_number<double>(object, "min_p", 0.0, 1.0, problems);
  defaults.repetition_penalty = read_number<double>(object, "repetition_penalty", 1e-3, kMost, problems);
  const auto do_sample = object.find("do_sample");
  if (do_sample == object.end() || do_sample->is_null()) return;
  if (!do_sample->is_boolean()) {
    problems.add("generation_config.json has the do_sample {}, not true or false", printable_json(*do_sample));
  }
  if (*do_sample == false) defaults.temperature = 0.0;
  if (*do_sample == true && !defaults.temperature) defaults.temperature = 1.0;
}

}  // namespace

const json& text_config(const json& config) {
  const auto found = config.find("text_config");
  return found != config.end() && found->is_object() ? *found : config;
}

std::vector<int32_t> end_tokens(const json& config) {
  std::vector<int32_t> tokens;
  ProblemList malformed;
  add_config_end_tokens(config, tokens, malformed);
  sort_unique(tokens);
  return tokens;
}

CheckpointConfig load_config(const std::filesystem::path& directory) {
  CheckpointConfig config;
  ProblemList problems;
  config.json = read_json_object(directory / "config.json", kLargestConfig, problems);
  const auto text = config.json.find("text_config");
  if (text != config.json.end() && !text->is_null() && !text->is_object())
    problems.add("config.json: text_config is {}, not an object", printable_json(*text));
  std::vector<int32_t>& tokens = config.generation.end_tokens;
  add_config_end_tokens(config.json, tokens, problems);
  if (const auto path = directory / "generation_config.json"; has_file(path)) {
    const json generation = read_json_object(path, kLargestConfig, problems);
    add_end_tokens(generation, "generation_config.json", tokens, problems);
    read_sampling(generation, config.generation, problems);
  }
  sort_unique(tokens);
  check_end_tokens(config.json, tokens, problems);
  if (!tokens.empty()) config.json["eos_token_id"] = tokens;
  problems.throw_if_any(ErrorKind::corrupt_file, directory.string());
  return config;
}

}  // namespace tensorfold::format
