#include "families/model_frame.h"

#include <utility>

#include "base/error.h"

namespace tensorfold::families {

using backend::RowSet;
using backend::Tensor;

namespace {

/// Logits of plan.logit_rows from residual rows, by one fused norm and product.
void write_logits(backend::Backend& backend, const backend::Plan& plan, const FrameWeights& frame,
                  const backend::Vector* norm, Tensor rows, Tensor logits) {
  if (!logits || plan.logit_rows.empty()) return;
  backend.project(plan, {.weights = frame.head.get(),
                         .input = rows,
                         .norm = norm,
                         .epsilon = frame.epsilon,
                         .output = logits,
                         .rows = RowSet::logits});
  if (frame.soft_cap > 0.0F) backend.soft_cap(plan, {.values = logits, .cap = frame.soft_cap, .rows = RowSet::logits});
}

}  // namespace

FramedModel::FramedModel(ModelInfo info, backend::Backend& backend, int32_t max_rows, int64_t streams)
    : info_(std::move(info)),
      backend_(backend),
      max_rows_(max_rows),
      x_(backend.allocate(max_rows, streams * info_.hidden_size)) {}

void FramedModel::forward(const backend::Plan& plan, backend::Cache& cache, const ForwardOutputs& outputs) {
  check(plan.rows() <= max_rows_, "a plan has no more rows than the model was loaded for");
  enter(plan, x_);
  for (int32_t index = 0; index < info_.layers; ++index) {
    layer(plan, cache, static_cast<size_t>(index), x_);
    for (size_t i = 0; outputs.taps && i < outputs.tap_layers.size(); ++i) {
      if (outputs.tap_layers[i] != index) continue;
      tap(plan, x_, outputs.taps.columns(static_cast<int64_t>(i) * info_.hidden_size, info_.hidden_size));
    }
  }
  const Tensor left = leave(plan, x_);
  if (outputs.hidden) write_hidden(plan, x_, left, outputs.hidden);
  write_logits(backend_, plan, frame_, frame_.final_norm.get(), left, outputs.logits);
}

void FramedModel::write_hidden(const backend::Plan& plan, Tensor /*x*/, Tensor left, Tensor output) {
  backend_.rms_norm(plan,
                    {.input = left, .weight = frame_.final_norm.get(), .epsilon = frame_.epsilon, .output = output});
}

void FramedModel::embed(const backend::Plan& plan, Tensor output) {
  backend_.embed(plan, *frame_.embedding, frame_.embedding_factor, output);
}

void FramedModel::head(const backend::Plan& plan, Tensor normed, Tensor logits) {
  backend_.project(plan, {.weights = frame_.head.get(), .input = normed, .output = logits, .rows = RowSet::logits});
}

JoinedDraftHead::JoinedDraftHead(Weights weights, const FrameWeights& frame, backend::Backend& backend,
                                 int32_t max_rows, int64_t hidden)
    : backend_(backend),
      weights_(std::move(weights)),
      frame_(frame),
      joined_(backend.allocate(max_rows, 2 * hidden)),
      x_(backend.allocate(max_rows, hidden)) {}

void JoinedDraftHead::enter(const backend::Plan& plan, Tensor x) {
  backend_.embed(plan, *frame_.embedding, frame_.embedding_factor, x);
}

void JoinedDraftHead::forward(const backend::Plan& plan, backend::Cache& cache, Tensor hidden, Tensor hidden_output,
                              Tensor logits) {
  const int64_t width = x_.view.width;
  const float epsilon = frame_.epsilon;
  const Tensor embedding_half = joined_.view.columns(0, width);
  const Tensor hidden_half = joined_.view.columns(width, width);
  enter(plan, x_);
  backend_.rms_norm(
      plan, {.input = x_, .weight = weights_.embedding_norm.get(), .epsilon = epsilon, .output = embedding_half});
  backend_.rms_norm(plan,
                    {.input = hidden, .weight = weights_.hidden_norm.get(), .epsilon = epsilon, .output = hidden_half});
  backend_.project(plan, {.weights = weights_.join.get(), .input = joined_, .output = x_});
  layers(plan, cache, x_);
  const backend::Vector* final_norm = weights_.final_norm.get();
  if (hidden_output)
    backend_.rms_norm(plan, {.input = x_, .weight = final_norm, .epsilon = epsilon, .output = hidden_output});
  write_logits(backend_, plan, frame_, final_norm, x_, logits);
}

}  // namespace tensorfold::families
