// The DFlash drafter's network: a small transformer whose context is the target's tapped residual stream and whose
// block of mask tokens is filled in one pass (Qwen3.8-27B spec part B; v1 without convolutions and selector: Gemma 4
// spec 10).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "drafters/dflash_config.h"
#include "format/tensor_store.h"

namespace tensorfold::drafters {

class DflashModel {
 public:
  /// Checks every tensor's name and shape (one Error lists all problems), then loads. `bits` 4 or 8: large matrices are
  /// packed; 0: kept as they are. Plans have at most `max_rows` rows.
  DflashModel(backend::Backend& backend, const DflashConfig& config, const format::TensorStore& store, int32_t bits,
              int32_t max_rows);

  [[nodiscard]] const DflashConfig& config() const { return config_; }
  /// One paged entry a layer: keys and values of context rows.
  [[nodiscard]] backend::CacheLayout cache_layout() const;
  /// Writes the context keys and values of every row of `plan` (keep_all sequences). taps: [rows][taps * hidden].
  void absorb(const backend::Plan& plan, backend::Cache& cache, backend::Tensor taps);
  /// Runs blocks: `hidden` holds the embedded rows and is overwritten; `normed` receives the rows of plan.logit_rows
  /// and, with a selector, `projected` [logit rows][rank] their selector projections.
  void block(const backend::Plan& plan, backend::Cache& cache, backend::Tensor hidden, backend::Tensor normed,
             backend::Tensor projected);

 private:
  struct Sublayer {
    std::unique_ptr<backend::Vector> norm;
    std::unique_ptr<backend::Projection> kernels;  ///< dynamic kernels; null in v1
    std::unique_ptr<backend::Vector> base;
    std::unique_ptr<backend::Projection> in;   ///< q | k | v, or gate | up
    std::unique_ptr<backend::Projection> out;  ///< o, or down
  };
  struct Layer {
    Sublayer attention;
    Sublayer mlp;
    std::unique_ptr<backend::Projection> context;  ///< k | v again, for context rows
    std::unique_ptr<backend::Vector> query_norm;
    std::unique_ptr<backend::Vector> key_norm;
  };

  [[nodiscard]] backend::Attention attention_arguments(backend::Cache& cache, size_t layer) const;
  /// The input of a sublayer's `in` projection, convolved where the drafter has convolutions; leaves the dynamic
  /// kernels.
  backend::Tensor enter(const backend::Plan& plan, const Sublayer& sublayer, backend::Tensor hidden);
  /// hidden += (convolved) output of the sublayer's `out` projection over `inner`.
  void leave(const backend::Plan& plan, const Sublayer& sublayer, backend::Tensor inner, backend::Tensor hidden);

  backend::Backend& backend_;
  DflashConfig config_;
  std::vector<Layer> layers_;
  std::unique_ptr<backend::Projection> fuse_;  ///< fc: taps -> hidden
  std::unique_ptr<backend::Vector> context_norm_;
  std::unique_ptr<backend::Vector> final_norm_;
  std::unique_ptr<backend::Projection> selector_;
  std::unique_ptr<backend::Vector> frequencies_;
  backend::OwnedTensor context_;    ///< [rows][hidden]
  backend::OwnedTensor normed_;     ///< [rows][hidden]
  backend::OwnedTensor convolved_;  ///< [rows][hidden]
  backend::OwnedTensor dynamic_;    ///< [rows][4 * groups]
  backend::OwnedTensor heads_;      ///< [rows][q | k | v]
  backend::OwnedTensor attended_;   ///< [rows][heads * head_dim]
  backend::OwnedTensor inner_;      ///< [rows][intermediate]
};

}  // namespace tensorfold::drafters
