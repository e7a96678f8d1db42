// A drafter that knows the replies: it proposes what is true with a chosen probability and something else otherwise.
// For tests and measurements of windows, commits and policies at any acceptance.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "drafters/drafter.h"

namespace tensorfold::drafters {

struct ScriptOptions {
  double acceptance = 1.0;  ///< chance that a proposed token is the true one, given that those above it are
  int32_t branches = 1;     ///< tokens proposed at each depth; above 1 a tree: wrong siblings beside the main path
  int32_t vocabulary = 0;   ///< wrong tokens are drawn below it
  uint64_t seed = 1;
  bool by_position = false;  ///< the position alone decides whether a token is right, however often it is proposed
};

/// Learn replies first (from serial runs), then decode the same prompts. A context that no learnt sequence continues
/// gets wrong drafts only. learn() may be called from any thread.
class ScriptedDrafter : public Drafter {
 public:
  explicit ScriptedDrafter(const ScriptOptions& options) : options_(options) {}
  /// Prompt and reply of a finished serial run.
  void learn(std::span<const int32_t> prompt, std::span<const int32_t> reply);

  [[nodiscard]] std::string_view name() const override { return "scripted"; }
  void open(int32_t lane, std::span<const int32_t> context, int32_t cached) override;
  void close(int32_t lane) override { lanes_.erase(lane); }
  void absorb(std::span<const KeptRows>, backend::Tensor, backend::Tensor) override {}
  void propose(std::span<const DraftRequest> requests, std::span<Draft> out) override;

 private:
  /// The token after `context`, or -1.
  int32_t truth(std::span<const int32_t> context);
  uint64_t next_random();

  ScriptOptions options_;
  uint64_t draws_ = 0;
  std::mutex mutex_;
  std::vector<std::vector<int32_t>> scripts_;               ///< prompt and reply
  std::unordered_map<int32_t, std::vector<size_t>> lanes_;  ///< scripts that may continue a lane
};

}  // namespace tensorfold::drafters
