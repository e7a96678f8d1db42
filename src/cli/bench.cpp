// tensorfold bench MODEL | --synthetic CONFIG.json: how fast prompts and tokens go, beside what memory allows.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "backend/backend.h"
#include "backend/cpu/read_bandwidth.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_directory.h"
#include "families/checkpoint.h"

namespace tensorfold::cli {
namespace {

struct BenchOptions {
  std::string model;
  std::string synthetic;
  int32_t bits = 0;
  int32_t group = 64;
  std::string backend = "cpu";
  int32_t threads = 0;
  std::vector<std::string> prompts;
  std::vector<std::string> contexts;
  int32_t tokens = 16;
  int32_t repeats = 3;
};

constexpr int32_t kMostRows = 512;
constexpr int32_t kPageTokens = 64;
constexpr int32_t kMostWindow = 64;
constexpr int32_t kWindows[] = {1, 2, 3, 4, 6, 8, 12, 16, 32, kMostWindow};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<int32_t> parse_sizes(const std::vector<std::string>& texts, const char* option) {
  std::vector<int32_t> sizes;
  for (const std::string& text : texts) {
    const bool digits = !text.empty() && text.size() < 8 && text.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoi(text) < 1)
      fail(ErrorKind::invalid_request, "{}: \"{}\" is no number of tokens", option, text);
    sizes.push_back(std::stoi(text));
  }
  return sizes;
}

/// A model with one sequence, fed tokens without an engine around it.
class Runner {
 public:
  Runner(backend::Backend& backend, families::Model& model, int32_t most_tokens)
      : backend_(backend), model_(model), logits_(backend.allocate(kMostWindow, model.info().vocabulary_size)) {
    const int32_t pages = (most_tokens + kPageTokens - 1) / kPageTokens;
    cache_ = backend.make_cache(
        model.cache_layout(), {.page_tokens = kPageTokens, .pages = pages, .state_slots = 1, .window_rows = kMostRows});
    pages_.resize(static_cast<size_t>(pages));
    std::iota(pages_.begin(), pages_.end(), 0);
    restart();
  }

  void restart() {
    committed_ = 0;
    backend_.clear_state(*cache_, 0);
  }

  /// Feeds `count` tokens; the last row's token is drawn.
  void prefill(int32_t count) {
    while (count > 0) {
      const int32_t rows = std::min({count, kMostRows, model_.max_rows()});
      forward(rows, true, rows == count ? 1 : 0);
      committed_ += rows;
      count -= rows;
    }
  }

  /// Feeds one token and draws the next.
  void decode() {
    forward(1, true, 1);
    committed_ += 1;
  }

  /// A draft window of `rows` rows of which the first is kept.
  void round(int32_t rows) {
    const backend::Plan plan = forward(rows, false, rows);
    const backend::KeptPath kept{.sequence = 0, .rows = {0}};
    backend_.commit(plan, *cache_, std::span(&kept, 1));
    committed_ += 1;
  }

 private:
  [[nodiscard]] int32_t token_at(int32_t position) const {
    return static_cast<int32_t>((1000 + 37LL * position) % model_.info().vocabulary_size);
  }

  backend::Plan forward(int32_t rows, bool keep_all, int32_t wanted) {
    backend::Plan plan;
    std::vector<int32_t> past;
    for (int32_t p = std::max(0, committed_ - backend::kHistoryTokens); p < committed_; ++p)
      past.push_back(token_at(p));
    plan.begin_sequence(committed_, 0, pages_, keep_all, past);
    for (int32_t row = 0; row < rows; ++row)
      plan.add_row(token_at(committed_ + row), committed_ + row, row - 1, row >= rows - wanted);
    families::ForwardOutputs outputs;
    if (wanted > 0) outputs.logits = logits_.view;
    backend_.run(plan, static_cast<uint64_t>(wanted > 0), [&] { model_.forward(plan, *cache_, outputs); });
    std::vector<backend::DrawRow> draws(static_cast<size_t>(wanted));
    for (int32_t i = 0; i < wanted; ++i) draws[static_cast<size_t>(i)].logit_row = i;
    std::vector<backend::Drawn> drawn(draws.size());
    backend_.draw(plan, logits_.view, draws);
    backend_.read_draws(drawn);
    return plan;
  }

