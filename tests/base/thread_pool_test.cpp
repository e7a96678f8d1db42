#include "base/thread_pool.h"

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/error.h"

namespace tensorfold {
namespace {

TEST(ThreadPool, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 2, 4, 7, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      pool.run(count, [&](int64_t begin, int64_t end, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        for (int64_t i = begin; i < end; ++i) hits[static_cast<size_t>(i)].fetch_add(1);
      });
      for (const auto& hit : hits) EXPECT_EQ(hit.load(), 1);
    }
  }
}

TEST(ThreadPool, RunsLoopsOfSeveralCallersAndWakesAfterASleep) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  const auto caller = [&] {
    for (int i = 0; i < 300; ++i) {
      pool.run(10, [&](int64_t begin, int64_t end, int) {
        for (int64_t j = begin; j < end; ++j) sum.fetch_add(j);
      });
      if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // long enough to fall asleep
    }
  };
  std::thread first(caller);
  std::thread second(caller);
  first.join();
  second.join();
  EXPECT_EQ(sum.load(), 2 * 300 * 45);
}

TEST(ThreadPool, LoopsOfChangingLengthNeverMixTheirShares) {
  ThreadPool pool(4);
  std::vector<int64_t> hits(9);
  for (int i = 0; i < 20000; ++i) {
    const int64_t count = i % 9;
    pool.run(count, [&](int64_t begin, int64_t end, int) {
      for (int64_t j = begin; j < end; ++j) hits[static_cast<size_t>(j)] = i;
    });
    for (int64_t j = 0; j < count; ++j) ASSERT_EQ(hits[static_cast<size_t>(j)], i);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need the address space themselves
TEST(ThreadPool, MoreThreadsThanTheSystemGivesAreAnErrorAndThoseStartedEnd) {
  const auto start_too_many = [] {
    const rlimit small{uint64_t{1} << 30, uint64_t{1} << 30};
    setrlimit(RLIMIT_AS, &small);
    try {
      const ThreadPool pool(100000);
    } catch (const Error& error) {
      std::_Exit(error.kind() == ErrorKind::capacity ? 3 : 4);
    }
    std::_Exit(5);
  };
  EXPECT_EXIT(start_too_many(), testing::ExitedWithCode(3), "");
}
#endif

}  // namespace
}  // namespace tensorfold
