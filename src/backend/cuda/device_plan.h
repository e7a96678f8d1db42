// A plan as kernels see it: one block of device memory, a header of offsets and then the arrays, so that a captured
// graph finds every later plan at the same address. Also the list of attention work that follows from a plan.
#pragma once

#include <cstdint>
#include <vector>

#include <cuda_runtime.h>

#include "backend/cuda/device_array.h"
#include "backend/plan.h"

namespace tensorfold::backend::cuda {

/// Keys of a tile and of a partition; part of the arithmetic, see DESIGN section 1.
constexpr int kTileKeys = 64;
constexpr int kPartitionKeys = 512;
/// (row, head) pairs that one attention block takes; and in plans of few rows, which run as a program.
constexpr int kAttentionItems = 128;
constexpr int kUnitPairs = 48;
constexpr int kFewRows = 16;

/// How an attention operation divides its rows; operations of equal kind share one work list.
struct AttentionKind {
  int32_t group_heads = 1;  ///< query heads of a key head
  int32_t window = 0;
  int32_t bidirectional = 0;
  bool operator==(const AttentionKind&) const = default;
};
constexpr int kMostAttentionKinds = 4;

/// Work of one thread block (for each key head): rows of one sequence against one partition of keys.
struct AttentionItem {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t partition = 0;
  int32_t slot = 0;  ///< partial result of the first row; later rows follow `slot_step` apart
  int32_t slot_step = 0;
  int32_t path = -1;  ///< window rows by depth: index into paths; -1: the sequence's rows in order
};

/// Where a row's partial results lie: slot + (partition - first_partition).
struct AttentionRow {
  int32_t slot = 0;
  int32_t first_partition = 0;
  int32_t begin = 0;  ///< partitions [begin, end) concern the row
  int32_t end = 0;
};

struct AttentionList {
  int32_t items = 0;  ///< count
  int32_t items_at = 0;
  int32_t rows_at = 0;
  int32_t batches = 0;
};

/// Offsets are in 4-byte words from the start of the block.
struct PlanHeader {
  int32_t rows = 0;
  int32_t logit_rows = 0;
  int32_t sequences = 0;
  int32_t longest_sequence = 0;  ///< rows
  int32_t tokens_at = 0;
  int32_t positions_at = 0;
  int32_t parents_at = 0;
  int32_t owner_at = 0;
  int32_t logit_rows_at = 0;
  int32_t records_at = 0;  ///< window record of a row; -1: the sequence keeps all its rows
  int32_t sequences_at = 0;
  int32_t pages_at = 0;
  int32_t paths_at = 0;
  AttentionList attention[kMostAttentionKinds];
};

struct DeviceSequence {
  int32_t first_row = 0;
  int32_t row_count = 0;
  int32_t committed = 0;
  int32_t state_slot = 0;
  int32_t first_page = 0;
  int32_t keep_all = 0;
};

#if defined(__CUDACC__)
/// Accessors for kernels.
struct PlanView {
  const int32_t* base;
  __device__ const PlanHeader& header() const { return *reinterpret_cast<const PlanHeader*>(base); }
  __device__ const int32_t* tokens() const { return base + header().tokens_at; }
  __device__ const int32_t* positions() const { return base + header().positions_at; }
  __device__ const int32_t* parents() const { return base + header().parents_at; }
  __device__ const int32_t* owner() const { return base + header().owner_at; }
  __device__ const int32_t* logit_rows() const { return base + header().logit_rows_at; }
  __device__ const int32_t* records() const { return base + header().records_at; }
  __device__ const int32_t* pages() const { return base + header().pages_at; }
  __device__ const int32_t* paths() const { return base + header().paths_at; }
  __device__ const DeviceSequence* sequences() const {
    return reinterpret_cast<const DeviceSequence*>(base + header().sequences_at);
  }
  __device__ const AttentionItem* items(int kind) const {
    return reinterpret_cast<const AttentionItem*>(base + header().attention[kind].items_at);
  }
  __device__ const AttentionRow* attention_rows(int kind) const {
    return reinterpret_cast<const AttentionRow*>(base + header().attention[kind].rows_at);
  }
};
#endif

/// The host's image of a plan, ready to be copied.
struct PlanImage {
  std::vector<int32_t> words;
  PlanHeader header;
  /// Rows [first, end) of each attention batch of a kind and its items: batches bound the partial results' memory.
  struct Batch {
    int32_t first_item = 0;
    int32_t items = 0;
    int32_t first_row = 0;
    int32_t rows = 0;
  };
  std::vector<Batch> batches[kMostAttentionKinds];
  int32_t window_rows = 0;  ///< rows of sequences that do not keep all
};

/// `most_slots`: partial results that fit the workspace (at least one row's partitions). Throws Error(internal) for a
/// plan that contradicts itself.
PlanImage make_plan_image(const Plan& plan, const std::vector<AttentionKind>& kinds, int64_t most_slots);

}  // namespace tensorfold::backend::cuda
