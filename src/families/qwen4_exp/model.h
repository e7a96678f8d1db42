// Qwen3.8 Flash Next, text alone, with its MTP head. Mathematics: specs, Flash Next, 3.
#pragma once

#include <memory>
#include <vector>

#include "families/model_frame.h"
#include "families/qwen4_exp/decoder.h"

namespace tensorfold::families::qwen4_exp {

/// Multi-token prediction (spec 3.7): entry i adds the embedding of the token after row i to the target's streams
/// behind its last layer, each through a product of its own, and runs one sparse layer over them.
class MtpHead final : public DraftHead {
 public:
  /// What it borrows from its model outlives it.
  MtpHead(WeightLoader& loader, const Layout& layout, float shift, const Decoder& decoder, const FrameWeights& frame,
          backend::Backend& backend, int32_t max_rows);
  [[nodiscard]] backend::CacheLayout cache_layout() const override;
  void forward(const backend::Plan& plan, backend::Cache& cache, backend::Tensor hidden, backend::Tensor hidden_output,
               backend::Tensor logits) override;

 private:
  backend::Backend& backend_;
  const Decoder& decoder_;
  const FrameWeights& frame_;
  VectorPointer embedding_norm_, hidden_norm_;
  ProjectionPointer embedding_product_, hidden_product_;
  LayerWeights layer_;
  HyperConnectionWeights mixer_;
  backend::OwnedTensor embedded_, single_;  ///< [rows][hidden]
  backend::OwnedTensor normed_, x_;         ///< [rows][streams][hidden]
};

class FlashNextModel final : public FramedModel {
 public:
  /// `store` has passed check_inventory.
  FlashNextModel(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
                 int32_t max_rows);
  [[nodiscard]] backend::CacheLayout cache_layout() const override;
  DraftHead* draft_head() override { return mtp_.get(); }

 private:
  void layer(const backend::Plan& plan, backend::Cache& cache, size_t index, backend::Tensor x) override;
  /// The embedding in every stream.
  void enter(const backend::Plan& plan, backend::Tensor x) override;
  /// The last connection reads; its rows go to the head without a norm.
  backend::Tensor leave(const backend::Plan& plan, backend::Tensor x) override;
  /// The streams' mean.
  void tap(const backend::Plan& plan, backend::Tensor x, backend::Tensor output) override;
  /// The streams as they are: what the MTP head reads.
  void write_hidden(const backend::Plan& plan, backend::Tensor x, backend::Tensor left,
                    backend::Tensor output) override;
  void load(const format::TensorStore& store, const format::Quantization& quantization);

  Config config_;
  Decoder decoder_;
  std::vector<LayerEntries> entries_;
  std::vector<LayerWeights> layers_;
  HyperConnectionWeights mixer_;
  backend::OwnedTensor embedded_;
  std::unique_ptr<MtpHead> mtp_;
};

ModelInfo describe(const nlohmann::json& config);
/// The registry's entry.
Family family();

}  // namespace tensorfold::families::qwen4_exp
