// Drafts from the checkpoint's own next-token head (multi-token prediction), chained on the head's own normed output.
//
// Entry i of the head holds the target's hidden row i and the token at i + 1; it drafts position i + 2. Entries lie in
// the slots of their index, absorbed rows first; chained entries stand behind them and are overwritten by the next
// absorb. After a resume the entry before the first new row is whatever its page holds: drafts may differ there,
// replies never.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "drafters/drafter.h"
#include "drafters/waiting_rows.h"
#include "families/model.h"

namespace tensorfold::drafters {

struct MtpOptions {
  int32_t most = 4;          ///< drafts a chain has at most
  float confidence = 0.30F;  ///< a later draft whose own probability is below this ends the chain
};

class MtpDrafter : public Drafter {
 public:
  /// `model` has a draft head; both outlive the drafter.
  MtpDrafter(backend::Backend& backend, families::Model& model, const MtpOptions& options);
  [[nodiscard]] std::string_view name() const override { return "mtp"; }
  [[nodiscard]] TargetOutputs wants() const override { return {.hidden = true, .tap_layers = {}}; }
  [[nodiscard]] backend::CacheLayout cache_layout() const override;
  void attach(backend::Cache* cache) override { cache_ = cache; }
  void open(int32_t lane, std::span<const int32_t> context, int32_t cached) override;
  void close(int32_t lane) override;
  void absorb(std::span<const KeptRows> kept, backend::Tensor hidden, backend::Tensor taps) override;
  [[nodiscard]] int32_t waiting_rows(int32_t lane) const override { return waiting_.count(lane); }
  [[nodiscard]] int32_t most_drafts() const override { return options_.most; }
  void propose(std::span<const DraftRequest> requests, std::span<Draft> out) override;

 private:
  using Row = WaitingRows::Row;
  struct Lane {
    bool proposed = false;
    std::vector<int32_t> pages;  ///< as of the last kept row
  };
  /// A lane inside a propose call.
  struct Chain {
    size_t request;
    int32_t position;    ///< of the row that drafted last
    int32_t hidden_row;  ///< its row in the head's output
    Draft* draft;
  };

  /// Runs the head over rows that waited; logits for the last rows of the lanes in `requests`. Returns one Chain each.
  std::vector<Chain> read(const std::vector<Row>& waited, std::span<const DraftRequest> requests, std::span<Draft> out);
  /// Runs it over some of them, in this order.
  backend::Plan run_rows(std::span<const Row> rows, std::span<const bool> wanted);
  /// Draws one token a chain from the logits of the last head forward and drops chains that end.
  void extend_chains(const backend::Plan& plan, std::span<const DraftRequest> requests, std::vector<Chain>& chains);

  backend::Backend& backend_;
  families::Model& model_;
  MtpOptions options_;
  backend::Cache* cache_ = nullptr;
  WaitingRows waiting_;           ///< hidden rows; a row's position is its entry
  backend::OwnedTensor inputs_;   ///< hidden rows going in
  backend::OwnedTensor outputs_;  ///< normed rows coming out
  backend::OwnedTensor logits_;
  std::unordered_map<int32_t, Lane> lanes_;
};

}  // namespace tensorfold::drafters
