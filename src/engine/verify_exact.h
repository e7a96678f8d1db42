// Does drafting, sharing, resuming change a byte? Random requests in random circumstances against the same request
// served serially, alone and fresh.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "drafters/drafter.h"
#include "engine/request.h"
#include "engine/schedule_fuzz.h"

namespace tensorfold::engine {

/// Something to ask, as token ids.
struct VerifyPrompt {
  std::string kind;  ///< for the report: "story, thinking", "tools", ...
  std::vector<int32_t> tokens;
};

/// A set of drafters under one name.
struct VerifyDrafter {
  std::string name;
  std::function<std::vector<std::unique_ptr<drafters::Drafter>>(backend::Backend&, families::Model&)> make;
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
  std::function<void(const std::string&)> progress;
};

struct VerifyReport {
  int32_t requests = 0;
  int32_t differences = 0;
  std::vector<std::string> first_differences;
  /// How many compared requests met a circumstance.
  std::map<std::string, int32_t> met;
  uint64_t drafted = 0;
  uint64_t accepted = 0;
  uint64_t cached_tokens = 0;
};

/// Serves at least options.requests requests. Scripted drafters (acceptance 0, 0.5 and 1, chains and trees) are always
/// among the drafters. Throws what loading and starting engines throws.
VerifyReport verify_exact(const FuzzFactory& make, const std::vector<VerifyPrompt>& prompts,
                          const std::vector<VerifyDrafter>& drafters, const VerifyOptions& options);

}  // namespace tensorfold::engine
