// All products of a 0.8B-class model (hidden 1024, 24 layers, MLP 3584, 8/2 heads of 256, 16/16 linear heads of 128,
// vocabulary 248,320) on random 4-bit weights: what a forward of 1, 2, ... rows costs, beside the time in which the
// same threads just read as many bytes.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "backend/backend.h"
#include "backend/cpu/read_bandwidth.h"
#include "format/synthetic_store.h"

namespace tensorfold {
namespace {

/// TENSORFOLD_BENCH_THREADS, or 2.
int thread_count() {
  const char* text = std::getenv("TENSORFOLD_BENCH_THREADS");
  return text != nullptr ? std::atoi(text) : 2;
}

constexpr int32_t kLayers = 24;
constexpr int64_t kHidden = 1024;
constexpr int64_t kInner = 3584;
constexpr int64_t kVocabulary = 248320;

class Products {
 public:
  Products() : backend_(backend::make_cpu_backend(thread_count())), store_(7) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const bool full = layer % 4 == 3;
      add(full ? 8 * 512 + 2 * 2 * 256 : 3 * 2048 + 2048 + 32, kHidden, backend::Project::Epilogue::store);
      add(kHidden, 2048, backend::Project::Epilogue::add);
      add(2 * kInner, kHidden, backend::Project::Epilogue::swiglu);
      add(kHidden, kInner, backend::Project::Epilogue::add);
    }
    add(kVocabulary, kHidden, backend::Project::Epilogue::store);
  }

  [[nodiscard]] int64_t bytes(bool head) const {
    int64_t total = 0;
    for (size_t i = 0; i + (head ? 0 : 1) < weights_.size(); ++i) total += static_cast<int64_t>(weights_[i]->bytes());
    return total;
  }

  /// Every product once, on `rows` rows; the head only where it would run.
  void forward(const backend::Plan& plan, bool head) {
    const int32_t rows = plan.rows();
    if (rows > room_) {
      room_ = rows;
      input_ = backend_->allocate(rows, kInner);
      output_ = backend_->allocate(rows, 8224);
      logits_ = backend_->allocate(std::min(rows, 16), kVocabulary);
      for (backend::OwnedTensor* tensor : {&input_, &output_}) {
        const std::vector<float> ones(static_cast<size_t>(rows * tensor->view.width), 1.0F);
        backend_->write_rows(*tensor, 0, rows, ones);
      }
    }
    backend_->run(plan, 0, [&] {
      for (size_t i = 0; i < weights_.size(); ++i) {
        const bool is_head = i + 1 == weights_.size();
        if (is_head && !head) break;
        const int64_t outputs = epilogues_[i] == backend::Project::Epilogue::swiglu ? kInner : weights_[i]->outputs();
        backend_->project(plan, {.weights = weights_[i].get(),
                                 .input = input_.view.columns(0, weights_[i]->inputs()),
                                 .epilogue = epilogues_[i],
                                 .output = is_head ? logits_.view : output_.view.columns(0, outputs)});
      }
    });
  }

  static Products& instance() {
    static Products products;
    return products;
  }

 private:
  void add(int64_t outputs, int64_t inputs, backend::Project::Epilogue epilogue) {
    const std::string name = "m" + std::to_string(weights_.size());
    store_.add_linear(name, {outputs, inputs}, format::AffineFormat{4, 64});
    format::Linear linear;
    linear.store = &store_;
    linear.outputs = outputs;
    linear.inputs = inputs;
    linear.affine = format::AffineFormat{4, 64};
    linear.weight = store_.find(name + ".weight");
    linear.scales = store_.find(name + ".scales");
    linear.biases = store_.find(name + ".biases");
    weights_.push_back(backend_->load_projection(std::span(&linear, 1)));
    epilogues_.push_back(epilogue);
  }

  std::unique_ptr<backend::Backend> backend_;
  format::SyntheticStore store_;
  std::vector<std::unique_ptr<backend::Projection>> weights_;
  std::vector<backend::Project::Epilogue> epilogues_;
  backend::OwnedTensor input_, output_, logits_;
  int32_t room_ = 0;
};

backend::Plan chain(int32_t rows) {
  backend::Plan plan;
  plan.begin_sequence(0, 0, {}, true);
  for (int32_t row = 0; row < rows; ++row) plan.add_row(0, row, row - 1, true);
  return plan;
}

void decode(benchmark::State& state) {
  Products& products = Products::instance();
  const backend::Plan plan = chain(static_cast<int32_t>(state.range(0)));
  for (auto _ : state) products.forward(plan, true);
  state.SetBytesProcessed(state.iterations() * products.bytes(true));
  static const double floor = backend::cpu::measure_read_bandwidth(thread_count());
  state.counters["floor_bytes_per_second"] = floor;
}

void prompt(benchmark::State& state) {
  Products& products = Products::instance();
  const backend::Plan plan = chain(static_cast<int32_t>(state.range(0)));
  for (auto _ : state) products.forward(plan, false);
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

/// One matrix that stays in the second-level cache: what the arithmetic alone costs.
void cached_matrix(benchmark::State& state) {
  const auto backend = backend::make_cpu_backend(1);
  format::SyntheticStore store(7);
  store.add_linear("m", {2048, 1024}, format::AffineFormat{static_cast<int32_t>(state.range(1)), 64});
  format::Linear linear;
  linear.store = &store;
  linear.outputs = 2048;
  linear.inputs = 1024;
  linear.affine = format::AffineFormat{static_cast<int32_t>(state.range(1)), 64};
  linear.weight = store.find("m.weight");
  linear.scales = store.find("m.scales");
  linear.biases = store.find("m.biases");
  const auto weights = backend->load_projection(std::span(&linear, 1));
  const backend::Plan plan = chain(static_cast<int32_t>(state.range(0)));
  const auto input = backend->allocate(plan.rows(), 1024);
  const auto output = backend->allocate(plan.rows(), 2048);
  backend->write_rows(input, 0, plan.rows(), std::vector<float>(static_cast<size_t>(plan.rows()) * 1024, 1.0F));
  for (auto _ : state) {
    backend->run(plan, 0,
                 [&] { backend->project(plan, {.weights = weights.get(), .input = input, .output = output}); });
  }
  state.counters["weights/ns"] =
      benchmark::Counter(2048.0 * 1024.0 * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["products/ns"] = benchmark::Counter(
      2048.0 * 1024.0 * 1e-9 * static_cast<double>(state.iterations() * state.range(0)), benchmark::Counter::kIsRate);
}

BENCHMARK(cached_matrix)->ArgsProduct({{1, 2, 3, 4, 6, 8, 12, 16, 96}, {4}})->Unit(benchmark::kMicrosecond);
BENCHMARK(cached_matrix)->Args({1, 8})->Unit(benchmark::kMicrosecond);
BENCHMARK(decode)->Arg(1)->Arg(2)->Arg(3)->Arg(4)->Arg(6)->Arg(8)->Arg(16)->UseRealTime()->Unit(
    benchmark::kMillisecond);
BENCHMARK(prompt)->Arg(128)->Arg(512)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tensorfold
