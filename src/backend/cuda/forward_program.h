// A forward of few rows as one kernel: a list of operations that every multiprocessor walks through, with a barrier of
// the whole grid between phases.
//
// One warp of each thread block streams the weights of all products, in order, through a ring in shared memory; it
// runs ahead of the operations, so device memory stays busy while norms, attention and barriers take their time. A
// second warp brings the rows of a product once the phase before it has ended; eighteen warps compute. Each operation
// sums in the order of its own kernel (row_product.h, attention.h, gated_delta.h), so a row's bits are the same.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include "backend/cuda/attention.h"
#include "backend/cuda/device_array.h"
#include "backend/cuda/gated_delta.h"
#include "backend/cuda/row_kernels.h"
#include "backend/cuda/row_product.h"

namespace tensorfold::backend::cuda {

enum class OperationKind : int32_t {
  embed,
  norm,
  copy,
  product,
  delta,
  tails,
  prepare,
  partials,
  merge,
  block_convolution,
  scaled_rows
};

struct EmbedWork {
  EmbeddingTable table;
  float scale = 1.0F;
  Activation output;
};
struct NormWork {
  int32_t logit_rows = 0;
  float epsilon = 0.0F;
  Activation input;
  const float* weight = nullptr;
  Activation output;
};
/// Rows for a product in whose sums their norm's scale comes in (scaled_rows.cuh): bf16(x gain), and the sums of
/// squares.
struct ScaledRowsWork {
  int32_t logit_rows = 0;
  Activation input;
  const float* gains = nullptr;
  Activation output;
  float* squares = nullptr;  ///< [rows][width / 16]
};
/// The same, made by the product that makes the rows; gains null: not.
struct NextRows {
  const float* gains = nullptr;
  Activation rows;
  float* squares = nullptr;
};
struct CopyWork {
  int32_t logit_rows = 0;
  Activation input;
  Activation output;
};
struct ProductWork {
  RowProduct product;
  int32_t stage_groups = 1;  ///< groups of a stage of the ring of weights
  int32_t piece_groups = 1;  ///< of a piece of rows: a multiple
  float epsilon = 0.0F;
  const float* squares = nullptr;  ///< of its rows, if they are scaled rows
  NextRows next;
};
struct TailsWork {
  GatedDeltaArguments delta;
  int32_t passes = 0;  ///< of the product beside; thread blocks that have none do the work
};

constexpr size_t kOperationBytes = 432;
struct alignas(16) Operation {
  OperationKind kind = OperationKind::copy;
  int32_t phase = 0;
  int32_t begins_phase = 0;
  int32_t ends_phase = 0;
  unsigned char work[kOperationBytes - 16] = {};
};
static_assert(sizeof(Operation) == kOperationBytes);

/// A product as the two streaming warps see it, or an attention operation, whose keys and values come the same way.
struct alignas(16) ProductStream {
  const uint8_t* weights = nullptr;
  const uint8_t* rows = nullptr;
  int64_t row_tile_bytes = 0;
  int32_t group_stride = 0;
  int32_t groups = 0;
  int32_t slices = 1;
  int32_t blocks = 0;
  int32_t stage_groups = 1;
  int32_t piece_groups = 1;
  int32_t phase = 0;
  int32_t attention = -1;  ///< index of the operation; then there are no weights
};

/// Rows of a plan that runs as a program: above, every tile would read the fragments of four row tiles from shared
/// memory (1.5 times as long as the graph's kernels, which read them for two tiles at once).
constexpr int kMostProgramRows = 16;

/// Builds the list. Operations stand in the order they are added; each begins a phase unless it may run beside the one
/// before it.
class ForwardProgram {
 public:
  explicit ForwardProgram(int row_tiles) : row_tiles_(row_tiles) {}

  void embed(const EmbedWork& work) { add(OperationKind::embed, work); }
  void norm(const NormWork& work);
  void copy(const CopyWork& work) { add(OperationKind::copy, work); }
  /// Made by the product before, if it is what makes the input.
  void scaled_rows(const ScaledRowsWork& work);
  /// `squares`, `epsilon`: of the norm, if the rows are scaled rows; else null.
  void product(const RowProduct& product, const float* squares, float epsilon);
  /// The tail's move stands beside a later product, before anything overwrites its rows.
  void delta(const GatedDeltaArguments& work);
  void attention(const AttentionArguments& work);
  void block_convolution(const BlockConvolutionArguments& work) { add(OperationKind::block_convolution, work); }

  /// Call once, after the last operation.
  void finish();
  [[nodiscard]] bool refused() const { return refused_; }
  [[nodiscard]] int row_tiles() const { return row_tiles_; }
  [[nodiscard]] int phases() const { return phases_; }
  [[nodiscard]] const std::vector<Operation>& operations() const { return operations_; }
  [[nodiscard]] const std::vector<ProductStream>& products() const { return products_; }
  [[nodiscard]] const std::vector<AttentionArguments>& attentions() const { return attentions_; }

 private:
  /// Something was asked for that no program does.
  void refuse() { refused_ = true; }
  template <typename Work>
  void add(OperationKind kind, const Work& work, bool beside = false) {
    static_assert(std::is_trivially_copyable_v<Work> && sizeof(Work) <= sizeof(Operation::work));
    if (!beside) move_tails();
    Operation operation;
    operation.kind = kind;
    operation.begins_phase = beside ? 0 : 1;
    if (!beside) phases_ += 1;
    operation.phase = phases_ - 1;
    std::memcpy(operation.work, &work, sizeof work);
    operations_.push_back(operation);
  }
  void move_tails();
  /// What reads no rows of the delta rule: its tails' move may come later.
  template <typename Work>
  void add_before_tails(OperationKind kind, const Work& work) {
    const std::optional<GatedDeltaArguments> tails = std::exchange(tails_, std::nullopt);
    add(kind, work);
    tails_ = tails;
  }

  int row_tiles_;
  int phases_ = 0;
  bool refused_ = false;
  std::vector<Operation> operations_;
  std::vector<ProductStream> products_;
  std::vector<AttentionArguments> attentions_;
  std::optional<GatedDeltaArguments> tails_;
};

/// What a launch needs of a program: its lists on the device.
struct ForwardArguments {
  const Operation* operations = nullptr;
  const ProductStream* products = nullptr;
  int32_t operation_count = 0;
  int32_t product_count = 0;
  const int32_t* plan = nullptr;
  uint32_t* arrivals = nullptr;  ///< counts thread blocks at the ends of phases, for ever
  uint32_t before = 0;           ///< its value when the launch begins
  /// For profiles, else null: clocks of the first two thread blocks' multiprocessors, for each operation when its phase
  /// begins there and when the operation ends.
  int64_t* times = nullptr;
};

/// Whether this GPU has the shared memory that the kernel wants.
bool forward_program_fits(size_t shared_bytes_of_a_block);

/// row_tiles: 1 or 2. `blocks`: one a multiprocessor; each adds one to `arrivals` at the end of each phase.
void launch_forward(const ForwardArguments& arguments, int row_tiles, int blocks, cudaStream_t stream);

}  // namespace tensorfold::backend::cuda
