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
  block_convolution
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
  int32_t for_product = 0;  ///< nobody but the next product reads the output
};
struct CopyWork {
  int32_t logit_rows = 0;
  Activation input;
  Activation output;
};
struct ProductWork {
  RowProduct product;
  int32_t ring_groups = 1;  ///< groups of a stage of the ring
  /// Up to 8 rows: every thread block norms the rows itself, into its own shared memory; weight null: not.
  NormWork norm;
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
  int32_t ring_groups = 1;
  int32_t phase = 0;
  int32_t attention = -1;  ///< index of the operation; then there are no weights
};

/// Rows of a plan that runs as a program: above, the tensor-core steps take longer than the weights, and the kernels of
/// the graph, two thread blocks a multiprocessor, do better.
constexpr int kMostProgramRows = 16;

/// Builds the list. Operations stand in the order they are added; each begins a phase unless it may run beside the one
/// before it.
class ForwardProgram {
 public:
  /// `norms_inside`: products norm their rows themselves where they can; pays for one or two rows.
  ForwardProgram(int row_tiles, bool norms_inside) : row_tiles_(row_tiles), norms_inside_(norms_inside) {}

  void embed(const EmbedWork& work) { add(OperationKind::embed, work); }
  void norm(const NormWork& work);
  void copy(const CopyWork& work) { add(OperationKind::copy, work); }
  void product(const RowProduct& product);
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
  /// The norm that was added last, if it made the rows of this product, which then makes them itself.
  NormWork take_norm(const RowProduct& product);

  int row_tiles_;
  bool norms_inside_;
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
