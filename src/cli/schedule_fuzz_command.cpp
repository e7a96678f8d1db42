// tensorfold schedule-fuzz MODEL|--synthetic CONFIG: the test of the law on the user's own weights and machine.
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "engine/schedule_fuzz.h"
#include "families/checkpoint.h"

namespace tensorfold::cli {
namespace {

constexpr int32_t rows_of_a_forward = 256;
constexpr int32_t most_story_tokens = 8192;
constexpr uint64_t most_config_bytes = 16 << 20;

struct Arguments {
  std::string model;
  std::string synthetic;
  std::string backend = "cpu";
  double seconds = 60.0;
  uint64_t seed = 1;
  int32_t tokens = 600;
  int32_t threads = 0;
  bool break_order = false;
};

/// One thread and several, the best SIMD level and the portable one.
std::vector<engine::FuzzWorld> worlds_of(const Arguments& arguments) {
  if (arguments.backend != "cpu") return {{.threads = 0, .simd = ""}};
  if (arguments.threads > 0) return {{.threads = arguments.threads, .simd = ""}};
  return {{.threads = 1, .simd = ""}, {.threads = 2, .simd = "portable"}, {.threads = 2, .simd = ""}};
}

engine::FuzzSubject make_subject(const Arguments& arguments, const engine::FuzzWorld& world) {
  engine::FuzzSubject subject;
  subject.backend = arguments.backend == "cuda"
                        ? backend::make_cuda_backend(0)
                        : backend::make_cpu_backend(world.threads, world.simd, arguments.break_order);
  if (arguments.synthetic.empty()) {
    subject.model = families::load_model(arguments.model, *subject.backend, rows_of_a_forward).model;
    return subject;
  }
  const auto config = nlohmann::json::parse(read_text_file(arguments.synthetic, most_config_bytes), nullptr, false);
  if (config.is_discarded()) fail(ErrorKind::invalid_request, "{} is not JSON", arguments.synthetic);
  subject.model = families::load_synthetic(config, arguments.seed, *subject.backend, rows_of_a_forward).model;
  return subject;
}

int print_report(const engine::FuzzReport& report) {
  fmt::print("rounds {}; compared {} logit rows, {} states, {} pages\n", report.rounds, report.compared_rows,
             report.compared_states, report.compared_pages);
  for (const auto& [name, count] : report.counters) fmt::print("  {:<22}{}\n", name, count);
  fmt::print("  {:<22}{}\n", "slices", report.several_slices ? "several" : "one (rows are narrow)");
  for (const std::string& line : report.first_mismatches) fmt::print("MISMATCH {}\n", line);
  for (const std::string& name : report.untouched()) fmt::print("NEVER MET {}\n", name);
  fmt::print("{}: {} mismatches\n", report.passed() ? "passed" : "FAILED", report.mismatches);
  return report.passed() ? 0 : 1;
}

}  // namespace

Command schedule_fuzz_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command;
  command.name = "schedule-fuzz";
  command.summary = "Compare random schedules with serial feeding, bit for bit";
  command.positionals = {
      {.name = "MODEL", .help = "A checkpoint's directory", .target = &arguments->model, .required = false}};
  command.options = {
      {.name = "--synthetic",
       .value = "CONFIG",
       .help = "Random weights of this config.json's shapes",
       .group = "Model",
       .target = &arguments->synthetic,
       .choices = {},
       .inverted = false},
      {.name = "--backend",
       .value = "NAME",
       .help = "Where to compute",
       .group = "Model",
       .target = &arguments->backend,
       .choices = {"cpu", "cuda"},
       .inverted = false},
      {.name = "--seconds",
       .value = "N",
       .help = "Time for schedules",
       .group = "Run",
       .target = &arguments->seconds,
       .choices = {},
       .inverted = false},
      {.name = "--seed",
       .value = "S",
       .help = "Seed of stories and schedules",
       .group = "Run",
       .target = &arguments->seed,
       .choices = {},
       .inverted = false},
      {.name = "--tokens",
       .value = "N",
       .help = "Tokens of the longest story, fed one by one before the time begins (above 512: two attention "
               "partitions)",
       .group = "Run",
       .target = &arguments->tokens,
       .choices = {},
       .inverted = false},
      {.name = "--threads",
       .value = "N",
       .help = "Only so many threads (0: one and two, each SIMD path)",
       .group = "Run",
       .target = &arguments->threads,
       .choices = {},
       .inverted = false},
      {.name = "--break-order",
       .value = "",
       .help = "Compute wrongly on purpose: the run must fail",
       .group = "Run",
       .target = &arguments->break_order,
       .choices = {},
       .inverted = false}};
  command.run = [arguments] {
    if (arguments->model.empty() == arguments->synthetic.empty()) {
      fail(ErrorKind::invalid_request, "schedule-fuzz takes either MODEL or --synthetic CONFIG{}",
           arguments->model.empty() ? "" : ", not both");
    }
    check_threads(arguments->threads);
    // The stories are fed one token at a time before the schedules' time begins.
    if (arguments->tokens < 64 || arguments->tokens > most_story_tokens) {
      fail(ErrorKind::invalid_request, "--tokens must lie between 64 and {}, not {}", most_story_tokens,
           arguments->tokens);
    }
    if (!(arguments->seconds >= 0.0 && arguments->seconds < 1e9))
      fail(ErrorKind::invalid_request, "--seconds must be finite and not negative");
    engine::FuzzOptions options;
    options.seconds = arguments->seconds;
    options.seed = arguments->seed;
    options.long_story = arguments->tokens;
    options.worlds = worlds_of(*arguments);
    return print_report(engine::fuzz_schedules(
        [&](const engine::FuzzWorld& world) { return make_subject(*arguments, world); }, options));
  };
  return command;
}

}  // namespace tensorfold::cli
