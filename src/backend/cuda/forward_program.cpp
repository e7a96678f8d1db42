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

/// Groups of a stage: as many as fit it and a piece of rows, each slice cut into chunks of about equal length.
int32_t stage_groups(const PackedWeights& weights, int piece_groups) {
  const int group = weights.block_tiles * group_bytes(weights.format);
  const int most = std::min(static_cast<int>(kStageBytes) / group, piece_groups);
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

namespace {

bool in_fours(const Activation& a) { return a.stride % 4 == 0 && a.offset % 4 == 0; }

/// Whether the product makes what the rows are made of, and reads something else than they overwrite.
bool makes_rows(const RowProduct& product, const ScaledRowsWork& work) {
  const Activation& made = product.output;
  return product.epilogue == ProductEpilogue::add && made.bf16 == 0 && made.data == work.input.data &&
         made.stride == work.input.stride && made.offset == work.input.offset &&
         product.weights.outputs == work.input.width && work.input.width % kTileOutputs == 0 && work.logit_rows == 0 &&
         product.input.data != work.output.data;
}

}  // namespace

void ForwardProgram::norm(const NormWork& work) {
  if (work.input.width > kMostNormWidth || !in_fours(work.input) || !in_fours(work.output)) refuse();
  add_before_tails(OperationKind::norm, work);
}

void ForwardProgram::scaled_rows(const ScaledRowsWork& work) {
  if (!operations_.empty() && operations_.back().kind == OperationKind::product) {
    ProductWork last;
    std::memcpy(&last, operations_.back().work, sizeof last);
    if (last.next.gains == nullptr && makes_rows(last.product, work)) {
      last.next = {work.gains, work.output, work.squares};
      std::memcpy(operations_.back().work, &last, sizeof last);
      return;
    }
  }
  add_before_tails(OperationKind::scaled_rows, work);
}

void ForwardProgram::product(const RowProduct& product, const float* squares, float epsilon) {
  ProductWork work;
  work.product = product;
  const int most_in_a_piece = static_cast<int>(kPieceBytes) / 1024 / row_tiles_;
  work.stage_groups = stage_groups(product.weights, most_in_a_piece);
  work.piece_groups = most_in_a_piece / work.stage_groups * work.stage_groups;
  work.squares = squares;
  work.epsilon = epsilon;
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
  stream.rows = product.input.group_at(0, 0);
  stream.row_tile_bytes = product.input.stride * 16;
  stream.group_stride = w.block_tiles * group_bytes(w.format);
  stream.groups = w.groups;
  stream.slices = w.slices;
  stream.blocks = w.blocks;
  stream.stage_groups = work.stage_groups;
  stream.piece_groups = work.piece_groups;
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
