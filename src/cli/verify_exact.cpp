// tensorfold verify-exact MODEL: on the user's own weights and machine, no reply may depend on how it was served.
#include "engine/verify_exact.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "base/console.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/memory_plan.h"
#include "cli/model_directory.h"
#include "cli/verify_process.h"
#include "drafters/drafter_set.h"
#include "families/checkpoint.h"
#include "format/config.h"
#include "server/prompt_renderer.h"
#include "text/tokenizer.h"

namespace tensorfold::cli {
namespace {

struct Arguments {
  std::string model;
  std::string backend = "cpu";
  std::string drafter;
  std::string answer;
  int32_t requests = 60;
  int32_t points = 0;
  int32_t neighbours = 15;
  int32_t tokens = 48;
  int32_t context = 2048;
  double cache_gib = 1.0;
  uint64_t seed = 1;
};

constexpr int32_t prompt_rows = 256;

constexpr const char* questions[] = {
    "Tell me a story about a fox.",
    "What is 17 + 25?",
    "Write a Python function that reverses a list, then one that sorts it.",
    "List the months of the year and one thing that happens in each.",
    "Repeat this line five times: the quick brown fox jumps over the lazy dog.",
    "Give me a JSON object with the fields name, age and city.",
    "Explain in two sentences why the sky is blue.",
    "Copy this text and change every cat to dog: the cat sat on the mat and the cat slept.",
};

/// A weather tool, as a request would define it.
server::Json tools() {
  return server::Json::parse(R"([{"type": "function", "function": {"name": "get_weather",
      "description": "The weather of a city", "parameters": {"type": "object",
      "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])");
}

/// Every question with thinking on and off and with a tool; raw text where the model has no template.
std::vector<engine::VerifyPrompt> make_prompts(const std::string& directory, const std::string& model_type) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(directory);
  const server::PromptRenderer renderer(tokenizer, directory, model_type);
  std::vector<engine::VerifyPrompt> prompts;
  for (const char* question : questions) {
    if (!renderer.has_template()) {
      prompts.push_back({"raw", tokenizer.encode(question)});
      continue;
    }
    const server::Json messages = server::Json::array({{{"role", "user"}, {"content", question}}});
    const auto add = [&](const char* kind, const server::Json& with_tools, bool thinking) {
      server::RenderSettings settings;
      settings.thinking = thinking;
      try {
        prompts.push_back({kind, renderer.render(messages, with_tools, settings).ids});
      } catch (const std::exception&) {
        // A template may refuse tools or a mode; the other prompts remain.
      }
    };
    add("thinking", server::Json(), true);
    add("no thinking", server::Json(), false);
    add("tools", tools(), true);
  }
  if (prompts.empty()) fail(ErrorKind::unsupported, "the chat template of {} refuses every prompt", directory);
  return prompts;
}

/// Random token ids, few and many, for checkpoints that come without a tokenizer.
std::vector<engine::VerifyPrompt> random_prompts(int64_t vocabulary, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<engine::VerifyPrompt> prompts;
  for (const size_t size : {3, 9, 17, 24, 40, 70, 110, 200}) {
    std::vector<int32_t> tokens(size);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary));
    prompts.push_back({"random ids", std::move(tokens)});
  }
  return prompts;
}

std::vector<engine::VerifyDrafter> make_drafters(const Arguments& arguments) {
  std::vector<engine::VerifyDrafter> choices;
  const auto add = [&](const char* name, const drafters::DrafterChoice& choice) {
    choices.push_back({name, [choice](backend::Backend& backend, families::Model& model) {
                         return drafters::make_drafters(backend, model, choice);
                       }});
  };
  drafters::DrafterChoice copies;
  copies.mtp = false;
  add("copies", copies);
  add("own head and copies", {});
  if (!arguments.drafter.empty()) {
    drafters::DrafterChoice block;
    block.block_drafter = model_directory(arguments.drafter);
    add("block drafter", block);
  }
  return choices;
}

struct Setup {
  std::string directory;
  std::string model_type;
  int64_t vocabulary = 0;
  engine::VerifyOptions options;
  engine::FuzzFactory make;
  std::vector<engine::VerifyDrafter> drafters;
};

