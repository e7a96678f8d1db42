// Gemma 4 with experts (26B-A4B), text alone. Mathematics: specs, Gemma 4, 2 and 3.
#pragma once

#include <memory>
#include <vector>

#include "families/gemma4/decoder.h"

namespace tensorfold::families::gemma4 {

class Gemma4Model : public Model {
 public:
  /// `store` has passed check_inventory.
  Gemma4Model(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
              int32_t max_rows);
  [[nodiscard]] const ModelInfo& info() const override { return info_; }
  [[nodiscard]] backend::CacheLayout cache_layout() const override;
  [[nodiscard]] int32_t max_rows() const override { return max_rows_; }
  void forward(const backend::Plan& plan, backend::Cache& cache, const ForwardOutputs& outputs) override;
  /// Scaled embeddings, as the model's own first step: drafters were trained on these (spec 10.4, 2).
  void embed(const backend::Plan& plan, backend::Tensor output) override;
  void head(const backend::Plan& plan, backend::Tensor normed, backend::Tensor logits) override;

 private:
  void load(const format::TensorStore& store, const format::Quantization& quantization);

  ModelInfo info_;
  Config config_;
  backend::Backend& backend_;
  int32_t max_rows_;
  Decoder decoder_;
  std::unique_ptr<backend::Embedding> embedding_;
  std::vector<LayerWeights> layers_;
  VectorPointer final_norm_;
  ProjectionPointer head_;
  backend::OwnedTensor x_;  ///< the residual stream
};

ModelInfo describe(const nlohmann::json& config);
/// The registry's entry.
Family family();

}  // namespace tensorfold::families::gemma4
