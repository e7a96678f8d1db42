// Attention alone in the 27B's shape (24 query heads, 4 key heads of 256 values), four layers in a row: few rows and
// prompts at depths up to 131,072 tokens. One line a figure, with its floor: a token's 4,096 bytes of keys and values
// over the copy rate for few rows, the products' operations over the tensor cores' rate for prompts.
//   cuda_attention [most tokens [rows]]      (rows: only so many rows behind so many tokens, for a profiler)
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

using namespace tensorfold;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kLayers = 4;
constexpr int32_t kHeads = 24;
constexpr int32_t kKeyHeads = 4;
constexpr int32_t kDim = 256;
constexpr int32_t kChunk = 2048;
constexpr double kCopyRate = 4.28e12;   // bytes a second, measured
constexpr double kTensorRate = 790e12;  // bf16 operations a second, measured

class Bench {
 public:
  explicit Bench(int32_t tokens) : backend_(backend::make_cuda_backend(0)) {
    backend::CacheLayout layout;
    for (int i = 0; i < kLayers; ++i)
      layout.entries.emplace_back(backend::PagedEntry{"keys", int64_t{2} * kKeyHeads * kDim});
    const int32_t pages = tokens / 64 + 40;
    cache_ = backend_->make_cache(layout, {64, pages, 1, 64});
    table_.resize(static_cast<size_t>(pages));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), random_);
    const int64_t width = (2 * kHeads + 2 * kKeyHeads) * kDim;
    input_ = backend_->allocate(kChunk, width, backend::Precision::product);
    output_ = backend_->allocate(kChunk, kHeads * kDim, backend::Precision::product);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(kChunk * width));
    for (float& v : values) v = normal(random_);
    backend_->write_rows(input_.view, 0, kChunk, values);
    std::vector<float> gain(kDim);
    for (float& v : gain) v = 1.0F + 0.2F * normal(random_);
    norm_ = backend_->load_vector(gain);
    std::vector<float> frequencies;
    for (int i = 0; i < 32; ++i) frequencies.push_back(std::pow(1e7F, -static_cast<float>(i) / 32.0F));
    rotation_ = backend_->load_vector(frequencies);
  }

  void fill(int32_t tokens) {
    for (; fed_ < tokens; fed_ += std::min(kChunk, tokens - fed_)) step(std::min(kChunk, tokens - fed_), fed_, true);
  }

  /// Microseconds a layer of `rows` rows behind `depth` tokens.
  double time(int32_t rows, int32_t depth, bool keep, int rounds) {
    std::vector<double> times;
    for (int i = 0; i < rounds + 3; ++i) {
      wait();
      const auto start = Clock::now();
      step(rows, depth, keep);
      wait();
      if (i >= 3) times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void few_rows(int32_t depth) {
    for (const int32_t rows : {1, 8, 16}) {
      const double us = time(rows, depth, false, 12);
      const double floor = kLayers * 4096.0 * (depth + rows) / kCopyRate * 1e6;
      std::printf("%2d rows at %6d: %8.1f us for %d layers, floor %7.1f (%.0f %%)\n", rows, depth, us, kLayers, floor,
                  100 * floor / us);
      auto& cuda = dynamic_cast<backend::cuda::CudaBackend&>(*backend_);
      static_cast<void>(cuda.profile(0));
      step(rows, depth, false);
      for (const int block : {0, 1}) {
        const auto ticks = cuda.profile(block);
        std::printf("  ticks waited+worked, thread block %d:", block);
        for (size_t op = 3; op < 9 && op < ticks.size(); ++op)
          std::printf(" %lld+%lld", static_cast<long long>(ticks[op].waited), static_cast<long long>(ticks[op].worked));
        std::printf("\n");
      }
    }
    std::fflush(stdout);
  }

  void prompt(int32_t depth) {
    const double us = time(kChunk, depth, true, 5);
    const double operations = kLayers * 4.0 * kHeads * kDim * kChunk * (depth + kChunk / 2.0);
    const double floor = operations / kTensorRate * 1e6;
    std::printf("%d rows at %6d: %8.1f us for %d layers, %.0f TFLOP/s, floor %7.1f (%.0f %%)\n", kChunk, depth, us,
                kLayers, operations / us / 1e6, floor, 100 * floor / us);
    std::fflush(stdout);
  }

 private:
  void step(int32_t rows, int32_t depth, bool keep) {
    backend::Plan plan;
    plan.begin_sequence(depth, 0, table_, keep);
    for (int32_t r = 0; r < rows; ++r) plan.add_row(0, depth + r, r - 1, false);
    backend_->run(plan, 1, [&] {
      for (int layer = 0; layer < kLayers; ++layer) attend(plan, layer);
    });
  }

  void attend(const backend::Plan& plan, int layer) {
    backend::Attention a;
    a.cache = cache_.get();
    a.entry = layer;
    a.query = input_.view.columns(0, 2 * kHeads * kDim);
    a.key = input_.view.columns(2 * kHeads * kDim, kKeyHeads * kDim);
    a.value = input_.view.columns((2 * kHeads + kKeyHeads) * kDim, kKeyHeads * kDim);
    a.heads = kHeads;
    a.kv_heads = kKeyHeads;
    a.key_dim = kDim;
    a.value_dim = kDim;
    a.query_norm = norm_.get();
    a.key_norm = norm_.get();
    a.epsilon = 1e-6F;
    a.rotary = {.frequencies = rotation_.get(), .interleaved = false};
    a.scale = 1.0F / 16.0F;
    a.gated = true;
    a.output = output_.view;
    backend_->attention(plan, a);
  }

  void wait() {
    std::vector<float> one(1);
    backend_->read_rows(output_.view.columns(0, 1), 0, 1, one);
    if (one[0] != one[0]) std::printf("NaN\n");
  }

  std::mt19937 random_{7};
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<backend::Cache> cache_;
  std::vector<int32_t> table_;
  backend::OwnedTensor input_;
  backend::OwnedTensor output_;
  std::unique_ptr<backend::Vector> norm_;
  std::unique_ptr<backend::Vector> rotation_;
  int32_t fed_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  const int32_t most = argc > 1 ? std::atoi(argv[1]) : 131072;
  Bench bench(most + 2 * kChunk);
  if (argc > 2) {
    const int32_t rows = std::atoi(argv[2]);
    bench.fill(most);
    std::printf("%d rows at %d: %.1f us\n", rows, most, bench.time(rows, most, rows > 64, 3));
    return 0;
  }
  for (const int32_t depth : {64, 2048, 8192, 32768, 131072}) {
    if (depth > most) break;
    bench.fill(depth);
    bench.few_rows(depth);
    if (depth < 131072) bench.prompt(depth == 64 ? 0 : depth);
  }
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "cuda_attention: %s\n", error.what());
  return 1;
}
