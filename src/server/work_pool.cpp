#include "server/work_pool.h"

#include <utility>

namespace tensorfold::server {

WorkPool::WorkPool(size_t threads) {
  threads_.reserve(threads);
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkPool::~WorkPool() { stop(); }

void WorkPool::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
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
  const std::lock_guard lock(mutex_);
  ended_ = true;
  tasks_.clear();
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
  pool_.post([self = shared_from_this()] { self->run(); });
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
  pool_.post([self = shared_from_this()] { self->run(); });
}

}  // namespace tensorfold::server
