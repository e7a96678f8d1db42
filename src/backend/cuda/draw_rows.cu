#include <cooperative_groups.h>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/draw_rows.h"

namespace tensorfold::backend::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kBlocks = 8;  // of a cluster: one row
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMostSums = 6;

struct TeamMemory {
  uint64_t of_warps[kWarps][kMostSums];
  uint64_t of_block[2][kMostSums];
  uint64_t result[kMostSums];
  int32_t listed;
  uint64_t list[row_draw::kMostListed];  // gathered in block 0, then copied
  uint64_t sorted[row_draw::kMostListed];
  double shares[row_draw::kMostListed];
};

struct Larger {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

struct Sum {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};

/// The team of row_draw.h: the threads of a cluster; a block shares its room.
class ClusterTeam {
 public:
  __device__ ClusterTeam(TeamMemory& memory, float* values)
      : cluster_(cg::this_cluster()), memory_(memory), values_(values) {}
  __device__ int rank() const { return static_cast<int>(cluster_.block_rank()) * kThreads + local_rank(); }
  __device__ int size() const { return kBlocks * kThreads; }
  __device__ int local_rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int local_size() const { return kThreads; }
  __device__ void local_barrier() { __syncthreads(); }
  __device__ const uint64_t* list() const { return memory_.list; }
  __device__ uint64_t* sorted() { return memory_.sorted; }
  __device__ double* shares() { return memory_.shares; }
  __device__ float* values() { return values_; }

  __device__ uint64_t maximum(uint64_t value) {
    uint64_t values[1] = {value};
    combine(values, Larger{});
    return values[0];
  }
  template <int n>
  __device__ void add(int64_t (&values)[n]) {
    uint64_t bits[n];
    for (int i = 0; i < n; ++i) bits[i] = static_cast<uint64_t>(values[i]);
    combine(bits, Sum{});
    for (int i = 0; i < n; ++i) values[i] = static_cast<int64_t>(bits[i]);
  }

  __device__ void begin_list() {
    cluster_.sync();  // nobody reads the last list any more
    if (rank() == 0) memory_.listed = 0;
    cluster_.sync();
  }
  __device__ void append(uint64_t place) {
    const int at = atomicAdd(cluster_.map_shared_rank(&memory_.listed, 0), 1);
    if (at < row_draw::kMostListed) *cluster_.map_shared_rank(&memory_.list[at], 0) = place;
  }
  __device__ int32_t end_list() {
    cluster_.sync();
    const int32_t listed = *cluster_.map_shared_rank(&memory_.listed, 0);
    const int32_t count = listed < row_draw::kMostListed ? listed : row_draw::kMostListed;
    if (cluster_.block_rank() != 0) {
      const uint64_t* first = cluster_.map_shared_rank(memory_.list, 0);
      for (int32_t i = local_rank(); i < count; i += kThreads) memory_.list[i] = first[i];
    }
    __syncthreads();
    return count;
  }
  /// No block may end while others read its memory.
  __device__ void end() { cluster_.sync(); }

 private:
  /// values[i] of all members by `join`, for all: warps, then the block, then the cluster.
  template <int n, typename Join>
  __device__ void combine(uint64_t (&values)[n], const Join& join) {
    static_assert(n <= kMostSums);
    const int lane = local_rank() % 32;
    const int warp = local_rank() / 32;
    for (int i = 0; i < n; ++i) {
      for (int step = 16; step > 0; step /= 2) values[i] = join(values[i], __shfl_xor_sync(~0U, values[i], step));
      if (lane == 0) memory_.of_warps[warp][i] = values[i];
    }
    __syncthreads();
    if (local_rank() < n) {
      uint64_t value = memory_.of_warps[0][lane];
      for (int i = 1; i < kWarps; ++i) value = join(value, memory_.of_warps[i][lane]);
      memory_.of_block[turn_][lane] = value;
    }
    cluster_.sync();
    if (local_rank() < n) {
      uint64_t value = *cluster_.map_shared_rank(&memory_.of_block[turn_][lane], 0);
      for (unsigned block = 1; block < kBlocks; ++block)
        value = join(value, *cluster_.map_shared_rank(&memory_.of_block[turn_][lane], block));
      memory_.result[lane] = value;
    }
    __syncthreads();
    for (int i = 0; i < n; ++i) values[i] = memory_.result[i];
    turn_ = 1 - turn_;  // a block is at most one combination ahead of another
  }

