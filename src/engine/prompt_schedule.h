// Whose prompt rows travel next, and how much of the time running replies keep. Scheduling changes speed, never bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tensorfold::engine {

/// A sequence that fills.
struct PromptWork {
  int32_t rows_left = 0;
  int32_t passed_over = 0;  ///< rounds in which others filled and it did not
  bool background = false;
  uint64_t arrival = 0;
};

/// One that was passed over so often goes first.
constexpr int32_t most_passed_over = 8;

/// The order in which `work` gets rows: passed over too often (oldest first), then foreground before background, then
/// the fewest rows left, then arrival. Indices into `work`.
std::vector<size_t> prompt_order(std::span<const PromptWork> work);

/// After prompt rows took t seconds, running replies get share * t seconds, or 32 rounds, of their own. Debt carries
/// over, unspent time does not.
class DecodeShare {
 public:
  explicit DecodeShare(double share) : share_(share) {}
  void prompt_round(double seconds);
  void decode_round(double seconds);
  [[nodiscard]] bool prompts_may_run() const { return credit_ <= 0.0 || rounds_left_ <= 0; }

 private:
  double share_;
  double credit_ = 0.0;
  int32_t rounds_left_ = 0;
};

}  // namespace tensorfold::engine
