// tensorfold bench MODEL | --synthetic CONFIG.json: how fast prompts and tokens go, beside what memory allows.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "backend/backend.h"
#include "backend/cpu/read_bandwidth.h"
#include "backend/cuda/copy_bandwidth.h"
#include "base/error.h"
#include "cli/bench_drafting.h"
#include "cli/bench_runner.h"
#include "cli/commands.h"
#include "cli/model_directory.h"
#include "cli/model_options.h"
#include "cli/synthetic_checkpoint.h"
#include "families/checkpoint.h"
#include "format/json_file.h"
#include "format/quantization.h"

namespace tensorfold::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  std::string model;
  std::string synthetic;
  int32_t bits = 0;
  int32_t group = 64;
  std::string backend = "cpu";
  int32_t device = 0;
  int32_t threads = 0;
  std::vector<std::string> parts;
  std::vector<std::string> prompts;
  std::vector<std::string> contexts;
  std::vector<std::string> windows;
  std::vector<std::string> streams;
  int32_t rows = 0;
  int32_t tokens = 16;
  int32_t repeats = 3;
  bool unfed = false;
  double peak = 0.0;
  std::string drafter;
  int32_t drafts = 0;
  std::string save;
};

/// What is measured where the user names nothing.
struct Sizes {
  std::vector<int32_t> prompts;
  std::vector<int32_t> contexts;
  std::vector<int32_t> windows;
  std::vector<int32_t> streams;
  int32_t rows = 0;
};

constexpr int32_t kMostStreams = 1024;

Sizes default_sizes(bool gpu) {
  if (gpu) {
    return {{512, 2048, 8192, 32768}, {1, 8192, 32768, 131072}, {1, 2, 4, 8, 16, 32}, {1, 2, 4, 8, 16, 32}, 2048};
  }
  return {{128, 512}, {16, 512}, {1, 2, 3, 4, 6, 8, 12, 16, 32, 64}, {1, 4}, 512};
}

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double rounded(double value) { return std::round(value * 1000.0) / 1000.0; }

std::vector<int32_t> parse_sizes(const std::vector<std::string>& texts, const char* option,
                                 const std::vector<int32_t>& otherwise) {
  if (texts.empty()) return otherwise;
  std::vector<int32_t> sizes;
  for (const std::string& text : texts) {
    const bool digits = !text.empty() && text.size() < 8 && text.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoi(text) < 1)
      fail(ErrorKind::invalid_request, "{} takes a number from 1 to 9999999, not \"{}\"", option, text);
    sizes.push_back(std::stoi(text));
  }
  return sizes;
}

Sizes sizes_of(const BenchOptions& options) {
  const Sizes usual = default_sizes(options.backend == "cuda");
  Sizes sizes{parse_sizes(options.prompts, "--prompt", usual.prompts),
              parse_sizes(options.contexts, "--context", usual.contexts),
              parse_sizes(options.windows, "--window", usual.windows),
              parse_sizes(options.streams, "--streams", usual.streams), options.rows > 0 ? options.rows : usual.rows};
  for (const int32_t window : sizes.windows) {
    if (window > BenchRunner::most_window)
      fail(ErrorKind::invalid_request, "--window: a draft window has at most {} rows", BenchRunner::most_window);
  }
  for (const int32_t streams : sizes.streams) {
    if (streams > kMostStreams) fail(ErrorKind::invalid_request, "--streams must be at most {}", kMostStreams);
  }
  return sizes;
}

nlohmann::json read_config(const BenchOptions& options) {
  format::ProblemList problems;
  nlohmann::json config = format::read_json_object(options.synthetic, uint64_t{16} << 20, problems);
  problems.throw_if_any(ErrorKind::corrupt_file, options.synthetic);
  if (options.bits > 0) config["quantization"] = {{"bits", options.bits}, {"group_size", options.group}};
  return config;
}

/// The floors: what a forward reads from memory, and what it multiplies.
struct Floor {
  double bandwidth = 0.0;      ///< bytes a second; 0: not measured
  double peak = 0.0;           ///< operations a second; 0: not told
  double weight_bytes = 0.0;   ///< of one row
  double state_bytes = 0.0;    ///< of one sequence
  double token_bytes = 0.0;    ///< of one cached token
  double multiplications = 0;  ///< weights a row multiplies with

