// What proposes tokens. A drafter only ever changes speed: the engine verifies every proposal against the target's own
// keyed draws, so its arithmetic may be approximate and its state may be stale, and nothing here is part of the law.
//
// A drafter's per-token cache lies in pages that run parallel to the target's: same page ids, same tokens a page, so
// that page tables, sharing, copy on write, eviction and spilling need no second bookkeeping. The engine makes the
// cache from cache_layout() with the target's CacheSize and copies, reads and writes its pages wherever it does so for
// the target's.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "backend/backend.h"

namespace tensorfold::drafters {

/// What the target's forward must leave for a drafter.
struct TargetOutputs {
  bool hidden = false;              ///< final-normed rows
  std::vector<int32_t> tap_layers;  ///< residual stream after these layers
};

/// Rows of the target's last forward that stay, of one lane: a prompt chunk or an accepted path, in path order.
struct KeptRows {
  int32_t lane = 0;
  int32_t first_position = 0;     ///< absolute position of the first row
  std::span<const int32_t> rows;  ///< row indices in the target's outputs
  std::span<const int32_t>
      next_tokens;                 ///< the token after each row; one shorter than rows if the last is not known yet
  std::span<const int32_t> pages;  ///< the lane's page table; reaches the last row's position
};

/// A lane that wants drafts for its next window.
struct DraftRequest {
  int32_t lane = 0;
  std::span<const int32_t>
      context;       ///< prompt and reply; the last token is the pending one, at position context.size() - 1
  int32_t most = 0;  ///< most draft rows wanted
  backend::SamplingSettings sampling;
  std::span<const int32_t> pages;  ///< reaches position context.size() - 1 + most
};

/// A proposal: a tree of tokens below the pending one. Parents precede children.
struct Draft {
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;   ///< index into tokens, -1: the pending token; empty: a chain
  std::vector<float> confidence;  ///< the drafter's own probability of each token given its parent; may be empty
  [[nodiscard]] bool empty() const { return tokens.empty(); }
};

/// Calls come from the engine's thread only. After a target forward the order is: absorb (kept rows of all lanes), then
/// propose (all lanes that decode), before the next target forward overwrites its outputs.
class Drafter {
 public:
  virtual ~Drafter() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual TargetOutputs wants() const { return {}; }
  /// Entries of the parallel cache; empty: none.
  [[nodiscard]] virtual backend::CacheLayout cache_layout() const { return {}; }
  /// Hands over the parallel cache (made from cache_layout()), once, before any lane opens.
  virtual void attach(backend::Cache* /*cache*/) {}
  /// A lane starts with `cached` leading tokens of `context` already absorbed (a resumed prefix; their pages are shared
  /// or restored), or 0.
  virtual void open(int32_t lane, std::span<const int32_t> context, int32_t cached) = 0;
  virtual void close(int32_t lane) = 0;
  /// `hidden` and `taps` are the target's outputs that wants() named.
  virtual void absorb(std::span<const KeptRows> kept, backend::Tensor hidden, backend::Tensor taps) = 0;
  /// Rows of the lane that were kept and that the drafter has yet to read before it can propose.
  [[nodiscard]] virtual int32_t waiting_rows(int32_t /*lane*/) const { return 0; }
  /// Whether a proposal costs the same for any number of drafts (a block), and not more with each (a chain).
  [[nodiscard]] virtual bool proposes_at_once() const { return false; }
  /// The most drafts that it ever proposes.
  [[nodiscard]] virtual int32_t most_drafts() const { return INT32_MAX; }
  /// Fills out[i] for requests[i]; an empty draft is always allowed.
  virtual void propose(std::span<const DraftRequest> requests, std::span<Draft> out) = 0;
  /// What became of a proposal: `accepted` tokens of it stand in the reply.
  virtual void observe(int32_t /*lane*/, const Draft& /*draft*/, int32_t /*accepted*/) {}
};

}  // namespace tensorfold::drafters
