// The 27B's shapes with random weights on a GPU: loading, decoding, windows, prompts, streams. One line a figure.
//   cuda_model [layers [long | profile]]      (64 layers by default; long: with a prompt of 32,768)
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "backend/cuda/cuda_backend.h"
#include "base/error.h"
#include "families/checkpoint.h"

using namespace tensorfold;
using Clock = std::chrono::steady_clock;

namespace {

double milliseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

nlohmann::json config_of(int layers) {
  return {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
          {"model_type", "qwen3_5"},
          {"quantization", {{"group_size", 64}, {"bits", 4}}},
          {"text_config",
           {{"model_type", "qwen3_5_text"},
            {"hidden_size", 5120},
            {"intermediate_size", 17408},
            {"num_hidden_layers", layers},
            {"num_attention_heads", 24},
            {"num_key_value_heads", 4},
            {"head_dim", 256},
            {"linear_num_key_heads", 16},
            {"linear_num_value_heads", 48},
            {"linear_key_head_dim", 128},
            {"linear_value_head_dim", 128},
            {"linear_conv_kernel_dim", 4},
            {"full_attention_interval", 4},
            {"hidden_act", "silu"},
            {"attn_output_gate", true},
            {"vocab_size", 248320},
            {"rms_norm_eps", 1e-6},
            {"max_position_embeddings", 262144},
            {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000000}, {"partial_rotary_factor", 0.25}}},
            {"tie_word_embeddings", false},
            {"mtp_num_hidden_layers", 0},
            {"eos_token_id", 248044}}}};
}

class Bench {
 public:
  Bench(int layers, int32_t max_rows) : backend_(backend::make_cuda_backend(0)), max_rows_(max_rows) {
    const auto start = Clock::now();
    loaded_ = families::load_synthetic(config_of(layers), 1, *backend_, max_rows);
    std::printf("%s: %d layers loaded in %.1f s, %.2f GB a row\n", backend_->info().device.c_str(), layers,
                milliseconds(start) / 1000, static_cast<double>(loaded_.model->info().decode_bytes) / 1e9);
    logits_ = backend_->allocate(64, loaded_.model->info().vocabulary_size);
  }

  /// A cache for `streams` sequences of up to `tokens` tokens.
  void begin(int32_t streams, int32_t tokens) {
    cache_.reset();
    const int32_t pages = (tokens + 63) / 64;
    cache_ = backend_->make_cache(loaded_.model->cache_layout(), {64, pages * streams, streams, max_rows_});
    tables_.assign(static_cast<size_t>(streams), {});
    committed_.assign(static_cast<size_t>(streams), 0);
    for (int32_t s = 0; s < streams; ++s) {
      for (int32_t p = 0; p < pages; ++p) tables_[static_cast<size_t>(s)].push_back(p * streams + s);
      backend_->clear_state(*cache_, s);
    }
    shape_ += 1;
  }

  /// `streams` sequences of `rows` rows each; windows that are not kept stay at their place.
  void step(int32_t streams, int32_t rows, bool keep, int32_t logit_rows) {
    backend::Plan plan;
    for (int32_t s = 0; s < streams; ++s) {
      const auto at = static_cast<size_t>(s);
      plan.begin_sequence(committed_[at], s, tables_[at], keep);
      const int32_t first = plan.rows();
      for (int32_t r = 0; r < rows; ++r)
        plan.add_row(1000 + (37 * (committed_[at] + r)) % 50000, committed_[at] + r, r == 0 ? -1 : first + r - 1,
                     r >= rows - logit_rows);
      if (keep) committed_[at] += rows;
    }
    families::ForwardOutputs outputs;
    outputs.logits = logits_;
    backend_->run(plan, shape_, [&] { loaded_.model->forward(plan, *cache_, outputs); });
    plan_ = plan;
  }

  void wait() {
    float value = 0;
    std::vector<float> one(static_cast<size_t>(logits_.view.columns(0, 1).width));
    backend_->read_rows(logits_.view.columns(0, 1), 0, 1, one);
    value = one[0];
    if (value != value) std::printf("NaN\n");
  }

  void rounds(const char* name, int32_t streams, int32_t rows, bool keep, bool commit) {
    std::vector<double> times;
    for (int i = 0; i < 24; ++i) {
      const auto start = Clock::now();
      step(streams, rows, keep, rows);
      if (commit) {
        std::vector<backend::KeptPath> kept;
        for (int32_t s = 0; s < streams; ++s) {
          backend::KeptPath path{s, {}};
          for (int32_t r = 0; r < (rows + 1) / 2; ++r) path.rows.push_back(s * rows + r);
          kept.push_back(path);
        }
        backend_->commit(plan_, *cache_, kept);
      }
      wait();
      if (i >= 6) times.push_back(milliseconds(start));
    }
    std::sort(times.begin(), times.end());
    const double ms = times[times.size() / 2];
    std::printf("%-28s %2d streams x %2d rows at %6d: %.3f ms, %.1f rounds/s, %.0f rows/s\n", name, streams, rows,
                committed_[0], ms, 1000 / ms, 1000 / ms * streams * rows);
    std::fflush(stdout);
  }

