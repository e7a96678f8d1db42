// Options that every command takes that runs a model: where it runs, how much it may use, how replies are drawn.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "server/generation_fields.h"

namespace tensorfold::cli {

/// Where and how a model runs.
struct RunOptions {
  std::string backend = "auto";
  int32_t device = 0;
  int32_t threads = 0;
  int32_t context = 0;
  std::string parallel = "auto";
  int32_t prefill_rows = 512;
  double decode_share = 0.25;
  double cache_gib = 0.0;
  bool drafts = true;
  std::string drafter = "auto";
  int32_t drafter_bits = 4;
  int32_t mtp_drafts = 4;
  double mtp_confidence = 0.3;
  std::optional<double> prompt_cache_gib;
  int32_t checkpoint_slots = 0;
  double spill_gib = 0.0;
  std::string snapshot_dir;
};

/// What replies get where a request says nothing; unset values come from the checkpoint.
struct ReplyOptions {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int32_t> top_k;
  std::optional<double> min_p;
  int32_t max_tokens = 4096;
  bool thinking = true;
  std::string reasoning_effort;
  int32_t thinking_budget = 0;
};

std::vector<Option> run_options(RunOptions& options);
std::vector<Option> reply_options(ReplyOptions& options);

/// Throws Error(invalid_request) unless `threads` lies between 0 and 1,024.
void check_threads(int32_t threads);
/// Throws Error(invalid_request) for what no reply can be drawn with, such as NaN.
void check_reply_options(const ReplyOptions& options);
/// The checkpoint's own defaults overridden by the command line.
server::GenerationDefaults generation_defaults(const std::string& model_directory, const ReplyOptions& options);

/// Appends `more` to `options`.
void append(std::vector<Option>& options, std::vector<Option> more);

}  // namespace tensorfold::cli
