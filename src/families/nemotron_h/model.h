// Nemotron-H (Nemotron 3.5 Lightning) with its MTP head. Mathematics: specs, Nemotron 3.5, 2 to 5 and 9.
#pragma once

#include <memory>
#include <vector>

#include "families/model_frame.h"
#include "families/nemotron_h/decoder.h"

namespace tensorfold::families::nemotron_h {

/// Multi-token prediction (spec 9.1): an attention and an expert layer over the joined rows.
class MtpHead final : public JoinedDraftHead {
 public:
  /// What it borrows from its model outlives it.
  MtpHead(WeightLoader& loader, const Layout& layout, const Decoder& decoder, const FrameWeights& frame,
          backend::Backend& backend, int32_t max_rows);
  [[nodiscard]] backend::CacheLayout cache_layout() const override;

 private:
  void layers(const backend::Plan& plan, backend::Cache& cache, backend::Tensor x) override;

  const Decoder& decoder_;
  LayerWeights attention_, experts_;
};

class NemotronModel final : public FramedModel {
 public:
  /// `store` has passed check_inventory.
  NemotronModel(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
                int32_t max_rows);
  [[nodiscard]] backend::CacheLayout cache_layout() const override;
  DraftHead* draft_head() override { return mtp_.get(); }

 private:
  void layer(const backend::Plan& plan, backend::Cache& cache, size_t index, backend::Tensor x) override;
  void load(const format::TensorStore& store, const format::Quantization& quantization);

  Config config_;
  Decoder decoder_;
  std::vector<int32_t> entries_;  ///< of a layer's cache; experts: -1
  std::vector<LayerWeights> layers_;
  std::unique_ptr<MtpHead> mtp_;
};

ModelInfo describe(const nlohmann::json& config);
/// The registry's entry.
Family family();

}  // namespace tensorfold::families::nemotron_h
