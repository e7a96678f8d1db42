// A fixed set of threads that share loops. Workers spin for a few tens of microseconds after a loop and then sleep, so
// that back-to-back loops start in about a microsecond and an idle or oversubscribed machine is left alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace tensorfold {

/// Runs index ranges on a fixed number of threads (the caller is one of them). Several threads may call run(); the
/// loops take turns. A loop body must not throw and must not call run() on the same pool.
class ThreadPool {
 public:
  /// `threads` 0: one for each core this process may use.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int size() const { return size_; }

  /// Calls body(begin, end, worker) once for each worker whose share of [0, count) is not empty. Shares are contiguous,
  /// in worker order and at most one apart in length. Returns when all are done.
  template <typename Body>
  void run(int64_t count, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(
        count,
        [](void* context, int64_t begin, int64_t end, int worker) {
          (*static_cast<Plain*>(context))(begin, end, worker);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Erased = void (*)(void* context, int64_t begin, int64_t end, int worker);
  struct Job {
    Erased body = nullptr;
    void* context = nullptr;
    int64_t count = 0;
  };

  void run_erased(int64_t count, Erased body, void* context);
  void work(int worker);
  void run_share(const Job& job, int worker) const;

  int size_ = 1;
  std::mutex callers_;
  Job job_;
  std::vector<std::thread> threads_;
  alignas(64) std::atomic<uint32_t> generation_{0};  ///< counts loops; odd steps of the destructor end the workers
  alignas(64) std::atomic<int32_t> running_{0};      ///< workers that have not finished the current loop
  std::atomic<bool> stopping_{false};
};

}  // namespace tensorfold
