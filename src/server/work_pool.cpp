#include "server/work_pool.h"

#include <utility>

namespace tensorfold::server {

WorkPool::WorkPool(size_t threads) {
  threads_.reserve(threads);
  try {
    for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (...) {
    stop();  // those that started
    throw;
  }
}

WorkPool::~WorkPool() { stop(); }

bool WorkPool::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return false;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
  return true;
}

void WorkPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  threads_.clear();
  // What came in behind the last thread runs here.
  for (;;) {
    std::function<void()> task;
    {
      const std::lock_guard lock(mutex_);
      ended_ = tasks_.empty();
      if (ended_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void WorkPool::run() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      // A running task may still post others, so the last thread out is the one that finds nothing running.
      wake_.wait(lock, [this] { return !tasks_.empty() || (stopping_ && running_ == 0); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      ++running_;
    }
    task();
    task = nullptr;
    {
      const std::lock_guard lock(mutex_);
      --running_;
      if (stopping_ && running_ == 0) wake_.notify_all();
    }
  }
}

void SerialQueue::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (active_) return;
    active_ = true;
  }
  take_turn();
}

void SerialQueue::take_turn() {
  if (pool_.post([self = shared_from_this()] { self->run(); })) return;
  // Nothing will run again. Tasks often hold the owner of this queue: let go of them.
  std::deque<std::function<void()>> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(tasks_);
  active_ = false;
}

void SerialQueue::run() {
  // A few tasks a turn, so that one busy reply does not hold a thread while others wait.
  for (int turn = 0; turn < 16; ++turn) {
    std::function<void()> task;
    {
      const std::lock_guard lock(mutex_);
      if (tasks_.empty()) {
        active_ = false;
        return;
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
  take_turn();
}

}  // namespace tensorfold::server
