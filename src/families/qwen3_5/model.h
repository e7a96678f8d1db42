// The dense Qwen3.5 architecture (Qwen3.8-27B and its relatives) with its MTP head. Mathematics: specs, Qwen3.8-27B A.4
// to A.8.
#pragma once

#include <memory>
#include <vector>

#include "families/model_frame.h"
#include "families/qwen3_5/checkpoint.h"
#include "families/qwen3_5/decoder.h"

namespace tensorfold::families::qwen3_5 {

/// Multi-token prediction (spec A.7): one attention layer over the joined rows.
class MtpHead final : public JoinedDraftHead {
 public:
  /// What it borrows from its model outlives it.
  MtpHead(WeightLoader& loader, const std::string& prefix, const Decoder& decoder, const FrameWeights& frame,
          backend::Backend& backend, int32_t max_rows);
  [[nodiscard]] backend::CacheLayout cache_layout() const override;

 private:
  void layers(const backend::Plan& plan, backend::Cache& cache, backend::Tensor x) override;

  const Decoder& decoder_;
  LayerWeights layer_;
};

class Qwen35Model final : public FramedModel {
 public:
  /// `store` has passed check_inventory.
  Qwen35Model(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
              int32_t max_rows);
  [[nodiscard]] backend::CacheLayout cache_layout() const override;
  DraftHead* draft_head() override { return mtp_.get(); }

 private:
  void layer(const backend::Plan& plan, backend::Cache& cache, size_t index, backend::Tensor x) override;
  void load(const format::TensorStore& store, const format::Quantization& quantization);

  Config config_;
  Decoder decoder_;
  std::vector<LayerWeights> layers_;
  std::unique_ptr<MtpHead> mtp_;
};

ModelInfo describe(const nlohmann::json& config);
/// The registry's entry.
Family family();

}  // namespace tensorfold::families::qwen3_5
