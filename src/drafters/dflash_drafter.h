// The block drafter behind the drafter interface: context rows are projected as they are kept, one block a lane and
// round.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "drafters/candidate_selector.h"
#include "drafters/dflash_model.h"
#include "drafters/drafter.h"
#include "drafters/waiting_rows.h"
#include "families/model.h"

namespace tensorfold::drafters {

struct DflashOptions {
  int32_t bits = 4;     ///< of the packed matrices; 0: as stored
  bool tree = false;    ///< best-first trees instead of chains
  TreeOptions weights;  ///< of the tree's score
};

class DflashDrafter : public Drafter {
 public:
  /// `config` is the drafter's config.json, `store` its weights. Both `backend` and `model` outlive the drafter.
  DflashDrafter(backend::Backend& backend, families::Model& model, const nlohmann::json& config,
                const format::TensorStore& store, const DflashOptions& options);
  [[nodiscard]] std::string_view name() const override { return "dflash"; }
  [[nodiscard]] TargetOutputs wants() const override {
    return {.hidden = false, .tap_layers = network_.config().tap_layers};
  }
  [[nodiscard]] backend::CacheLayout cache_layout() const override { return network_.cache_layout(); }
  void attach(backend::Cache* cache) override { cache_ = cache; }
  void open(int32_t lane, std::span<const int32_t> context, int32_t cached) override;
  void close(int32_t lane) override;
  void absorb(std::span<const KeptRows> kept, backend::Tensor hidden, backend::Tensor taps) override;
  [[nodiscard]] int32_t waiting_rows(int32_t lane) const override { return waiting_.count(lane); }
  [[nodiscard]] bool proposes_at_once() const override { return true; }
  [[nodiscard]] int32_t most_drafts() const override { return options_.tree ? INT32_MAX : drafted_rows(); }
  void propose(std::span<const DraftRequest> requests, std::span<Draft> out) override;

 private:
  struct Lane {
    bool proposed = false;
    std::vector<int32_t> pages;  ///< as of the last kept row
  };
  /// Projects context rows that waited into the pages.
  void read(std::span<const WaitingRows::Row> rows);
  /// Drafts for as many of `requests` as fit one plan.
  void propose_some(std::span<const DraftRequest> requests, std::span<Draft> out);
  [[nodiscard]] int32_t drafted_rows() const { return network_.config().block_size - 1; }

  backend::Backend& backend_;
  families::Model& model_;
  DflashOptions options_;
  DflashModel network_;
  CandidateSelector selector_;
  backend::Cache* cache_ = nullptr;
  int32_t lanes_a_plan_;
  WaitingRows waiting_;  ///< tapped rows
  backend::OwnedTensor taps_;
  backend::OwnedTensor hidden_;
  backend::OwnedTensor normed_;
  backend::OwnedTensor projected_;
  backend::OwnedTensor logits_;
  std::unordered_map<int32_t, Lane> lanes_;
};

}  // namespace tensorfold::drafters
