// Does drafting, sharing, resuming change a byte? Random requests in random circumstances against the same request
// served serially, alone and fresh.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "drafters/drafter.h"
#include "engine/request.h"
#include "engine/schedule_fuzz.h"

namespace tensorfold::engine {

/// Something to ask, as token ids.
struct VerifyPrompt {
  std::string kind;  ///< for the report: "thinking", "no thinking", "tools", ...
  std::vector<int32_t> tokens;
};

/// A set of drafters under one name.
struct VerifyDrafter {
  std::string name;
  std::function<std::vector<std::unique_ptr<drafters::Drafter>>(backend::Backend&, families::Model&)> make;
};

/// A request with the reply it must get.
struct VerifyQuestion {
  std::string kind;
  std::vector<int32_t> prompt;
  backend::SamplingSettings sampling;
  std::vector<int32_t> expected;
};

/// What became of one.
struct VerifyAnswer {
  std::vector<int32_t> tokens;
  int32_t drafted = 0;
  int32_t accepted = 0;
  int32_t cached_tokens = 0;
  std::string error;
};

/// How requests are served: all at once, by an engine of their own.
struct VerifyServing {
  size_t world = 0;
  std::string drafter;  ///< name of one of the drafters, or "scripted 0", "scripted 0.5", "scripted 1", "scripted tree"
  int32_t fixed_drafts = -1;
  int32_t parallel = 1;
  int32_t prefill_rows = 256;
  std::string tier;  ///< "device", "host", "disk": where kept prefixes lie
  uint64_t seed = 1;
  std::vector<VerifyQuestion> known;  ///< replies that scripted drafters know
  std::vector<VerifyQuestion> questions;
};

struct VerifyOptions {
  int32_t requests = 60;
  uint64_t seed = 1;
  int32_t max_tokens = 48;       ///< of a reply
  int32_t most_neighbours = 15;  ///< requests served beside the one that is compared (they are compared too)
  int32_t context = 4096;
  uint64_t memory_budget = 0;            ///< of one engine; 0: its own default
  std::vector<FuzzWorld> worlds = {{}};  ///< one subject is made for each; the first also makes the references
  std::vector<int32_t> end_tokens;
  std::filesystem::path scratch;  ///< a folder for kept prefixes; emptied
  /// Serves in another process that uses the same scratch folder; null: no such tier.
  std::function<std::vector<VerifyAnswer>(const VerifyServing&)> serve_elsewhere;
  std::function<void(const std::string&)> progress;
};

/// From so many requests on, each circumstance that can be met is met, whatever the seed.
constexpr int32_t requests_that_meet_all = 60;

struct VerifyReport {
  int32_t requests = 0;
  int32_t differences = 0;
  std::vector<std::string> first_differences;
  /// How many compared requests met a circumstance; those that could be met and were not stand at 0.
  std::map<std::string, int32_t> met;
  uint64_t drafted = 0;
  uint64_t accepted = 0;
  uint64_t cached_tokens = 0;
  [[nodiscard]] std::vector<std::string> never_met() const;
};

/// Serves at least options.requests requests, in groups whose circumstances go round (drafter, threads, tier, ...: each
/// comes once before any comes again, in random order). Scripted drafters (acceptance 0, 0.5 and 1, chains and trees)
/// are always among the drafters. Throws what loading and starting engines throws.
VerifyReport verify_exact(const FuzzFactory& make, const std::vector<VerifyPrompt>& prompts,
                          const std::vector<VerifyDrafter>& drafters, const VerifyOptions& options);

/// Serves `conversations` conversations of two turns once from every point at which they can resume: the first k tokens
/// are kept, then the whole is asked and must go on from exactly there, for every k.
VerifyReport verify_every_point(const FuzzFactory& make, const std::vector<VerifyPrompt>& prompts,
                                const std::vector<VerifyDrafter>& drafters, const VerifyOptions& options,
                                int32_t conversations);

/// Serves in this process; answers in the order of the questions.
std::vector<VerifyAnswer> serve(FuzzSubject& subject, const std::vector<VerifyDrafter>& drafters,
                                const VerifyOptions& options, const VerifyServing& serving);

}  // namespace tensorfold::engine