  /// Of a forward of one row each of `streams` sequences behind `context` tokens: weights once, states read and
  /// written, cached tokens read.
  [[nodiscard]] double seconds(int32_t streams, int32_t context) const {
    return (weight_bytes + streams * (2.0 * state_bytes + context * token_bytes)) / bandwidth;
  }
};

class Measurement {
 public:
  Measurement(const BenchOptions& options, backend::Backend& backend, families::Model& model, Floor floor)
      : options_(options), sizes_(sizes_of(options)), backend_(backend), model_(model), floor_(floor) {}

  nlohmann::json prefill() {
    BenchRunner runner(backend_, model_, 1, most(sizes_.prompts), sizes_.rows);
    nlohmann::json result = nlohmann::json::array();
    for (const int32_t size : sizes_.prompts) {
      double best = 0.0;
      for (int32_t i = 0; i < options_.repeats; ++i) {
        runner.restart();
        best = std::max(best, size / seconds_of([&] { runner.prefill(size); }));
      }
      nlohmann::json entry = {{"tokens", size},
                              {"tokens_per_second", rounded(best)},
                              {"teraflops", rounded(2.0 * best * floor_.multiplications * 1e-12)}};
      if (floor_.peak > 0.0) entry["fraction_of_floor"] = rounded(2.0 * best * floor_.multiplications / floor_.peak);
      result.push_back(entry);
    }
    return result;
  }

  nlohmann::json decode() {
    BenchRunner runner(backend_, model_, 1, most(sizes_.contexts) + options_.tokens + warm_steps, sizes_.rows);
    nlohmann::json result = nlohmann::json::array();
    for (const int32_t size : sizes_.contexts) {
      runner.restart(options_.unfed ? size : 0);
      if (!options_.unfed) runner.prefill(size);
      nlohmann::json entry = timed([&] { runner.decode(); }, 1, size);
      entry["context"] = size;
      if (options_.unfed) entry["unfed"] = true;
      result.push_back(entry);
    }
    return result;
  }

  nlohmann::json streams() {
    nlohmann::json result = nlohmann::json::array();
    for (const int32_t count : sizes_.streams) {
      BenchRunner runner(backend_, model_, count, first_tokens + options_.tokens + warm_steps, sizes_.rows);
      runner.restart(first_tokens);
      nlohmann::json entry = timed([&] { runner.decode(); }, count, first_tokens);
      entry["streams"] = count;
      result.push_back(entry);
    }
    return result;
  }

  /// One repeat runs every width once, so that a busy machine slows all of them alike.
  nlohmann::json rounds() {
    std::vector<int32_t> widths = {1};
    for (const int32_t width : sizes_.windows) {
      if (width > 1 && width <= model_.max_rows()) widths.push_back(width);
    }
    const int32_t repeats = std::max(options_.repeats, options_.backend == "cuda" ? 12 : 1);
    const auto most_rounds = static_cast<int32_t>(widths.size()) * (repeats + warm_steps);
    BenchRunner runner(backend_, model_, 1, first_tokens + most_rounds + BenchRunner::most_window, sizes_.rows);
    runner.prefill(first_tokens);
    std::vector<std::vector<double>> times(widths.size());
    for (int32_t i = -warm_steps; i < repeats; ++i) {
      for (size_t w = 0; w < widths.size(); ++w) {
        const double seconds = seconds_of([&] { runner.round(widths[w]); });
        if (i >= 0) times[w].push_back(seconds);
      }
    }
    nlohmann::json result = nlohmann::json::array();
    for (size_t w = 0; w < times.size(); ++w) {
      const double seconds = median(times[w]);
      nlohmann::json entry = {
          {"rows", widths[w]}, {"milliseconds", rounded(seconds * 1e3)}, {"cost", rounded(seconds / median(times[0]))}};
      if (floor_.bandwidth > 0.0) entry["fraction_of_floor"] = rounded(floor_.seconds(1, first_tokens) / seconds);
      result.push_back(entry);
    }
    return result;
  }

 private:
  static constexpr int32_t warm_steps = 3;     ///< a step of a new kind is recorded before it is fast
  static constexpr int32_t first_tokens = 64;  ///< before streams and rounds

