// Cost of one keyed draw at a large vocabulary, by settings.
#include <random>

#include <benchmark/benchmark.h>

#include "backend/keyed_sampling.h"

namespace tensorfold::backend {
namespace {

void draw(benchmark::State& state, const SamplingSettings& settings, int top_logprobs) {
  std::mt19937_64 random(1);
  std::vector<float> logits(248320);
  for (float& logit : logits) logit = 3.0F * std::normal_distribution<float>()(random);
  DrawRow row;
  row.settings = settings;
  row.top_logprobs = top_logprobs;
  for (auto _ : state) {
    ++row.position;
    Drawn drawn;
    benchmark::DoNotOptimize(draw_token(logits, row, drawn));
  }
}

BENCHMARK_CAPTURE(draw, greedy, SamplingSettings{}, -1)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(draw, top_k_20, SamplingSettings{.temperature = 0.7, .top_k = 20, .top_p = 0.95}, -1)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(draw, top_p, SamplingSettings{.temperature = 1.0, .top_p = 0.95}, -1)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(draw, uncut, SamplingSettings{.temperature = 1.0}, -1)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(draw, greedy_with_share, SamplingSettings{}, 0)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tensorfold::backend
