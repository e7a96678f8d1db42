// Drafts copied from the context: where the last tokens stood before, what followed them then is proposed now.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "drafters/drafter.h"

namespace tensorfold::drafters {

struct CopyOptions {
  int32_t match = 8;           ///< tokens that must agree before anything is proposed
  int32_t longest_match = 64;  ///< how far back candidates are compared
  int32_t candidates = 16;     ///< most recent occurrences that are compared
  int32_t first_window = 8;    ///< drafts of the first proposal; doubles while proposals land whole
  int32_t widest_window = 64;
  int32_t misses = 4;    ///< proposals in a row with nothing accepted before the lane falls silent
  int32_t silence = 16;  ///< rounds of silence
};

/// An incremental index over one lane's prompt and reply: every run of `match` tokens by its hash.
class CopyIndex {
 public:
  explicit CopyIndex(const CopyOptions& options) : options_(options) {}
  /// Indexes what `context` has beyond the last call. The context only ever grows by appending; the last token, which
  /// may still be replaced by a forced one, is compared but never indexed before it is followed by another.
  void extend(std::span<const int32_t> context);
  /// The position after the best earlier occurrence of the context's tail (the longest agreement, then the latest), or
  /// -1. O(candidates * longest_match).
  [[nodiscard]] int32_t find(std::span<const int32_t> context) const;

 private:
  [[nodiscard]] uint64_t hash(std::span<const int32_t> run) const;

  CopyOptions options_;
  std::unordered_map<uint64_t, std::vector<int32_t>> ends_;  ///< hash -> positions after such a run, ascending
  int32_t indexed_ = 0;                                      ///< runs that end at or before this position are indexed
};

/// Needs no weights and no cache. A copy may run into its own output, so that periodic text is proposed in full.
class CopyDrafter : public Drafter {
 public:
  explicit CopyDrafter(CopyOptions options = {}) : options_(options) {}
  [[nodiscard]] std::string_view name() const override { return "copy"; }
  void open(int32_t lane, std::span<const int32_t> context, int32_t cached) override;
  void close(int32_t lane) override { lanes_.erase(lane); }
  void absorb(std::span<const KeptRows>, backend::Tensor, backend::Tensor) override {}
  void propose(std::span<const DraftRequest> requests, std::span<Draft> out) override;
  void observe(int32_t lane, const Draft& draft, int32_t accepted) override;

 private:
  struct Lane {
    CopyIndex index;
    int32_t window;
    int32_t misses = 0;
    int32_t silent_rounds = 0;
  };

  CopyOptions options_;
  std::unordered_map<int32_t, Lane> lanes_;
};

}  // namespace tensorfold::drafters
