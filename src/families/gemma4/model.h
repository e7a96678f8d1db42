// Gemma 4 with experts (26B-A4B), text alone. Mathematics: specs, Gemma 4, 2 and 3.
#pragma once

#include <memory>
#include <vector>

#include "families/gemma4/decoder.h"
#include "families/model_frame.h"

namespace tensorfold::families::gemma4 {

/// Its embeddings are scaled, for drafters too: they were trained on these (spec 10.4, 2).
class Gemma4Model final : public FramedModel {
 public:
  /// `store` has passed check_inventory.
  Gemma4Model(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
              int32_t max_rows);
  [[nodiscard]] backend::CacheLayout cache_layout() const override;

 private:
  void layer(const backend::Plan& plan, backend::Cache& cache, size_t index, backend::Tensor x) override;
  void load(const format::TensorStore& store, const format::Quantization& quantization);

  Config config_;
  Decoder decoder_;
  std::vector<LayerWeights> layers_;
};

ModelInfo describe(const nlohmann::json& config);
/// The registry's entry.
Family family();

}  // namespace tensorfold::families::gemma4
