#include "backend/cpu/read_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/packed_matrix.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace tensorfold::backend::cpu {

double measure_read_bandwidth(int threads) {
  constexpr size_t bytes = size_t{512} << 20;
  constexpr int64_t block = 1 << 16;  // floats
  ThreadPool pool(threads);
  const KernelTable& kernels = select_kernels("");
  const AlignedBytes memory(bytes, "the bandwidth test");
  std::memset(memory.data(), 0, bytes);
  std::vector<float> totals(static_cast<size_t>(pool.size()));
  double best = 0.0;
  for (int pass = 0; pass < 5; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(static_cast<int64_t>(bytes / sizeof(float)) / block, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i)
        totals[static_cast<size_t>(worker)] += kernels.total(memory.floats() + i * block, block);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(bytes) / seconds.count());
  }
  for (const float total : totals) check(total == 0.0F, "the bandwidth test read what it did not write");
  return best;
}

}  // namespace tensorfold::backend::cpu
