#include "cli/model_options.h"

#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "base/error.h"
#include "format/config.h"

namespace tensorfold::cli {

std::vector<Option> run_options(RunOptions& options) {
  const std::string group = "Engine";
  return {
      {"--backend",
       "NAME",
       "where the model runs; auto takes a GPU when there is one",
       group,
       &options.backend,
       {"auto", "cpu", "cuda"}},
      {"--device", "N", "CUDA device", group, &options.device, {}},
      {"--threads", "N", "CPU threads; 0: one a core", group, &options.threads, {}},
      {"--context",
       "N",
       "prompt and reply tokens of one conversation; 0: as many as the model and memory allow (GLM-5.3-Flash: 2,051)",
       group,
       &options.context,
       {}},
      {"--parallel", "N", "replies made at the same time, or auto: as many as pay", group, &options.parallel, {}},
      {"--prefill-rows", "N", "most prompt tokens in one forward", group, &options.prefill_rows, {}},
      {"--decode-share",
       "F",
       "share of the time that running replies keep while prompts are read",
       group,
       &options.decode_share,
       {}},
      {"--cache-gib",
       "F",
       "memory for caches and kept prefixes; 0: from the machine's memory",
       group,
       &options.cache_gib,
       {}},
      {"--no-drafts", "", "one token a round: the serial reference", group, &options.drafts, {}, true},
      {"--drafter",
       "X",
       "auto: the family's draft model if it is in the cache, else the model's own head; none: only copies from the "
       "context; or a block drafter's MODEL",
       group,
       &options.drafter,
       {}},
      {"--drafter-bits", "N", "of a block drafter's packed weights; 0: as stored", group, &options.drafter_bits, {}},
      {"--mtp-drafts", "N", "most drafts a round of the model's own head; 0: none", group, &options.mtp_drafts, {}},
      {"--mtp-confidence",
       "F",
       "the model's own head stops behind a draft that it believes in less than this",
       group,
       &options.mtp_confidence,
       {}},
      {"--prompt-cache-gib",
       "F",
       "host memory for kept prefixes that left the device; 0: no prefix is kept at all",
       group,
       &options.prompt_cache_gib,
       {}},
      {"--checkpoint-slots",
       "N",
       "kept states beside the running ones; 0: a quarter of the cache memory",
       group,
       &options.checkpoint_slots,
       {}},
      {"--spill-gib",
       "F",
       "disk for kept prefixes, which then survive a restart; 0: none",
       group,
       &options.spill_gib,
       {}},
      {"--snapshot-dir",
       "DIR",
       "where they are kept; default: tensorfold/prefixes in the user's cache",
       group,
       &options.snapshot_dir,
       {}},
  };
}

std::vector<Option> reply_options(ReplyOptions& options) {
  const std::string group = "Replies";
  return {
      {"--temperature", "F", "0 is greedy; default: the checkpoint's", group, &options.temperature, {}},
      {"--top-p", "F", "default: the checkpoint's", group, &options.top_p, {}},
      {"--top-k", "N", "0 is off; default: the checkpoint's", group, &options.top_k, {}},
      {"--min-p", "F", "default: the checkpoint's", group, &options.min_p, {}},
      {"--max-tokens", "N", "tokens of a reply", group, &options.max_tokens, {}},
      {"--thinking", "", "let the model think first (the default)", group, &options.thinking, {}},
      {"--no-thinking", "", "answer at once", group, &options.thinking, {}, true},
      {"--reasoning-effort",
       "LEVEL",
       "how hard to think, where the template knows levels",
       group,
       &options.reasoning_effort,
       {"minimal", "low", "medium", "high", "xhigh", "max"}},
      {"--thinking-budget",
       "N",
       "tokens after which thinking is closed; 0: no budget",
       group,
       &options.thinking_budget,
       {}},
  };
}

void check_threads(int32_t threads) {
  constexpr int32_t kMost = 1024;
  if (threads < 0 || threads > kMost) {
    fail(ErrorKind::invalid_request, "--threads must lie between 0 (one a core) and {}, not {}", kMost, threads);
  }
}

void check_reply_options(const ReplyOptions& options) {
  const double temperature = options.temperature.value_or(0.0);
  if (!(temperature >= 0.0 && std::isfinite(temperature)))
    fail(ErrorKind::invalid_request, "--temperature must be finite and not negative, not {}", temperature);
  for (const auto& [name, value] : {std::pair("--top-p", options.top_p), std::pair("--min-p", options.min_p)}) {
    if (value && !(*value >= 0.0 && *value <= 1.0))
      fail(ErrorKind::invalid_request, "{} must lie between 0 and 1, not {}", name, *value);
  }
  if (options.top_k.value_or(0) < 0)
    fail(ErrorKind::invalid_request, "--top-k must be 0 (off) or more, not {}", *options.top_k);
  if (options.max_tokens < 1)
    fail(ErrorKind::invalid_request, "--max-tokens must be at least 1, not {}", options.max_tokens);
  if (options.thinking_budget < 0) {
    fail(ErrorKind::invalid_request, "--thinking-budget must be 0 (no budget) or more, not {}",
         options.thinking_budget);
  }
}

server::GenerationDefaults generation_defaults(const std::string& model_directory, const ReplyOptions& options) {
  const format::GenerationDefaults own = format::load_config(model_directory).generation;
  server::GenerationDefaults defaults;
  defaults.temperature = options.temperature.value_or(own.temperature.value_or(defaults.temperature));
  defaults.top_p = options.top_p.value_or(own.top_p.value_or(defaults.top_p));
  defaults.top_k = options.top_k.value_or(own.top_k.value_or(defaults.top_k));
  defaults.min_p = options.min_p.value_or(own.min_p.value_or(defaults.min_p));
  defaults.max_tokens = options.max_tokens;
  defaults.thinking = options.thinking;
  defaults.reasoning_effort = options.reasoning_effort;
  defaults.thinking_budget = options.thinking_budget;
  return defaults;
}

void append(std::vector<Option>& options, std::vector<Option> more) {
  options.insert(options.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace tensorfold::cli