Setup set_up(const Arguments& arguments) {
  Setup setup;
  setup.directory = model_directory(arguments.model);
  const format::CheckpointConfig config = format::load_config(setup.directory);
  const families::ModelInfo info = families::require_family(config.json).describe(config.json);
  setup.model_type = info.model_type;
  setup.vocabulary = info.vocabulary_size;
  engine::VerifyOptions& options = setup.options;
  options.requests = arguments.requests;
  options.seed = arguments.seed;
  options.max_tokens = arguments.tokens;
  options.most_neighbours = arguments.neighbours;
  options.context = std::min(arguments.context, info.native_context);
  options.memory_budget = static_cast<uint64_t>(arguments.cache_gib * 1073741824.0);
  options.end_tokens = info.end_tokens;
  if (arguments.backend == "cpu") options.worlds = {{.threads = 1, .simd = ""}, {.threads = 2, .simd = ""}};
  options.progress = [](const std::string& line) { say_line(stderr, line); };
  setup.make = [backend = arguments.backend, directory = setup.directory](const engine::FuzzWorld& world) {
    engine::FuzzSubject subject;
    subject.backend = backend == "cuda" ? backend::make_cuda_backend(0) : backend::make_cpu_backend(world.threads);
    subject.model = families::load_model(directory, *subject.backend, prompt_rows + 64).model;
    return subject;
  };
  setup.drafters = make_drafters(arguments);
  return setup;
}

std::filesystem::path answers_path(const std::filesystem::path& asked) { return asked.string() + ".answers"; }

/// What a restarted process does: serves the requests of a file, with the kept prefixes beside it.
int answer(const Arguments& arguments) {
  Setup setup = set_up(arguments);
  const std::filesystem::path asked = arguments.answer;
  setup.options.scratch = asked.parent_path();
  const engine::VerifyServing serving = read_serving(asked);
  if (serving.world >= setup.options.worlds.size()) fail(ErrorKind::corrupt_file, "{}: no such world", asked.string());
  engine::FuzzSubject subject = setup.make(setup.options.worlds[serving.world]);
  write_answers(answers_path(asked), engine::serve(subject, setup.drafters, setup.options, serving));
  return 0;
}

std::vector<engine::VerifyAnswer> ask_another_process(const Arguments& arguments, const std::filesystem::path& scratch,
                                                      const engine::VerifyServing& serving) {
  const std::filesystem::path asked = scratch / "asked.json";
  write_serving(asked, serving);
  std::vector<std::string> words = {"verify-exact", arguments.model,
                                    "--answer",     asked.string(),
                                    "--backend",    arguments.backend,
                                    "--tokens",     std::to_string(arguments.tokens),
                                    "--context",    std::to_string(arguments.context),
                                    "--cache-gib",  fmt::format("{}", arguments.cache_gib)};
  if (!arguments.drafter.empty()) words.insert(words.end(), {"--drafter", arguments.drafter});
  run_this_program(words);
  return read_answers(answers_path(asked));
}

void print_differences(const engine::VerifyReport& report) {
  for (const std::string& line : report.first_differences) fmt::print("DIFFERENCE {}\n", line);
}

/// Random requests; whether all is well.
bool verify_requests(const Arguments& arguments, Setup& setup, const std::vector<engine::VerifyPrompt>& prompts) {
  engine::VerifyOptions& options = setup.options;
  options.scratch = std::filesystem::temp_directory_path() / fmt::format("tensorfold-verify-{}", ::getpid());
  options.serve_elsewhere = [&](const engine::VerifyServing& serving) {
    return ask_another_process(arguments, options.scratch, serving);
  };
  const engine::VerifyReport report = engine::verify_exact(setup.make, prompts, setup.drafters, options);
  std::error_code ignored;
  std::filesystem::remove_all(options.scratch, ignored);
  for (const auto& [circumstance, count] : report.met) fmt::print("  {:<40}{}\n", circumstance, count);
  fmt::print("  {:<40}{} of {}\n", "drafts accepted", report.accepted, report.drafted);
  fmt::print("  {:<40}{}\n", "prompt tokens from kept prefixes", report.cached_tokens);
  print_differences(report);
  const std::vector<std::string> never = report.never_met();
  const bool all_met = never.empty() || options.requests < engine::requests_that_meet_all;
  if (!never.empty()) fmt::print("{}never met: {}\n", all_met ? "" : "FAILED, ", fmt::join(never, ", "));
  fmt::print("{} requests, {} differences\n", report.requests, report.differences);
  return report.differences == 0 && all_met;
}