  cg::cluster_group cluster_;
  TeamMemory& memory_;
  float* values_;
  int turn_ = 0;
};

__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, 1)
    draw_kernel(const DrawTask* tasks, int32_t vocabulary, int cached, DrawResult* results) {
  extern __shared__ float room[];
  __shared__ TeamMemory memory;
  const DrawTask& task = tasks[blockIdx.x / kBlocks];
  ClusterTeam team(memory, cached != 0 ? room : nullptr);
  const row_draw::Row raw{task.raw, vocabulary, nullptr, 0};
  const row_draw::Row row{task.adjusted != nullptr ? task.adjusted : task.raw, vocabulary, task.mask, task.mask_words};
  DrawResult& result = results[blockIdx.x / kBlocks];
  const bool same = task.adjusted == nullptr && task.mask == nullptr;
  uint64_t first = 0;
  int32_t token = task.request.forced;
  if (token < 0) {
    first = row_draw::read_row(team, row);
    token = row_draw::choose(team, row, first, task.request);
  }
  if (team.rank() == 0) {
    result.token = token;
    result.ranked = 0;
  }
  if (task.request.reported >= 0 && token < vocabulary) {
    if (task.request.forced >= 0 || !same) first = row_draw::read_row(team, raw);
    const float best = row_draw::logit_of(first);
    const int64_t total = row_draw::total_mass(team, raw, best);
    const int32_t ranked = task.request.reported < vocabulary ? task.request.reported : vocabulary;
    if (ranked > 0) row_draw::list_in_order(team, raw, row_draw::top_end(team, raw, first, ranked));
    if (team.rank() == 0) {
      result.best = best;
      result.total = total;
      result.logit = task.raw[token];
      result.ranked = ranked;
      for (int32_t i = 0; i < ranked; ++i) {
        result.ids[i] = row_draw::id_of(team.sorted()[i]);
        result.logits[i] = row_draw::logit_at(raw, result.ids[i]);
      }
    }
  }
  team.end();
}

__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, 1)
    candidates_kernel(const float* logits, int64_t stride, int32_t vocabulary, int cached, int32_t wanted, int32_t* ids,
                      float* values) {
  extern __shared__ float room[];
  __shared__ TeamMemory memory;
  const int64_t index = blockIdx.x / kBlocks;
  ClusterTeam team(memory, cached != 0 ? room : nullptr);
  const row_draw::Row row{logits + index * stride, vocabulary, nullptr, 0};
  const uint64_t first = row_draw::read_row(team, row);
  row_draw::list_in_order(team, row, row_draw::top_end(team, row, first, wanted));
  for (int32_t i = team.rank(); i < wanted; i += team.size()) {
    const int32_t id = row_draw::id_of(team.sorted()[i]);
    ids[index * wanted + i] = id;
    values[index * wanted + i] = row_draw::logit_at(row, id);
  }
  team.end();
}

__global__ void copy_rows_kernel(const DrawTask* tasks, int32_t vocabulary) {
  const DrawTask& task = tasks[blockIdx.y];
  if (task.adjusted == nullptr) return;
  for (int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x); i < vocabulary;
       i += static_cast<int32_t>(gridDim.x * blockDim.x))
    task.adjusted[i] = task.raw[i];
}

/// A block a row: penalties, then biases.
__global__ void adjust_kernel(const DrawTask* tasks, int32_t vocabulary) {
  const DrawTask& task = tasks[blockIdx.x];
  if (task.adjusted == nullptr) return;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto threads = static_cast<int32_t>(blockDim.x);
  for (int32_t i = thread; i < task.count_entries; i += threads) {
    const TokenCount count = task.counts[i];
    if (count.token < 0 || count.token >= vocabulary) continue;
    float& logit = task.adjusted[count.token];
    logit = keyed::penalised(logit, count, task.repetition, task.frequency, task.presence);
  }
  __syncthreads();
  for (int32_t i = thread; i < task.bias_entries; i += threads) {
    const LogitBias bias = task.biases[i];
    if (bias.token >= 0 && bias.token < vocabulary) task.adjusted[bias.token] += bias.bias;
  }
}

/// Dynamic shared memory that holds a block's part of a row; 0: the row is too long for it.
template <typename Kernel>
size_t room_for(Kernel kernel, int32_t vocabulary) {
  constexpr size_t most = 227 * 1024 - sizeof(TeamMemory) - 1024;
  const size_t steps = (static_cast<size_t>(vocabulary) + kBlocks * kThreads - 1) / (kBlocks * kThreads);
  const size_t bytes = steps * kThreads * sizeof(float);
  if (bytes > most) return 0;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most)),
             "allow a draw its shared memory");
  return bytes;
}

}  // namespace

void launch_draws(const DrawTask* tasks, int count, bool any_adjusted, int32_t vocabulary, DrawResult* results,
                  cudaStream_t stream) {
  if (any_adjusted) {
    copy_rows_kernel<<<dim3(64, static_cast<unsigned>(count)), 256, 0, stream>>>(tasks, vocabulary);
    adjust_kernel<<<static_cast<unsigned>(count), 512, 0, stream>>>(tasks, vocabulary);
  }
  const size_t room = room_for(draw_kernel, vocabulary);
  draw_kernel<<<static_cast<unsigned>(count * kBlocks), kThreads, room, stream>>>(tasks, vocabulary, room > 0 ? 1 : 0,
                                                                                  results);
  cuda_check(cudaGetLastError(), "draw tokens");
}

void launch_candidates(const float* logits, int64_t stride, int rows, int32_t vocabulary, int32_t wanted, int32_t* ids,
                       float* values, cudaStream_t stream) {
  const size_t room = room_for(candidates_kernel, vocabulary);
  candidates_kernel<<<static_cast<unsigned>(rows * kBlocks), kThreads, room, stream>>>(
      logits, stride, vocabulary, room > 0 ? 1 : 0, wanted, ids, values);
  cuda_check(cudaGetLastError(), "find candidates");
}

}  // namespace tensorfold::backend::cuda
