// A fixed set of threads that share loops. Workers spin for a few tens of microseconds after a loop and then sleep, so
// that back-to-back loops start in about a microsecond and an idle machine is left alone. A loop waits for work that
// was begun, never for a thread that did not come: where other processes hold the cores, the caller does it all itself.
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
  /// `threads` 0: one for each core this process may use. Throws Error(capacity) where the system gives fewer.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int size() const { return size_; }

  /// Cuts [0, count) into at most size() contiguous shares and calls body(begin, end, worker) for each; `worker` in
  /// [0, size()) is the thread that took it, which may take several. Returns when all are done.
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
  /// Joins what was started.
  void end();
  using Erased = void (*)(void* context, int64_t begin, int64_t end, int worker);
  void run_erased(int64_t count, Erased body, void* context);
  void work(int worker);
  /// Takes shares of the current loop until none is left.
  void take_shares(int worker);

  int size_ = 1;
  std::mutex callers_;
  std::vector<std::thread> threads_;
  // The current loop. Its fields stand still while a share of it is not finished; a thread that reads them late fails
  // to take a share, because the ticket has moved on.
  std::atomic<Erased> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> count_{0};
  std::atomic<uint32_t> shares_{0};
  alignas(64) std::atomic<uint64_t> ticket_{0};  ///< number of the loop << 32 | next share to take
  alignas(64) std::atomic<int32_t> unfinished_{0};
  alignas(64) std::atomic<uint32_t> wake_{0};  ///< counts loops and the end; what workers sleep on
  std::atomic<bool> stopping_{false};
};

}  // namespace tensorfold