bool verify_points(const Arguments& arguments, const Setup& setup, const std::vector<engine::VerifyPrompt>& prompts) {
  const engine::VerifyReport report =
      engine::verify_every_point(setup.make, prompts, setup.drafters, setup.options, arguments.points);
  print_differences(report);
  fmt::print("{} conversations from every resume point: {} requests, {} differences\n", arguments.points,
             report.requests, report.differences);
  return report.differences == 0;
}

int verify(const Arguments& arguments) {
  if (!arguments.answer.empty()) return answer(arguments);
  Setup setup = set_up(arguments);
  const bool has_tokenizer = std::filesystem::exists(std::filesystem::path(setup.directory) / "tokenizer.json");
  const std::vector<engine::VerifyPrompt> prompts = has_tokenizer ? make_prompts(setup.directory, setup.model_type)
                                                                  : random_prompts(setup.vocabulary, arguments.seed);
  bool passed = arguments.requests == 0 || verify_requests(arguments, setup, prompts);
  if (arguments.points > 0) passed = verify_points(arguments, setup, prompts) && passed;
  return passed ? 0 : 1;
}

}  // namespace

Command verify_exact_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command;
  command.name = "verify-exact";
  command.summary = "Check that no reply depends on how it was served";
  command.description =
      "Each request draws a drafter (scripted ones included), threads, neighbours, greedy or sampled, thinking on or "
      "off, tools, a place to go on from and where kept prefixes lie (device, host, disk, disk in a restarted "
      "process). "
      "Its reply must be that of the same request served one token at a time, alone, from an empty cache. A checkpoint "
      "without a tokenizer is asked random token ids. From 60 requests on, a circumstance that never came up is a "
      "failure too.";
  command.positionals = {{"MODEL", "a checkpoint", &arguments->model, true}};
  command.options = {
      {"--backend", "NAME", "where the model runs", "Model", &arguments->backend, {"cpu", "cuda"}},
      {"--drafter", "MODEL", "a block drafter to try beside the others", "Model", &arguments->drafter, {}},
      {"--requests", "N", "requests to compare at least", "Run", &arguments->requests, {}},
      {"--points",
       "N",
       "and serve N conversations of two turns from every point at which they can resume",
       "Run",
       &arguments->points,
       {}},
      {"--neighbours", "N", "most requests beside one", "Run", &arguments->neighbours, {}},
      {"--tokens", "N", "most tokens of a reply", "Run", &arguments->tokens, {}},
      {"--context", "N", "most tokens of prompt and reply", "Run", &arguments->context, {}},
      {"--cache-gib", "F", "memory for the caches of one engine", "Run", &arguments->cache_gib, {}},
      {"--seed", "N", "seed of every choice", "Run", &arguments->seed, {}},
      {"--answer",
       "FILE",
       "serve the requests of FILE and end: what the check starts as the restarted process",
       "Run",
       &arguments->answer,
       {}},
  };
  command.run = [arguments] {
    if (arguments->requests < 0 || arguments->points < 0 || arguments->neighbours < 0 || arguments->tokens < 1 ||
        arguments->context < 64) {
      fail(ErrorKind::invalid_request, "--requests, --points, --neighbours, --tokens and --context must be positive");
    }
    if (arguments->requests == 0 && arguments->points == 0)
      fail(ErrorKind::invalid_request, "--requests or --points must be positive");
    if (!is_memory(arguments->cache_gib) || arguments->cache_gib == 0.0)
      fail(ErrorKind::invalid_request, "--cache-gib must be a positive size");
    return verify(*arguments);
  };
  return command;
}

}  // namespace tensorfold::cli
