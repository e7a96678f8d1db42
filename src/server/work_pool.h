// The server's own threads: requests are read and replies are worded here, never on the sockets' or the engine's
// thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tensorfold::server {

/// A fixed number of threads that run tasks first come, first served. A task must not throw.
class WorkPool {
 public:
  explicit WorkPool(size_t threads);
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  /// False: the pool has ended and dropped the task.
  bool post(std::function<void()> task);
  /// Runs what is queued and what that posts in turn, then ends the threads. Later posts are dropped.
  void stop();

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  size_t running_ = 0;
  bool stopping_ = false;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

/// Tasks that run on a pool in order, one at a time: one a reply.
class SerialQueue : public std::enable_shared_from_this<SerialQueue> {
 public:
  explicit SerialQueue(WorkPool& pool) : pool_(pool) {}
  void post(std::function<void()> task);

 private:
  void take_turn();
  void run();
  WorkPool& pool_;
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
  bool active_ = false;
};

}  // namespace tensorfold::server