  backend::Backend& backend_;
  families::Model& model_;
  backend::OwnedTensor logits_;
  std::unique_ptr<backend::Cache> cache_;
  std::vector<int32_t> pages_;
  int32_t committed_ = 0;
};

nlohmann::json read_config(const BenchOptions& options) {
  std::ifstream file(options.synthetic);
  if (!file) fail(ErrorKind::not_found, "{}: cannot be read", options.synthetic);
  nlohmann::json config = nlohmann::json::parse(file, nullptr, false);
  if (!config.is_object()) fail(ErrorKind::corrupt_file, "{}: is not a JSON object", options.synthetic);
  if (options.bits > 0) config["quantization"] = {{"bits", options.bits}, {"group_size", options.group}};
  return config;
}

nlohmann::json measure(const BenchOptions& options, backend::Backend& backend, families::Model& model,
                       double bandwidth) {
  const std::vector<int32_t> prompts = parse_sizes(options.prompts, "--prompt");
  const std::vector<int32_t> contexts = parse_sizes(options.contexts, "--context");
  int32_t most = 0;
  for (const int32_t size : prompts) most = std::max(most, size);
  for (const int32_t size : contexts) most = std::max(most, size + options.tokens);
  const auto windows = static_cast<int32_t>(std::size(kWindows));
  Runner runner(backend, model, most + options.repeats * windows + kMostWindow + 16);
  const auto rounded = [](double value) { return std::round(value * 1000.0) / 1000.0; };

  nlohmann::json prefill = nlohmann::json::array();
  for (const int32_t size : prompts) {
    double best = 0.0;
    for (int32_t i = 0; i < options.repeats; ++i) {
      runner.restart();
      best = std::max(best, size / seconds_of([&] { runner.prefill(size); }));
    }
    prefill.push_back({{"tokens", size}, {"tokens_per_second", rounded(best)}});
  }

  const auto bytes = static_cast<double>(model.info().decode_bytes);
  nlohmann::json decode = nlohmann::json::array();
  for (const int32_t size : contexts) {
    runner.restart();
    runner.prefill(size);
    std::vector<double> times;
    for (int32_t i = 0; i < options.tokens; ++i) times.push_back(seconds_of([&] { runner.decode(); }));
    const double rate = 1.0 / median(times);
    nlohmann::json entry = {{"context", size}, {"tokens_per_second", rounded(rate)}};
    if (bandwidth > 0.0) entry["fraction_of_floor"] = rounded(rate * bytes / bandwidth);
    decode.push_back(entry);
  }

  // One repeat runs every width once, so that a busy machine slows all of them alike.
  std::vector<std::vector<double>> times(std::size(kWindows));
  for (int32_t i = 0; i < options.repeats; ++i) {
    for (size_t w = 0; w < times.size(); ++w) {
      if (kWindows[w] <= model.max_rows()) times[w].push_back(seconds_of([&] { runner.round(kWindows[w]); }));
    }
  }
  nlohmann::json rounds = nlohmann::json::array();
  for (size_t w = 0; w < times.size() && !times[w].empty(); ++w) {
    rounds.push_back({{"rows", kWindows[w]},
                      {"milliseconds", rounded(median(times[w]) * 1e3)},
                      {"cost", rounded(median(times[w]) / median(times[0]))}});
  }
  return {{"prefill", prefill}, {"decode", decode}, {"rounds", rounds}};
}

int bench(const BenchOptions& options) {
  if (options.model.empty() == options.synthetic.empty())
    fail(ErrorKind::invalid_request, "bench takes either MODEL or --synthetic CONFIG.json");
  if (options.tokens < 1 || options.repeats < 1)
    fail(ErrorKind::invalid_request, "--tokens and --repeats must be at least 1");
  const auto backend =
      options.backend == "cuda" ? backend::make_cuda_backend(0) : backend::make_cpu_backend(options.threads);
  families::LoadedModel loaded;
  const double load_seconds = seconds_of([&] {
    loaded = options.synthetic.empty() ? families::load_model(model_directory(options.model), *backend, kMostRows)
                                       : families::load_synthetic(read_config(options), 1, *backend, kMostRows);
  });
  const families::ModelInfo& info = loaded.model->info();
  const double bandwidth = options.backend == "cuda" ? 0.0 : backend::cpu::measure_read_bandwidth(options.threads);
  nlohmann::json result = measure(options, *backend, *loaded.model, bandwidth);
  result["model"] = options.synthetic.empty() ? options.model : "synthetic weights of " + options.synthetic;
  result["model_type"] = info.model_type;
  result["device"] = backend->info().device;
  result["arithmetic"] = backend->info().arithmetic;
  result["load_seconds"] = load_seconds;
  result["bytes_read_a_token"] = info.decode_bytes;
  if (bandwidth > 0.0) {
    result["read_bandwidth"] = std::round(bandwidth);
    result["floor_tokens_per_second"] = bandwidth / static_cast<double>(info.decode_bytes);
  }
  fmt::print("{}\n", result.dump(2));
  return 0;
}

}  // namespace

Command bench_command() {
  const auto o = std::make_shared<BenchOptions>();
  o->prompts = {"128", "512"};
  o->contexts = {"16", "512"};
  Command command;
  command.name = "bench";
  command.summary = "Measure prompt and decode speed, as JSON";
  command.description =
      "Prints tokens a second of prompts and of single tokens, the cost of draft windows against one row, the weight "
      "bytes that a token reads, the machine's read bandwidth, and which fraction of that floor decoding reaches.";
  command.positionals.push_back({"MODEL", "directory or owner/name", &o->model, false});
  const std::string group = "Bench";
  command.options = {
      {"--synthetic",
       "CONFIG",
       "random weights of the shapes of this config.json instead of MODEL",
       group,
       &o->synthetic,
       {}},
      {"--bits", "N", "with --synthetic: quantise to N bits (0: as the config says)", group, &o->bits, {}},
      {"--group", "N", "with --bits: inputs that share a scale", group, &o->group, {}},
      {"--backend", "NAME", "where to run", group, &o->backend, {"cpu", "cuda"}},
      {"--threads", "N", "threads (0: one a core)", group, &o->threads, {}},
      {"--prompt", "N", "prompt length to measure", group, &o->prompts, {}},
      {"--context", "N", "decode after this many tokens", group, &o->contexts, {}},
      {"--tokens", "N", "tokens to decode at each context", group, &o->tokens, {}},
      {"--repeats", "N", "how often each prompt and window runs", group, &o->repeats, {}},
  };
  command.run = [o] { return bench(*o); };
  return command;
}

}  // namespace tensorfold::cli
