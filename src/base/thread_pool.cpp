#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>

#if defined(__linux__)
#include <sched.h>
#endif

namespace tensorfold {
namespace {

/// Long enough to bridge the gap between two operations of a forward, short enough not to rob other processes.
constexpr std::chrono::microseconds kSpin{30};

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits until `value` differs from `old`: spinning first, then asleep.
template <typename T>
void wait_for_change(const std::atomic<T>& value, T old) {
  const auto give_up = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause_core();
    }
  } while (std::chrono::steady_clock::now() < give_up);
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

int usable_cores() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

ThreadPool::ThreadPool(int threads) : size_(threads > 0 ? threads : usable_cores()) {
  threads_.reserve(static_cast<size_t>(size_ - 1));
  for (int worker = 1; worker < size_; ++worker) threads_.emplace_back([this, worker] { work(worker); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run_share(const Job& job, int worker) const {
  const int64_t begin = job.count * worker / size_;
  const int64_t end = job.count * (worker + 1) / size_;
  if (begin < end) job.body(job.context, begin, end, worker);
}

void ThreadPool::run_erased(int64_t count, Erased body, void* context) {
  if (count <= 0) return;
  const std::lock_guard lock(callers_);
  const Job job{body, context, count};
  if (size_ == 1 || count == 1) {
    // One share: it may be any worker's; the caller takes it without waking anyone.
    body(context, 0, count, 0);
    return;
  }
  job_ = job;
  running_.store(size_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  run_share(job, 0);
  int32_t left = running_.load(std::memory_order_acquire);
  while (left != 0) {
    wait_for_change(running_, left);
    left = running_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  while (true) {
    wait_for_change(generation_, seen);
    ++seen;  // The caller waits for every worker before it starts another loop, so none is skipped.
    if (stopping_.load(std::memory_order_relaxed)) return;
    run_share(job_, worker);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace tensorfold
