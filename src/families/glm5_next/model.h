// GLM-5.3-Flash, text alone, with its MTP head. Mathematics: specs, GLM-5.3-Flash, 6 and 7.
#pragma once

#include <memory>
#include <vector>

#include "families/glm5_next/decoder.h"
#include "families/model_frame.h"

namespace tensorfold::families::glm5_next {

/// Multi-token prediction (spec 7): a latent attention and an expert layer over the joined rows, one residual each.
class MtpHead final : public JoinedDraftHead {
 public:
  /// What it borrows from its model outlives it.
  MtpHead(WeightLoader& loader, const Layout& layout, const Decoder& decoder, const FrameWeights& frame,
          backend::Backend& backend, int32_t max_rows);
  [[nodiscard]] backend::CacheLayout cache_layout() const override;

 private:
  /// The head was trained with a zero embedding at its first entry.
  void enter(const backend::Plan& plan, backend::Tensor x) override;
  void layers(const backend::Plan& plan, backend::Cache& cache, backend::Tensor x) override;

  const Decoder& decoder_;
  LayerWeights layer_;
};

class Glm5NextModel final : public FramedModel {
 public:
  /// `store` has passed check_inventory.
  Glm5NextModel(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
                int32_t max_rows);
  [[nodiscard]] backend::CacheLayout cache_layout() const override;
  DraftHead* draft_head() override { return mtp_.get(); }

 private:
  void enter(const backend::Plan& plan, backend::Tensor x) override;
  void layer(const backend::Plan& plan, backend::Cache& cache, size_t index, backend::Tensor x) override;
  backend::Tensor leave(const backend::Plan& plan, backend::Tensor x) override;
  void tap(const backend::Plan& plan, backend::Tensor x, backend::Tensor output) override;
  void load(const format::TensorStore& store, const format::Quantization& quantization);

  Config config_;
  Decoder decoder_;
  std::vector<int32_t> entries_;  ///< the first of a layer's cache
  std::vector<LayerWeights> layers_;
  backend::OwnedTensor left_;  ///< the streams' mean
  std::unique_ptr<MtpHead> mtp_;
};

ModelInfo describe(const nlohmann::json& config);
/// The registry's entry.
Family family();

}  // namespace tensorfold::families::glm5_next
