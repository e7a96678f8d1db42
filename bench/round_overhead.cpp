// What the engine itself costs a round at many sequences: everything but the model's forward, which here does nothing.
// The goal is 50 microseconds at 16 sequences, with and without drafts to choose.
#include <benchmark/benchmark.h>

#include "drafters/copy_drafter.h"
#include "engine/rounds.h"

namespace tensorfold::engine {
namespace {

/// A model whose forward leaves the logits as they are.
class IdleModel : public families::Model {
 public:
  IdleModel() {
    info_.vocabulary_size = 32;
    info_.hidden_size = 32;
    info_.native_context = 1 << 20;
  }
  [[nodiscard]] const families::ModelInfo& info() const override { return info_; }
  [[nodiscard]] backend::CacheLayout cache_layout() const override {
    return {.entries = {backend::PagedEntry{.name = "kv", .width = 1}}};
  }
  [[nodiscard]] int32_t max_rows() const override { return 576; }
  void forward(const backend::Plan&, backend::Cache&, const families::ForwardOutputs&) override {}
  void embed(const backend::Plan&, backend::Tensor) override {}
  void head(const backend::Plan&, backend::Tensor, backend::Tensor) override {}

 private:
  families::ModelInfo info_;
};

void round(benchmark::State& state) {
  const auto sequences = static_cast<int32_t>(state.range(0));
  std::vector<std::unique_ptr<drafters::Drafter>> own;
  if (state.range(1) > 0) own.push_back(std::make_unique<drafters::CopyDrafter>());
  const auto backend = backend::make_cpu_backend(1);
  IdleModel model;
  CachePool pool(*backend, model.cache_layout(), {},
                 {.page_tokens = 64, .pages = 1 << 16, .state_slots = 64, .window_rows = 576});
  DraftPlanner drafts(std::move(own), -1);
  ForwardRunner forward(*backend, model, pool.target(), {}, 64);
  Rounds rounds(pool, forward, drafts, nullptr,
                {.lanes = sequences, .prefill_rows = 512, .window_rows = 16, .decode_share = 0.25});
  for (int32_t i = 0; i < sequences; ++i) {
    auto sequence = std::make_shared<Sequence>();
    for (int32_t token = 0; token < 100; ++token) sequence->request.prompt.push_back((i + token * token) % 31);
    sequence->request.max_tokens = 1 << 28;
    sequence->tokens = sequence->request.prompt;
    rounds.admit(sequence);
  }
  std::vector<std::shared_ptr<Sequence>> yielded;
  for (int i = 0; i < 8; ++i) rounds.step(yielded);
  for (auto _ : state) rounds.step(yielded);
  state.counters["tokens_a_round"] =
      static_cast<double>(rounds.totals().reply_tokens) / static_cast<double>(rounds.totals().rounds);
}
BENCHMARK(round)
    ->ArgNames({"sequences", "drafts"})
    ->Args({1, 0})
    ->Args({16, 0})
    ->Args({16, 1})
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(4000);

}  // namespace
}  // namespace tensorfold::engine
