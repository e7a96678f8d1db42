#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#if defined(__linux__)
#include <sched.h>
#endif

#include "base/error.h"

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
  try {
    for (int worker = 1; worker < size_; ++worker) threads_.emplace_back([this, worker] { work(worker); });
  } catch (const std::system_error& refused) {
    const size_t started = threads_.size() + 1;
    end();
    fail(ErrorKind::capacity, "cannot start {} threads: the system gives no more than {} ({})", size_, started,
         refused.code().message());
  }
}

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::end() {
  stopping_.store(true, std::memory_order_relaxed);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ThreadPool::take_shares(int worker) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (true) {
    const auto share = static_cast<uint32_t>(ticket);
    const uint32_t shares = shares_.load(std::memory_order_acquire);
    const Erased body = body_.load(std::memory_order_acquire);
    void* context = context_.load(std::memory_order_acquire);
    const int64_t count = count_.load(std::memory_order_acquire);
    if (share >= shares) return;
    // Success means that this share of this very loop was free until now, so the fields above are its own.
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    const int64_t begin = count * share / shares;
    const int64_t end = count * (int64_t{share} + 1) / shares;
    body(context, begin, end, worker);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1 && worker != 0) unfinished_.notify_one();
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::run_erased(int64_t count, Erased body, void* context) {
  if (count <= 0) return;
  const std::lock_guard lock(callers_);
  if (size_ == 1 || count == 1) {
    body(context, 0, count, 0);  // one share: the caller takes it without waking anyone
    return;
  }
  const auto shares = static_cast<uint32_t>(std::min<int64_t>(size_, count));
  // Closed first: a late thread that already sees a new field must not get a share with the old ticket.
  const uint64_t loop = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.exchange(loop << 32 | 0xFFFFFFFFU, std::memory_order_acq_rel);
  body_.store(body, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  count_.store(count, std::memory_order_release);
  shares_.store(shares, std::memory_order_release);
  unfinished_.store(static_cast<int32_t>(shares), std::memory_order_relaxed);
  ticket_.store(loop << 32, std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
  take_shares(0);
  int32_t left = unfinished_.load(std::memory_order_acquire);
  while (left != 0) {
    wait_for_change(unfinished_, left);
    left = unfinished_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  while (true) {
    wait_for_change(wake_, seen);
    seen = wake_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    take_shares(worker);
  }
}

}  // namespace tensorfold
