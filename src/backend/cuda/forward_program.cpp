#include "backend/cuda/forward_program.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/forward_layout.h"
#include "base/error.h"

namespace tensorfold::backend::cuda {

// One source file each: forward_kernel_1.cu, ...
void launch_forward_1(const ForwardArguments& arguments, int blocks, cudaStream_t stream);
void launch_forward_2(const ForwardArguments& arguments, int blocks, cudaStream_t stream);

namespace {

static_assert(kMostProgramRows <= kFewRows, "the plan's attention work suits programs");

/// Groups of a stage: as many as fit, each slice cut into chunks of about equal length.
int32_t ring_groups(const PackedWeights& weights) {
  const int group = weights.block_tiles * group_bytes(weights.format);
  const int most = static_cast<int>(kStageBytes) / group;
  check(most >= 1, "a stage holds a group of a block");
  const int slice = (weights.groups + weights.slices - 1) / weights.slices;
  const int chunks = (slice + most - 1) / most;
  return (slice + chunks - 1) / chunks;
}

}  // namespace

void ForwardProgram::move_tails() {
  if (!tails_) return;
  const TailsWork work{*tails_, 0};
  tails_.reset();
  add(OperationKind::tails, work);
}

void ForwardProgram::norm(const NormWork& work) {
  const auto aligned = [](const Activation& a) { return a.stride % 4 == 0 && a.offset % 4 == 0; };
  if (work.input.width > kMostNormWidth || !aligned(work.input) || !aligned(work.output)) refuse();
  const std::optional<GatedDeltaArguments> tails = std::exchange(tails_, std::nullopt);
  add(OperationKind::norm, work);
  tails_ = tails;
}

NormWork ForwardProgram::take_norm(const RowProduct& product) {
  NormWork norm;
  if (row_tiles_ != 1 || !norms_inside_ || operations_.empty() || operations_.back().kind != OperationKind::norm)
    return norm;
  std::memcpy(&norm, operations_.back().work, sizeof norm);
  const Activation& made = norm.output;
  const Activation& read = product.input;
  if (norm.input.width > kMostResidentInputs || norm.input.bf16 != 0 || norm.for_product == 0 ||
      made.data != read.data || made.stride != read.stride || made.offset != read.offset)
    return {};
  operations_.pop_back();
  phases_ -= 1;
  return norm;
}

void ForwardProgram::product(const RowProduct& product) {
  ProductWork work;
  work.product = product;
  work.ring_groups = ring_groups(product.weights);
  work.norm = take_norm(product);
  const PackedWeights& w = product.weights;
  // Tails go beside a long product that reads and writes other rows.
  const bool overwrites = tails_ && tails_->mixed.data == product.output.data;
  if (overwrites) move_tails();
  bool beside = false;
  if (tails_ && product.epilogue != ProductEpilogue::add) {
    const TailsWork tails{*std::exchange(tails_, std::nullopt), w.blocks * w.slices};
    add(OperationKind::tails, tails);
    beside = true;
  }
  const std::optional<GatedDeltaArguments> later = std::exchange(tails_, std::nullopt);
  add(OperationKind::product, work, beside);
  tails_ = later;
  ProductStream stream;
  stream.weights = w.data;
  stream.rows = work.norm.weight != nullptr ? nullptr : product.input.group_at(product.first_row / 8, 0);
  stream.row_tile_bytes = product.input.stride * 16;
  stream.group_stride = w.block_tiles * group_bytes(w.format);
  stream.groups = w.groups;
  stream.slices = w.slices;
  stream.blocks = w.blocks;
  stream.ring_groups = work.ring_groups;
  stream.phase = phases_ - 1;
  products_.push_back(stream);
}

void ForwardProgram::delta(const GatedDeltaArguments& work) {
  const bool tiled = work.mixed.bf16 != 0 && work.gate.bf16 != 0 && work.beta.bf16 != 0 && work.decay.bf16 != 0 &&
                     work.output.bf16 != 0 && work.mixed.offset % 8 == 0;
  if (!gated_delta_supports(work.shape) || work.shape.value_dim > kMostDeltaValues || work.shape.kernel != 4 || !tiled)
    refuse();
  add(OperationKind::delta, work);
  tails_ = work;
}

void ForwardProgram::attention(const AttentionArguments& work) {
  add(OperationKind::prepare, work);
  if (work.query.data == nullptr) return;
  add(OperationKind::partials, work);
  ProductStream keys;
  keys.phase = phases_ - 1;
  keys.attention = static_cast<int32_t>(operations_.size()) - 1;
  products_.push_back(keys);
  add(OperationKind::merge, work);
  attentions_.push_back(work);
}

void ForwardProgram::finish() {
  move_tails();
  for (size_t i = 0; i < operations_.size(); ++i)
    operations_[i].ends_phase = i + 1 == operations_.size() || operations_[i + 1].begins_phase != 0 ? 1 : 0;
}

bool forward_program_fits(size_t shared_bytes_of_a_block) { return shared_bytes_of_a_block >= kForwardShared; }

void launch_forward(const ForwardArguments& arguments, int row_tiles, int blocks, cudaStream_t stream) {
  if (row_tiles == 1)
    launch_forward_1(arguments, blocks, stream);
  else
    launch_forward_2(arguments, blocks, stream);
}

}  // namespace tensorfold::backend::cuda
