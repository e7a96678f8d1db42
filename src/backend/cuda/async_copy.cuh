// Hopper's asynchronous machinery in a few functions: transaction barriers in shared memory, bulk copies that complete
// on them, and the programmatic launch order of kernels.
#pragma once

#include <cstdint>

namespace tensorfold::backend::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// Arrives and announces `bytes` of asynchronous copies.
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives for `times` threads.
__device__ inline void barrier_arrive_times(uint32_t barrier, uint32_t times) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(times) : "memory");
}

__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  } while (done == 0);
}

/// Cache policy of bytes that are read once.
__device__ inline uint64_t stream_policy() {
  uint64_t policy = 0;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Global to shared, 16-byte aligned, `bytes` a multiple of 16.
__device__ inline void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

__device__ inline void bulk_copy_once(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                                      uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Copies of one thread's own, 16 bytes each, in the order it commits them.
__device__ inline void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until at most `Pending` of what was committed are under way.
template <int Pending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// A place in a ring of stages that is walked stage by stage. Who fills it begins with parity 1: there is nothing to
/// wait for in the first turn.
struct RingStage {
  int at = 0;
  uint32_t parity = 0;
  __device__ void advance(int stages) {
    if (++at == stages) {
      at = 0;
      parity ^= 1;
    }
  }
};

/// Lets the next kernel of the stream start its part that needs nothing from this one.
__device__ inline void allow_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
/// Waits until the kernels before this one have finished and their writes are visible.
__device__ inline void wait_for_previous_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace tensorfold::backend::cuda
