// The dense Qwen3.5 architecture (Qwen3.8-27B and its relatives) with its MTP head. Mathematics: specs, Qwen3.8-27B A.4
// to A.8.
#pragma once

#include <memory>
#include <vector>

#include "families/qwen3_5/checkpoint.h"
#include "families/qwen3_5/decoder.h"

namespace tensorfold::families::qwen3_5 {

/// What the MTP head borrows from its model.
struct SharedWeights {
  const Config& config;
  backend::Backend& backend;
  const Decoder& decoder;
  const backend::Embedding& embedding;
  const backend::Projection& head;
};

/// Multi-token prediction (spec A.7): entry i joins the target's hidden row i with the embedding of the token after it.
class MtpHead : public DraftHead {
 public:
  MtpHead(WeightLoader& loader, const std::string& prefix, const SharedWeights& shared, int32_t max_rows);
  [[nodiscard]] backend::CacheLayout cache_layout() const override;
  void forward(const backend::Plan& plan, backend::Cache& cache, backend::Tensor hidden, backend::Tensor hidden_output,
               backend::Tensor logits) override;

 private:
  SharedWeights shared_;
  VectorPointer embedding_norm_, hidden_norm_, final_norm_;
  ProjectionPointer join_;
  LayerWeights layer_;
  backend::OwnedTensor joined_;  ///< [rows][2 hidden]: embedding half, hidden half
  backend::OwnedTensor x_;
};

class Qwen35Model : public Model {
 public:
  /// `store` has passed check_inventory.
  Qwen35Model(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
              int32_t max_rows);
  [[nodiscard]] const ModelInfo& info() const override { return info_; }
  [[nodiscard]] backend::CacheLayout cache_layout() const override;
  [[nodiscard]] int32_t max_rows() const override { return max_rows_; }
  void forward(const backend::Plan& plan, backend::Cache& cache, const ForwardOutputs& outputs) override;
  DraftHead* draft_head() override { return mtp_.get(); }
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
  std::unique_ptr<MtpHead> mtp_;
};

ModelInfo describe(const nlohmann::json& config);
/// The registry's entry.
Family family();

}  // namespace tensorfold::families::qwen3_5
