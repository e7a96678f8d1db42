// What every operation of the forward kernel finds in shared memory, and the barriers of its computing threads.
#pragma once

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/forward_layout.h"

namespace tensorfold::backend::cuda {

/// Named here and nowhere passed on, so that the compiler knows that it is shared memory.
__device__ inline uint8_t* forward_memory() {
  extern __shared__ __align__(128) uint8_t tensorfold_forward_memory[];
  return tensorfold_forward_memory;
}
__device__ inline const ForwardArguments& forward_arguments() {
  return *reinterpret_cast<const ForwardArguments*>(forward_memory() + kArgumentsAt);
}
__device__ inline PlanView forward_plan() { return PlanView{forward_arguments().plan}; }
__device__ inline Operation& operation_slot(int index) {
  return reinterpret_cast<Operation*>(forward_memory() + kOperationsAt)[index % 2];
}
/// How many rows there are, and how many of them have logits.
__device__ inline int32_t* row_counts() { return reinterpret_cast<int32_t*>(forward_memory() + kRowCountsAt); }
template <typename Work>
__device__ inline const Work& operation_work(int index) {
  return *reinterpret_cast<const Work*>(operation_slot(index).work);
}

template <int Id, int Threads>
__device__ inline void named_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}
__device__ inline void consumers_sync() { named_sync<1, kConsumers>(); }

__device__ inline int grid_thread() {
  return static_cast<int>(blockIdx.x) * kConsumers + static_cast<int>(threadIdx.x);
}
__device__ inline int grid_threads() { return static_cast<int>(gridDim.x) * kConsumers; }

/// Waits until `arrivals` has reached `target`; what its thread blocks wrote before is visible then. (An acquiring load
/// would empty the L1 cache at every turn.)
__device__ inline void wait_arrivals(const uint32_t* arrivals, uint32_t target) {
  uint32_t now = 0;
  do {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrivals) : "memory");
  } while (static_cast<int32_t>(now - target) < 0);
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
/// Orders ordinary accesses and those of the copy engine.
__device__ inline void proxy_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// Notes the clock for a profile: 0 when the operation's phase has begun, 1 when the operation has ended.
__device__ inline void stamp(int index, int which) {
  const ForwardArguments& a = forward_arguments();
  if (a.times != nullptr && blockIdx.x < 2 && threadIdx.x == 0)
    a.times[(static_cast<int>(blockIdx.x) * a.operation_count + index) * 2 + which] = clock64();
}

/// Everything of earlier phases is visible after this; all computing threads call it once an operation. Not a call of
/// its own: what is in registers would go to local memory, and the fence empties the L1 cache.
__device__ inline void wait_for_phase(int index) {
  const Operation& operation = operation_slot(index);
  if (operation.begins_phase != 0) {
    const ForwardArguments& a = forward_arguments();
    if (threadIdx.x == 0) wait_arrivals(a.arrivals, a.before + static_cast<uint32_t>(operation.phase) * gridDim.x);
    consumers_sync();
  }
  stamp(index, 0);
}

}  // namespace tensorfold::backend::cuda