  static int32_t most(const std::vector<int32_t>& sizes) { return *std::max_element(sizes.begin(), sizes.end()); }

  nlohmann::json timed(const std::function<void()>& step, int32_t streams, int32_t context) const {
    std::vector<double> times;
    for (int32_t i = -warm_steps; i < options_.tokens; ++i) {
      const double seconds = seconds_of(step);
      if (i >= 0) times.push_back(seconds);
    }
    const double seconds = median(times);
    nlohmann::json entry = {{"milliseconds", rounded(seconds * 1e3)},
                            {"tokens_per_second", rounded(streams / seconds)}};
    if (floor_.bandwidth > 0.0) entry["fraction_of_floor"] = rounded(floor_.seconds(streams, context) / seconds);
    return entry;
  }

  const BenchOptions& options_;
  Sizes sizes_;
  backend::Backend& backend_;
  families::Model& model_;
  Floor floor_;
};

/// Weights that one row multiplies with: all matrices but lookup tables, experts by the share that a row chooses.
double multiplied_weights(const nlohmann::json& config) {
  double count = 0.0;
  for (const families::TensorSpec& spec : families::require_family(config).inventory(config, {})) {
    const bool matrix = spec.role == families::TensorRole::linear || spec.role == families::TensorRole::tied_embedding;
    if (!matrix || spec.draft_head) continue;
    double size = spec.read_share;
    for (const int64_t side : spec.shape) size *= static_cast<double>(side);
    count += size;
  }
  return count;
}

void check_among(const char* option, int32_t value, std::span<const int32_t> allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
  fail(ErrorKind::invalid_request, "{} must be one of {}, not {}", option, fmt::join(allowed, ", "), value);
}

void check_options(const BenchOptions& options) {
  if (options.model.empty() == options.synthetic.empty())
    fail(ErrorKind::invalid_request, "bench takes either MODEL or --synthetic CONFIG.json");
  if (options.tokens < 1 || options.repeats < 1)
    fail(ErrorKind::invalid_request, "--tokens and --repeats must be at least 1");
  if (!options.save.empty() && options.synthetic.empty())
    fail(ErrorKind::invalid_request, "--save writes the weights of --synthetic");
  if (options.rows < 0 || options.drafts < 0 || !(options.peak >= 0.0))
    fail(ErrorKind::invalid_request, "--rows, --drafts and --peak-tflops must not be negative");
  if (options.bits != 0) check_among("--bits", options.bits, format::kAffineBits);
  check_among("--group", options.group, format::kAffineGroups);
  check_threads(options.threads);
  static_cast<void>(sizes_of(options));
}

int bench(const BenchOptions& options) {
  check_options(options);
  if (!options.save.empty()) {
    const uint64_t bytes = save_synthetic(read_config(options), 1, options.save);
    fmt::print("{}: {:.3f} GB\n", options.save, static_cast<double>(bytes) / 1e9);
    return 0;
  }
  const bool gpu = options.backend == "cuda";
  const auto backend = gpu ? backend::make_cuda_backend(options.device) : backend::make_cpu_backend(options.threads);
  families::LoadedModel loaded;
  const int32_t rows = std::max(sizes_of(options).rows, BenchRunner::most_window);
  const double load_seconds = seconds_of([&] {
    loaded = options.synthetic.empty() ? families::load_model(model_directory(options.model), *backend, rows)
                                       : families::load_synthetic(read_config(options), 1, *backend, rows);
  });
  const families::ModelInfo& info = loaded.model->info();
  const backend::CacheLayout layout = loaded.model->cache_layout();
  Floor floor;
  floor.bandwidth = gpu ? backend::cuda::measure_copy_bandwidth(options.device)
                        : backend::cpu::measure_read_bandwidth(options.threads);
  floor.peak = options.peak * 1e12;
  floor.weight_bytes = static_cast<double>(info.decode_bytes);
  floor.state_bytes = 4.0 * static_cast<double>(families::state_values(layout));
  floor.token_bytes = (gpu ? 2.0 : 4.0) * static_cast<double>(families::paged_values(layout));
  floor.multiplications = multiplied_weights(loaded.config);
  Measurement measurement(options, *backend, *loaded.model, floor);
  const std::set<std::string> parts(options.parts.begin(), options.parts.end());
  const auto wanted = [&](const char* part) { return parts.empty() || parts.contains(part); };
  nlohmann::json result;
  if (wanted("decode")) result["decode"] = measurement.decode();
  if (wanted("rounds")) result["rounds"] = measurement.rounds();
  if (wanted("streams")) result["streams"] = measurement.streams();
  if (wanted("prefill")) result["prefill"] = measurement.prefill();
  if (parts.contains("drafting"))
    result["drafting"] =
        measure_drafting(*backend, *loaded.model, {options.drafter, options.drafts, 3 * options.tokens});
  result["model"] = options.synthetic.empty() ? options.model : "synthetic weights of " + options.synthetic;
  result["model_type"] = info.model_type;
  result["device"] = backend->info().device;
  result["arithmetic"] = backend->info().arithmetic;
  result["load_seconds"] = rounded(load_seconds);
  result["bytes_read_a_token"] = info.decode_bytes;
  result["bandwidth"] = std::round(floor.bandwidth);
  result["floor_tokens_per_second"] = rounded(1.0 / floor.seconds(1, 0));
  fmt::print("{}\n", result.dump(2));
  return 0;
}

}  // namespace

