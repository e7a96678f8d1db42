// What a model does outside its layers, written once: embedding, taps, final norm, head, and the joined input of an MTP
// head. A family derives its model and draft head from these and adds its layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "families/model.h"

namespace tensorfold::families {

/// Family::load of a model class.
template <typename FamilyModel>
std::unique_ptr<Model> load_as(const nlohmann::json& config, const format::TensorStore& store,
                               backend::Backend& backend, int32_t max_rows) {
  return std::make_unique<FamilyModel>(config, store, backend, max_rows);
}

/// From token ids to residual rows and from residual rows to logits; a draft head borrows them from its model.
struct FrameWeights {
  std::unique_ptr<backend::Embedding> embedding;
  float embedding_factor = 1.0F;
  std::unique_ptr<backend::Vector> final_norm;  ///< null: rows go to the head as they are
  float epsilon = 0.0F;
  std::unique_ptr<backend::Projection> head;
  float soft_cap = 0.0F;  ///< of the model's own logits; 0: none
};

/// A model that is a frame around layers over one residual tensor. A family whose residual has several streams
/// overrides enter, leave, tap and, if its draft head reads something else, write_hidden.
class FramedModel : public Model {
 public:
  [[nodiscard]] const ModelInfo& info() const final { return info_; }
  [[nodiscard]] int32_t max_rows() const final { return max_rows_; }
  /// Enter; every layer, with taps behind it; leave; final norm and head. The logits always come from the residual rows
  /// by the same fused norm and product, whatever else is asked for, so no output changes another's bits.
  void forward(const backend::Plan& plan, backend::Cache& cache, const ForwardOutputs& outputs) final;
  void embed(const backend::Plan& plan, backend::Tensor output) final;
  void head(const backend::Plan& plan, backend::Tensor normed, backend::Tensor logits) final;

 protected:
  /// Residual rows are `streams` times info.hidden_size wide; info.layers calls of layer() make a forward.
  FramedModel(ModelInfo info, backend::Backend& backend, int32_t max_rows, int64_t streams = 1);

  /// Layer `index` over the residual rows x.
  virtual void layer(const backend::Plan& plan, backend::Cache& cache, size_t index, backend::Tensor x) = 0;
  /// x = what layer 0 reads.
  virtual void enter(const backend::Plan& plan, backend::Tensor x) { embed(plan, x); }
  /// The hidden_size wide rows before the final norm.
  virtual backend::Tensor leave(const backend::Plan& /*plan*/, backend::Tensor x) { return x; }
  /// One tap: output = hidden_size wide rows of the residual x.
  virtual void tap(const backend::Plan& plan, backend::Tensor x, backend::Tensor output) {
    backend_.copy(plan, x, output);
  }
  /// ForwardOutputs::hidden from the residual x and what leave made of it.
  virtual void write_hidden(const backend::Plan& plan, backend::Tensor x, backend::Tensor left, backend::Tensor output);

  ModelInfo info_;
  backend::Backend& backend_;
  FrameWeights frame_;

 private:
  int32_t max_rows_;
  backend::OwnedTensor x_;  ///< the residual rows
};

/// An MTP head whose entry i joins the normed embedding of the token after row i with the model's normed hidden row i,
/// by one product over both halves, and ends in a norm and its model's head.
class JoinedDraftHead : public DraftHead {
 public:
  void forward(const backend::Plan& plan, backend::Cache& cache, backend::Tensor hidden, backend::Tensor hidden_output,
               backend::Tensor logits) final;

 protected:
  struct Weights {
    std::unique_ptr<backend::Vector> embedding_norm, hidden_norm, final_norm;
    std::unique_ptr<backend::Projection> join;
  };
  /// `frame` is the model's and outlives the head.
  JoinedDraftHead(Weights weights, const FrameWeights& frame, backend::Backend& backend, int32_t max_rows,
                  int64_t hidden);
  /// x = the embeddings of the plan's tokens.
  virtual void enter(const backend::Plan& plan, backend::Tensor x);
  /// The head's layers over the joined rows x.
  virtual void layers(const backend::Plan& plan, backend::Cache& cache, backend::Tensor x) = 0;

  backend::Backend& backend_;

 private:
  Weights weights_;
  const FrameWeights& frame_;
  backend::OwnedTensor joined_;  ///< [rows][2 hidden]: embedding half, hidden half
  backend::OwnedTensor x_;
};

}  // namespace tensorfold::families
