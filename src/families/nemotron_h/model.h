// Nemotron-H (Nemotron 3.5 Lightning) with its MTP head. Mathematics: specs, Nemotron 3.5, 2 to 5 and 9.
#pragma once

#include <memory>
#include <vector>

#include "families/nemotron_h/decoder.h"

namespace tensorfold::families::nemotron_h {

/// What the MTP head borrows from its model.
struct SharedWeights {
  const Config& config;
  backend::Backend& backend;
  const Decoder& decoder;
  const backend::Embedding& embedding;
  const backend::Projection& head;
};

/// Multi-token prediction (spec 9.1): entry i joins the embedding of the token after row i with the target's hidden
/// row.
class MtpHead : public DraftHead {
 public:
  MtpHead(WeightLoader& loader, const Layout& layout, const SharedWeights& shared, int32_t max_rows);
  [[nodiscard]] backend::CacheLayout cache_layout() const override;
  void forward(const backend::Plan& plan, backend::Cache& cache, backend::Tensor hidden, backend::Tensor hidden_output,
               backend::Tensor logits) override;

 private:
  SharedWeights shared_;
  VectorPointer embedding_norm_, hidden_norm_, final_norm_;
  ProjectionPointer join_;
  LayerWeights attention_, experts_;
  backend::OwnedTensor joined_;  ///< [rows][2 hidden]: embedding half, hidden half
  backend::OwnedTensor x_;
};

class NemotronModel : public Model {
 public:
  /// `store` has passed check_inventory.
  NemotronModel(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
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

}  // namespace tensorfold::families::nemotron_h