Command bench_command() {
  const auto o = std::make_shared<BenchOptions>();
  Command command;
  command.name = "bench";
  command.summary = "Measure prompt and decode speed, as JSON";
  command.description =
      "Prints tokens a second of prompts, of single tokens behind contexts and of several streams, the cost of draft "
      "windows against one row, and which fraction of its floor each reaches: the bytes that a forward must read over "
      "the memory's measured bandwidth (reading on a CPU, copying on a GPU), or with --peak-tflops a prompt's "
      "operations over that. A time runs from the plan on the host to the drawn tokens back on the host.";
  command.positionals.push_back({"MODEL", "directory or owner/name", &o->model, false});
  const std::string group = "Bench";
  command.options = {
      {"--synthetic",
       "CONFIG",
       "random weights of the shapes of this config.json instead of MODEL",
       group,
       &o->synthetic,
       {}},
      {"--save",
       "FOLDER",
       "with --synthetic: write the weights as a checkpoint (without a tokenizer) and measure nothing",
       group,
       &o->save,
       {}},
      {"--bits", "N", "with --synthetic: quantise to N bits (0: as the config says)", group, &o->bits, {}},
      {"--group", "N", "with --bits: inputs that share a scale", group, &o->group, {}},
      {"--backend", "NAME", "where to run", group, &o->backend, {"cpu", "cuda"}},
      {"--device", "N", "which GPU", group, &o->device, {}},
      {"--threads", "N", "threads (0: one a core)", group, &o->threads, {}},
      {"--part",
       "NAME",
       "measure only this; drafting is measured only when it is named",
       group,
       &o->parts,
       {"decode", "rounds", "streams", "prefill", "drafting"}},
      {"--prompt", "N", "prompt length to measure", group, &o->prompts, {}},
      {"--context", "N", "decode after this many tokens", group, &o->contexts, {}},
      {"--window", "N", "rows of a draft window to measure", group, &o->windows, {}},
      {"--streams", "N", "sequences that decode together", group, &o->streams, {}},
      {"--rows", "N", "most prompt rows in one forward (0: 512, on a GPU 2,048)", group, &o->rows, {}},
      {"--tokens", "N", "tokens to decode at each context", group, &o->tokens, {}},
      {"--repeats", "N", "how often each prompt and window runs", group, &o->repeats, {}},
      {"--unfed", "", "do not feed contexts: what their pages hold does not change the time", group, &o->unfed, {}},
      {"--peak-tflops",
       "N",
       "the device's matrix products, in 10^12 operations a second, as the floor of prompts",
       group,
       &o->peak,
       {}},
      {"--drafter",
       "PATH",
       "for drafting: a DFlash drafter's directory, or its config.json alone for random weights "
       "(default: the model's own head)",
       group,
       &o->drafter,
       {}},
      {"--drafts", "N", "for drafting: drafts a round (0: as many as the drafter gives)", group, &o->drafts, {}},
  };
  command.run = [o] { return bench(*o); };
  return command;
}

}  // namespace tensorfold::cli