  /// Where the time of one round goes: per kind of operation of the forward program, mean waits and work.
  void profile(const char* name, int32_t rows) {
    auto& cuda = dynamic_cast<backend::cuda::CudaBackend&>(*backend_);
    static_cast<void>(cuda.profile(0));
    for (int i = 0; i < 3; ++i) step(1, rows, rows == 1, rows);
    static constexpr const char* names[] = {"embed",   "norm",     "copy",  "product",           "delta",      "tails",
                                            "prepare", "partials", "merge", "block convolution", "scaled rows"};
    struct Sum {
      int count = 0;
      double waited = 0;
      double worked = 0;
    };
    for (const int block : {0, 1}) {
      const auto times = cuda.profile(block);
      std::array<Sum, 11> sums;
      for (const auto& time : times) {
        Sum& sum = sums[static_cast<size_t>(time.kind)];
        sum.count += 1;
        sum.waited += static_cast<double>(time.waited) / 1000;
        sum.worked += static_cast<double>(time.worked) / 1000;
      }
      std::printf("%s, thread block %d, thousands of clock ticks:\n", name, block);
      for (size_t i = 0; i < sums.size(); ++i)
        if (sums[i].count > 0)
          std::printf("  %-10s %4d: waited %8.1f (%.2f each), worked %8.1f (%.2f each)\n", names[i], sums[i].count,
                      sums[i].waited, sums[i].waited / sums[i].count, sums[i].worked, sums[i].worked / sums[i].count);
      for (size_t i = 1; i < 36 && i < times.size(); ++i)
        std::printf("  %s %.2f+%.2f", names[static_cast<size_t>(times[i].kind)],
                    static_cast<double>(times[i].waited) / 1000, static_cast<double>(times[i].worked) / 1000);
      std::printf("\n");
    }
    std::fflush(stdout);
  }

  /// Begins at `tokens` tokens without feeding them: what the pages hold does not change the time.
  void begin_at(int32_t tokens) {
    begin(1, tokens + 256);
    committed_[0] = tokens;
  }

  void prompt(int32_t tokens, int32_t chunk) {
    begin(1, tokens + 256);
    const auto start = Clock::now();
    for (int32_t done = 0; done < tokens; done += chunk) step(1, std::min(chunk, tokens - done), true, 1);
    wait();
    const double ms = milliseconds(start);
    std::printf("prompt of %6d in chunks of %d: %.1f ms, %.0f tokens/s\n", tokens, chunk, ms, tokens / ms * 1000);
    std::fflush(stdout);
  }

 private:
  std::unique_ptr<backend::Backend> backend_;
  int32_t max_rows_;
  families::LoadedModel loaded_;
  backend::OwnedTensor logits_;
  std::unique_ptr<backend::Cache> cache_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int32_t> committed_;
  uint64_t shape_ = 0;
  backend::Plan plan_;
};

}  // namespace

int main(int argc, char** argv) try {
  const int layers = argc > 1 ? std::atoi(argv[1]) : 64;
  Bench bench(layers, 2048);
  if (argc > 2 && std::string(argv[2]) == "profile") {  // one step of each kind, kernel by kernel
    bench.begin(1, 4096);
    for (const int rows : {1, 8, 16}) bench.profile(("rows " + std::to_string(rows)).c_str(), rows);
    bench.prompt(2048, 2048);
    return 0;
  }
  bench.begin(1, 4096);
  bench.step(1, 32, true, 1);
  bench.rounds("serial decode", 1, 1, true, false);
  for (const int rows : {1, 2, 4, 8, 16, 32}) bench.rounds("window, half kept", 1, rows, false, true);
  for (const int streams : {2, 4, 8, 16, 32}) {
    bench.begin(streams, 512);
    bench.step(streams, 16, true, 1);
    bench.rounds("serial decode", streams, 1, true, false);
  }
  bench.begin(1, 4096);
  for (const int rows : {1, 8}) bench.profile(("rows " + std::to_string(rows)).c_str(), rows);
  bench.prompt(512, 512);
  bench.prompt(512, 512);
  bench.prompt(2048, 2048);
  bench.rounds("serial decode", 1, 1, true, false);
  bench.prompt(8192, 2048);
  bench.rounds("serial decode", 1, 1, true, false);
  if (argc > 2) {
    bench.prompt(32768, 2048);
    bench.rounds("serial decode", 1, 1, true, false);
    bench.begin_at(131072);
    bench.rounds("serial decode, pages not fed", 1, 1, true, false);
  }
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "cuda_model: %s\n", error.what());
  return 1;
}
