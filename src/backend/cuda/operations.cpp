// The operations of a forward.
#include <algorithm>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/prompt_product.h"
#include "base/error.h"

namespace tensorfold::backend::cuda {
namespace {

const float* values_of(const Vector* vector) {
  return vector == nullptr ? nullptr : dynamic_cast<const CudaVector&>(*vector).memory.data();
}

int row_tiles_of(int32_t rows) { return rows <= 8 ? 1 : rows <= 16 ? 2 : 4; }

}  // namespace

void CudaBackend::embed(const Plan&, const Embedding& table, float scale, Tensor output) {
  if (recording_ != nullptr) {
    recording_->embed({dynamic_cast<const CudaEmbedding&>(table).table, scale, activation(output)});
    return;
  }
  launch_embed(plan_memory_.data(), extent_.rows, dynamic_cast<const CudaEmbedding&>(table).table, scale,
               activation(output), stream_);
}

void CudaBackend::rms_norm(const Plan&, const RmsNorm& a) {
  check(a.input.width % 4 == 0, "a normed row is a multiple of 4 values wide");
  check(values_of(a.weight) != nullptr && a.weight->size() == a.input.width && a.output.width == a.input.width,
        "a norm's weight is as wide as its rows");
  const bool logits = a.rows == RowSet::logits;
  if (recording_ != nullptr)
    recording_->norm({logits ? 1 : 0, a.epsilon, activation(a.input), values_of(a.weight), activation(a.output)});
  else
    launch_rms_norm(plan_memory_.data(), rows_of(a.rows), logits, activation(a.input), values_of(a.weight), a.epsilon,
                    activation(a.output), stream_);
}

/// The rows of a product with a norm (scaled_rows.cuh).
void CudaBackend::scale_rows(const Project& a, const Activation& input, const Activation& output) {
  const bool logits = a.rows == RowSet::logits;
  if (recording_ != nullptr)
    recording_->scaled_rows({logits ? 1 : 0, input, values_of(a.norm), output, row_squares(input.width)});
  else
    launch_scaled_rows(plan_memory_.data(), rows_of(a.rows), logits, input, values_of(a.norm), a.epsilon, output,
                       row_scales(rows_of(a.rows)), stream_);
}

float* CudaBackend::row_squares(int64_t width) {
  return row_squares_.get<float>(static_cast<size_t>(kMostProgramRows * width / kTileOutputs));
}

float* CudaBackend::program_partials(size_t floats) {
  if (program_partials_.size() < floats) {
    count_memory_change();
    cuda_check(cudaStreamSynchronize(stream_), "finish what runs");
    program_partials_ = DeviceArray<float>();
    program_partials_ = DeviceArray<float>(floats);
    cuda_check(cudaMemset(program_partials_.data(), 0xFF, program_partials_.bytes()), "mark partial results");
    cuda_check(cudaDeviceSynchronize(), "mark partial results");
  }
  return program_partials_.data();
}

float* CudaBackend::row_scales(int32_t rows) { return row_scales_.get<float>(static_cast<size_t>(rows)); }

void CudaBackend::copy_rows(RowSet rows, const Activation& input, const Activation& output) {
  const bool logits = rows == RowSet::logits;
  if (recording_ != nullptr)
    recording_->copy({logits ? 1 : 0, input, output});
  else
    launch_copy(plan_memory_.data(), rows_of(rows), logits, input, output, stream_);
}

void CudaBackend::copy(const Plan&, Tensor input, Tensor output) {
  check(input.width == output.width, "a copy keeps the width");
  copy_rows(RowSet::all, activation(input), activation(output));
}

/// The rows as the product reads them: scaled, gathered or rounded first where needed.
Activation CudaBackend::product_input(const Project& a, int32_t rows) {
  const Activation given = activation(a.input);
  const bool logits = a.rows == RowSet::logits;
  if (a.norm == nullptr && !logits && given.bf16 != 0 && given.offset % 8 == 0) return given;
  const int64_t all_rows = (rows + 127) / 128 * 128;
  const Activation scratch{product_rows_.get<uint16_t>(static_cast<size_t>(all_rows * given.width)), given.width, 0,
                           given.width, 1};
  if (a.norm != nullptr)
    scale_rows(a, given, scratch);
  else
    copy_rows(a.rows, given, scratch);
  return scratch;
}

void CudaBackend::product(const Project& a, Activation input, int32_t rows) {
  const PackedWeights& weights = dynamic_cast<const CudaProjection&>(*a.weights).packed;
  RowProduct p;
  p.weights = weights;
  p.input = input;
  p.row_count = count_of(a.rows);
  p.output = activation(a.output);
  if (a.norm != nullptr && recording_ == nullptr) p.row_scales = row_scales(rows);
  switch (a.epilogue) {
    case Project::Epilogue::store:
      p.epilogue = ProductEpilogue::store;
      break;
    case Project::Epilogue::add:
      p.epilogue = ProductEpilogue::add;
      break;
    case Project::Epilogue::swiglu:
      p.epilogue = ProductEpilogue::swiglu;
      break;
    case Project::Epilogue::geglu:
    case Project::Epilogue::relu_squared:
      fail(ErrorKind::unsupported, "the cuda backend has no GELU and no squared ReLU after a product yet");
  }
  if (a.limit > 0.0F) fail(ErrorKind::unsupported, "the cuda backend has no limited SwiGLU yet");
  if (recording_ != nullptr) {
    p.partials = program_partials(row_product_partials(weights, kMostProgramRows / 8));
    recording_->product(p, a.norm != nullptr ? row_squares(input.width) : nullptr, a.epsilon);
    return;
  }
  p.partials = partials_.get<float>(row_product_partials(weights, 4));
  p.arrivals = arrivals_.get<uint32_t>(row_product_arrivals(weights));
  if (rows > kMostRowsAProduct) {
    launch_prompt_product(p, rows, processors_, stream_);
    return;
  }
  for (int32_t first = 0; first < rows; first += kMostRowsAProduct) {
    p.first_row = first;
    const int row_tiles = row_tiles_of(std::min(rows - first, kMostRowsAProduct));
    const bool wide = row_tiles == 4 && weights.format == WeightFormat::affine4;
    launch_row_product(p, row_tiles, {processors_, wide ? 200 << 10 : 104 << 10, 2}, stream_);
  }
}

void CudaBackend::project(const Plan&, const Project& a) {
  const int32_t rows = rows_of(a.rows);
  if (rows == 0) return;
  check(a.weights != nullptr && a.weights->inputs() == a.input.width, "a product's rows are as wide as its inputs");
  const bool swiglu = a.epilogue == Project::Epilogue::swiglu;
  const PackedWeights& weights = dynamic_cast<const CudaProjection&>(*a.weights).packed;
  check(!swiglu || weights.paired != 0, "SwiGLU needs gate and up stacked, of equal size");
  check(a.output.width == (swiglu ? weights.outputs / 2 : weights.outputs), "a product's output is as wide as asked");
  product(a, product_input(a, rows), rows);
}

int CudaBackend::kind_index(const Plan& plan, const AttentionKind& kind) {
  std::vector<AttentionKind>& kinds = kinds_[shape_];
  const auto found = std::find(kinds.begin(), kinds.end(), kind);
  if (found != kinds.end()) return static_cast<int>(found - kinds.begin());
  check(!capturing_, "a captured forward asks for attention that its first run did not");
  check(kinds.size() < kMostAttentionKinds, "a forward has at most four kinds of attention");
  kinds.push_back(kind);
  const Extent before = extent_;
  upload(plan);
  Extent after = before;
  after.items = extent_.items;
  extent_ = after;
  return static_cast<int>(kinds.size()) - 1;
}

AttentionArguments CudaBackend::attention_arguments(const Attention& a) const {
  if (a.normalise_values) fail(ErrorKind::unsupported, "the cuda backend does not normalise values yet");
  const auto& cache = dynamic_cast<const CudaCache&>(*a.cache);
  const PagedMemory& memory = cache.paged(a.entry);
  check(a.key_dim == a.value_dim && attention_supports(a.key_dim), "attention heads have 128 or 256 values");
  check(a.heads % a.kv_heads == 0 && a.heads / a.kv_heads <= kUnitPairs, "query heads divide into groups");
  check(memory.width == int64_t{a.kv_heads} * (a.key_dim + a.value_dim),
        "the cache entry is as wide as keys and values");
  AttentionArguments d;
  d.query = activation(a.query);
  d.key = activation(a.key);
  d.value = activation(a.value);
  d.output = activation(a.output);
  d.heads = a.heads;
  d.kv_heads = a.kv_heads;
  d.head_dim = a.key_dim;
  d.query_norm = values_of(a.query_norm);
  d.key_norm = values_of(a.key_norm);
  d.epsilon = a.epsilon;
  d.frequencies = values_of(a.rotary.frequencies);
  d.frequency_count = a.rotary.frequencies == nullptr ? 0 : static_cast<int32_t>(a.rotary.frequencies->size());
  d.interleaved = a.rotary.interleaved ? 1 : 0;
  d.scale = a.scale;
  d.window = a.window;
  d.bidirectional = a.bidirectional ? 1 : 0;
  d.gated = a.gated ? 1 : 0;
  d.pages = memory.pages.data();
  d.window_keys = memory.window.data();
  d.width = memory.width;
  d.page_tokens = cache.size().page_tokens;
  return d;
}

/// Partial results: one slot a (row, partition) of a batch; a graph's bucket has at most `items` times its rows.
void CudaBackend::reserve_attention(int kind, int32_t heads, int32_t group_heads, int32_t head_dim) {
  const auto index = static_cast<size_t>(kind);
  const auto& batches = image_.batches[index];
  int64_t slots = 0;
  for (const auto& batch : batches) {
    const int64_t group_rows = std::min<int64_t>(extent_.block_rows, std::max(1, kAttentionItems / group_heads));
    slots = std::max(slots, group_rows * (batches.size() <= 1 ? extent_.items[index] : batch.items));
  }
  attention_partials_.get<float>(static_cast<size_t>(slots * heads * head_dim));
  attention_sums_.get<float2>(static_cast<size_t>(slots * heads));
}

void CudaBackend::attention(const Plan& plan, const Attention& a) {
  AttentionArguments d = attention_arguments(a);
  const auto row_values = static_cast<size_t>(int64_t{a.heads} * a.key_dim);
  const int32_t rows = recording_ != nullptr ? kMostProgramRows : extent_.rows;
  if (a.query) {
    d.queries = queries_.get<uint16_t>(static_cast<size_t>(rows) * row_values);
    d.kind = kind_index(plan, {a.heads / a.kv_heads, a.window, a.bidirectional ? 1 : 0});
    reserve_attention(d.kind, a.heads, a.heads / a.kv_heads, a.key_dim);
    d.partials = attention_partials_.get<float>(0);
    d.sums = attention_sums_.get<float2>(0);
  }
  if (recording_ != nullptr) {
    recording_->attention(d);
    return;
  }
  launch_attention_prepare(plan_memory_.data(), extent_.rows, d, stream_);
  if (!a.query) return;
  const auto index = static_cast<size_t>(d.kind);
  const auto& batches = image_.batches[index];
  const bool whole = batches.size() <= 1;
  for (const auto& batch : batches) {
    launch_attention_partials(plan_memory_.data(), batch.first_item, whole ? extent_.items[index] : batch.items, d,
                              stream_);
    launch_attention_merge(plan_memory_.data(), batch.first_row, whole ? extent_.rows : batch.rows, d, stream_);
  }
}

void CudaBackend::gated_delta(const Plan&, const GatedDelta& a) {
  if (a.sigmoid_gate) fail(ErrorKind::unsupported, "the cuda backend has no sigmoid gate behind the delta rule yet");
  const auto& cache = dynamic_cast<const CudaCache&>(*a.cache);
  const StateMemory& memory = cache.state(a.entry);
  GatedDeltaArguments d;
  d.shape = memory.shape;
  check(a.mixed.width == d.shape.channels() && a.output.width == int64_t{d.shape.value_heads} * d.shape.value_dim,
        "the delta rule's rows are as wide as its channels");
  check(a.convolution != nullptr && a.convolution->size() == d.shape.channels() * d.shape.kernel,
        "the convolution has kernel taps a channel");
  d.mixed = activation(a.mixed);
  d.gate = activation(a.gate);
  d.beta = activation(a.beta);
  d.decay = activation(a.decay);
  d.output = activation(a.output);
  d.convolution = values_of(a.convolution);
  d.decay_log = values_of(a.decay_log);
  d.decay_bias = values_of(a.decay_bias);
  d.norm = values_of(a.norm);
  d.epsilon = a.epsilon;
  d.key_epsilon = a.key_epsilon;
  d.states = memory.states.data();
  d.tails = memory.tails.data();
  d.record_steps = memory.steps.data();
  d.record_raw = memory.raw.data();
  if (recording_ != nullptr) {
    recording_->delta(d);
    return;
  }
  const auto rows = static_cast<size_t>(extent_.rows);
  d.steps = delta_steps_.get<float>(rows * static_cast<size_t>(memory.step_values()));
  d.outputs = delta_outputs_.get<float>(rows * static_cast<size_t>(a.output.width));
  launch_gated_delta(plan_memory_.data(), extent_.rows, extent_.sequences, d, stream_);
}

void CudaBackend::block_convolution(const Plan&, const BlockConvolution& a) {
  BlockConvolutionArguments d;
  d.input = activation(a.input);
  d.dynamic = activation(a.dynamic);
  d.base = values_of(a.base);
  d.side = a.side;
  d.group = a.group;
  d.add = a.add ? 1 : 0;
  d.output = activation(a.output);
  if (recording_ != nullptr) {
    recording_->block_convolution(d);
    return;
  }
  launch_block_convolution(plan_memory_.data(), extent_.rows, d, stream_);
}

void CudaBackend::gather_rows(std::span<const int32_t> rows, Tensor input, Tensor output, int32_t first) {
  check(input.width == output.width && input.buffer != output.buffer, "gathered rows go to another tensor");
  auto* list = gather_list_.get<int32_t>(std::max<size_t>(rows.size(), 4096));
  uploads_.copy(list, rows.data(), rows.size_bytes(), stream_);
  launch_gather(list, static_cast<int>(rows.size()), activation(input), activation(output), first, stream_);
}

void CudaBackend::draw(const Plan&, Tensor logits, std::span<const DrawRow> rows) {
  draws_.draw(activation(logits), rows, uploads_, stream_);
}

void CudaBackend::read_draws(std::span<Drawn> out) { draws_.read(out, stream_); }

void CudaBackend::top_candidates(const Plan& plan, Tensor logits, int32_t count) {
  draws_.find_candidates(activation(logits), static_cast<int32_t>(plan.logit_rows.size()), count, stream_);
}

void CudaBackend::read_candidates(std::span<float> values, std::span<int32_t> ids) {
  draws_.read_candidates(values, ids, stream_);
}

}  // namespace tensorfold::backend::cuda
