// Does drafting pay what it could? Three tables, all measured in one run, contestants interleaved:
//   depths     for stories, code and copies on the demonstration model: E tokens a round and C cost of a round (one
//   plain
//              round: 1) at fixed numbers of drafts, the best E/C, and what the draft policy reached of it
//   synthetic  the same on random weights of real shapes with a drafter of known acceptance
//   pairs      twelve kinds of requests, whole time with drafts against whole time without: medians of interleaved
//   pairs
// The floor of a drafted run is the best E/C of its table; the goals are 0.9 of it, and never below 0.95 of serial.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sched.h>

#include "backend/keyed_sampling.h"
#include "base/error.h"
#include "drafters/drafter_set.h"
#include "drafters/scripted_drafter.h"
#include "engine/engine.h"
#include "families/checkpoint.h"
#include "server/prompt_renderer.h"
#include "text/tokenizer.h"

namespace tensorfold {
namespace {

using Clock = std::chrono::steady_clock;
using Drafters = std::vector<std::unique_ptr<drafters::Drafter>>;

constexpr double kGoalOfBest = 0.9;
constexpr double kGoalOfSerial = 0.95;

struct Settings {
  std::string model = "models/demo";
  std::string drafter = "models/demo-dflash2";
  std::string synthetic = "bench/configs/qwen3_5-0.8b.json";
  std::string part = "all";
  std::string only;  ///< workloads and kinds whose name holds this
  std::string sets;  ///< drafters whose name holds this
  int threads = 2;
  int repeats = 5;
  int pairs = 9;
  int counts = 0;  ///< > 0: also print what was drafted
};

struct Ask {
  std::vector<int32_t> prompt;
  int32_t tokens = 128;
  double temperature = 0.0;
  bool end = true;  ///< whether end tokens end it
};

/// Requests that are served one after the other, or all at once.
struct Workload {
  std::string name;
  std::vector<Ask> asks;
  bool together = false;
};

/// What became of a workload.
struct Run {
  double whole = 0.0;   ///< seconds from the first request to the last reply
  double cpu = 0.0;     ///< processor seconds of this process meanwhile
  double decode = 0.0;  ///< seconds of decoding, added over replies
  int64_t tokens = 0;   ///< behind the first of each reply
  int64_t rounds = 0;
  int64_t drafted = 0;
  int64_t accepted = 0;
  std::vector<std::vector<int32_t>> replies;
  [[nodiscard]] double rate() const { return static_cast<double>(tokens) / std::max(decode, 1e-9); }
  [[nodiscard]] double expected() const {
    return rounds > 0 ? static_cast<double>(tokens) / static_cast<double>(rounds) : 1.0;
  }
};

/// Threads that are made from now on run on the cores from `first` to before `last`. Where the system places the
/// engines' threads and the backend's must not differ between contestants.
void make_threads_on(int first, int last) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int core = first; core < last; ++core) CPU_SET(static_cast<size_t>(core), &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

/// A backend whose further threads stay beside the engines' core.
std::unique_ptr<backend::Backend> make_backend(int threads) {
  if (threads > 1) make_threads_on(1, threads);
  auto made = backend::make_cpu_backend(threads);
  make_threads_on(0, 1);
  return made;
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Subject {
  std::unique_ptr<backend::Backend> backend;
  std::unique_ptr<families::Model> model;
};

/// An engine, and whether it has measured what its rounds cost.
struct Started {
  std::unique_ptr<engine::Engine> engine;
  std::shared_ptr<std::atomic<bool>> calibrated = std::make_shared<std::atomic<bool>>(false);
};

/// An engine under a name. depth < 0: the policy decides.
struct Contestant {
  std::string name;
  int32_t depth = 0;
  Started started;
};

Started start(Subject& subject, Drafters made, int32_t depth, int32_t parallel = 1) {
  engine::EngineOptions options;
  options.context = 2048;
  options.parallel = parallel;
  options.keep_prefixes = false;
  options.kept_states = 1;
  options.memory_budget = uint64_t{512} << 20;
  options.prefill_rows = 256;
  options.drafts = !made.empty();
  options.fixed_drafts = depth;
  Started started;
  options.log = [calibrated = started.calibrated](const std::string& line) {
    fmt::print("  ({})\n", line);
    *calibrated = true;
  };
  started.engine = engine::start_engine(*subject.backend, *subject.model, options, std::move(made));
  return started;
}

Run play(engine::Engine& engine, const Workload& workload, const std::vector<int32_t>& end_tokens) {
  Run run;
  run.replies.resize(workload.asks.size());
  std::mutex mutex;
  std::condition_variable done;
  size_t left = workload.asks.size();
  const auto submit = [&](size_t i) {
    const Ask& ask = workload.asks[i];
    engine::Request request;
    request.prompt = ask.prompt;
    request.max_tokens = ask.tokens;
    if (ask.end) request.end_tokens = end_tokens;
    request.sampling = {.temperature = ask.temperature,
                        .top_k = 0,
                        .top_p = 0.95,
                        .min_p = 0.0,
                        .seed = backend::default_seed(ask.prompt)};
    request.on_tokens = [&run, i](std::span<const int32_t> tokens, std::span<const engine::TokenLogprobs>) {
      run.replies[i].insert(run.replies[i].end(), tokens.begin(), tokens.end());
      return true;
    };
    request.on_finish = [&](const engine::ReplyResult& result) {
      const std::lock_guard lock(mutex);
      run.decode += result.statistics.decode_seconds;
      run.tokens += result.statistics.reply_tokens - 1;
      run.rounds += result.statistics.rounds - 1;
      run.drafted += result.statistics.drafted;
      run.accepted += result.statistics.accepted;
      --left;
      done.notify_all();
    };
    engine.submit(std::move(request));
  };
  const auto wait_until = [&](size_t count) {
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return left <= count; });
  };
  const auto begin = Clock::now();
  const double cpu = processor_seconds();
  for (size_t i = 0; i < workload.asks.size(); ++i) {
    submit(i);
    if (!workload.together) wait_until(workload.asks.size() - i - 1);
  }
  wait_until(0);
  run.whole = std::chrono::duration<double>(Clock::now() - begin).count();
  run.cpu = processor_seconds() - cpu;
  return run;
}

/// The engine measures its costs after the first reply, while nothing else runs: two engines on one backend must not
/// run at the same time, so everything waits for it.
void let_calibrate(const Started& started) {
  for (int tries = 0; tries < 2000 && !*started.calibrated; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// ---- the table of depths
// ----------------------------------------------------------------------------------------------

struct Figures {
  double expected = 1.0;
  double cost = 1.0;
  double ratio = 1.0;  ///< tokens a second against serial
};

/// Every contestant `repeats` times, in turn; contestants[0] is serial.
std::vector<Figures> measure(std::vector<Contestant>& contestants, const Workload& workload, int repeats,
                             const std::vector<int32_t>& end_tokens) {
  std::vector<std::vector<double>> ratios(contestants.size());
  std::vector<std::vector<double>> costs(contestants.size());
  std::vector<std::vector<double>> expected(contestants.size());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    double serial_rate = 1.0;
    double serial_round = 1.0;
    for (size_t i = 0; i < contestants.size(); ++i) {
      const Run run = play(*contestants[i].started.engine, workload, end_tokens);
      const double round = run.decode / static_cast<double>(std::max<int64_t>(run.rounds, 1));
      if (i == 0) {
        serial_rate = run.rate();
        serial_round = round;
      }
      ratios[i].push_back(run.rate() / serial_rate);
      costs[i].push_back(round / serial_round);
      expected[i].push_back(run.expected());
    }
  }
  std::vector<Figures> figures;
  for (size_t i = 0; i < contestants.size(); ++i) {
    figures.push_back({median(expected[i]), median(costs[i]), median(ratios[i])});
  }
  return figures;
}

struct PolicyRow {
  std::string name;
  std::vector<std::string> drafters;  ///< whose depths it may choose from
};

/// Prints one workload's table; whether every policy reached its share.
bool print_depths(const Workload& workload, const std::vector<Contestant>& contestants,
                  const std::vector<Figures>& figures, const std::vector<PolicyRow>& policies) {
  fmt::print("\n{}\n  {:<22}{:>7}{:>9}{:>9}{:>9}\n", workload.name, "drafter", "drafts", "E", "C", "ratio");
  for (size_t i = 0; i < contestants.size(); ++i) {
    const std::string depth = contestants[i].depth < 0 ? "policy" : fmt::format("{}", contestants[i].depth);
    fmt::print("  {:<22}{:>7}{:>9.3f}{:>9.3f}{:>9.3f}\n", contestants[i].name, depth, figures[i].expected,
               figures[i].cost, figures[i].ratio);
  }
  bool good = true;
  for (const PolicyRow& policy : policies) {
    double best = 1.0;
    double reached = 1.0;
    std::string which = "serial";
    for (size_t i = 0; i < contestants.size(); ++i) {
      const Contestant& c = contestants[i];
      if (c.depth < 0 && c.name == policy.name) reached = figures[i].ratio;
      const bool own = std::find(policy.drafters.begin(), policy.drafters.end(), c.name) != policy.drafters.end();
      // What drafted nothing is serial, and faster by chance only.
      if (c.depth < 1 || !own || figures[i].expected < 1.001 || figures[i].ratio <= best) continue;
      best = figures[i].ratio;
      which = fmt::format("{} {}", c.name, c.depth);
    }
    const double share = reached / best;
    good = good && share >= kGoalOfBest;
    fmt::print("  {}: best {:.3f} ({}), policy {:.3f}, share {:.3f}{}\n", policy.name, best, which, reached, share,
               share >= kGoalOfBest ? "" : "  BELOW 0.9");
  }
  std::fflush(stdout);
  return good;
}

// ---- prompts of the demonstration model
// -------------------------------------------------------------------------------

class Prompts {
 public:
  explicit Prompts(const std::string& directory)
      : tokenizer_(text::Tokenizer::load(directory)), renderer_(tokenizer_, directory) {}
  [[nodiscard]] std::vector<int32_t> chat(const std::string& question, bool thinking = false) const {
    server::RenderSettings settings;
    settings.thinking = thinking;
    const server::Json messages = server::Json::array({{{"role", "user"}, {"content", question}}});
    return renderer_.render(messages, server::Json(), settings).ids;
  }
  /// A reply's text, without the token that ends it.
  [[nodiscard]] std::string text(std::vector<int32_t> tokens) const {
    if (!tokens.empty()) tokens.pop_back();
    return tokenizer_.decode(tokens, true);
  }

 private:
  text::Tokenizer tokenizer_;
  server::PromptRenderer renderer_;
};

/// A story that the model itself tells, so that it can copy it.
std::string told_story(const Prompts& prompts, engine::Engine& serial, const std::vector<int32_t>& ends) {
  const Run run = play(serial, {"", {{.prompt = prompts.chat("Tell me a story about a fox."), .tokens = 160}}}, ends);
  return prompts.text(run.replies[0]);
}

std::vector<Workload> demo_workloads(const Prompts& prompts, const std::string& text) {
  const auto asks = [&](std::initializer_list<std::string> questions) {
    std::vector<Ask> made;
    for (const std::string& question : questions) made.push_back({.prompt = prompts.chat(question)});
    return made;
  };
  return {{"stories", asks({"Tell me a story about a fox.", "Tell me a story about an owl and a lamp."})},
          {"code", asks({"Write a Python function that checks if a number is prime.",
                         "Write a Python function that counts the vowels in a string.",
                         "Write a Python function that finds the largest item in a list."})},
          {"copies", asks({"Repeat this text:\n" + text, "Copy this text:\n" + text})}};
}

Drafters drafters_of(const Settings& settings, Subject& subject, const std::string& set) {
  drafters::DrafterChoice choice;
  choice.copies = set.find("copies") != std::string::npos;
  choice.mtp = set.find("mtp") != std::string::npos;
  if (set.find("dflash2") != std::string::npos) choice.block_drafter = settings.drafter;
  return drafters::make_drafters(*subject.backend, *subject.model, choice);
}

bool depths(const Settings& settings, Subject& subject, const Prompts& prompts) {
  const std::vector<int32_t> ends = subject.model->info().end_tokens;
  std::vector<Contestant> contestants;
  contestants.push_back({"serial", 0, start(subject, {}, -1)});
  const std::map<std::string, std::vector<int32_t>> tried = {
      {"mtp", {1, 2, 3, 4}}, {"dflash2", {1, 2, 3, 4, 5, 6, 7}}, {"copies", {1, 2, 4, 8, 16, 32, 63}}};
  for (const auto& [name, counts] : tried) {
    if (name.find(settings.sets) == std::string::npos) continue;
    for (const int32_t depth : counts) {
      contestants.push_back({name, depth, start(subject, drafters_of(settings, subject, name), depth)});
    }
  }
  std::vector<PolicyRow> policies = {
      {"mtp+copies", {"mtp", "copies"}}, {"dflash2+copies", {"dflash2", "copies"}}, {"copies", {"copies"}}};
  std::erase_if(policies, [&](const PolicyRow& row) { return row.name.find(settings.sets) == std::string::npos; });
  const std::vector<Workload> workloads =
      demo_workloads(prompts, told_story(prompts, *contestants[0].started.engine, ends));
  const size_t fixed = contestants.size();
  bool good = true;
  for (const Workload& workload : workloads) {
    if (workload.name.find(settings.only) == std::string::npos) continue;
    // Policies meet each kind of traffic afresh, and have seen a little of it when they are measured.
    contestants.resize(fixed);
    for (const PolicyRow& policy : policies) {
      contestants.push_back({policy.name, -1, start(subject, drafters_of(settings, subject, policy.name), -1)});
      for (int times = 0; times < 2; ++times) {
        play(*contestants.back().started.engine, workload, ends);
        let_calibrate(contestants.back().started);
      }
    }
    good =
        print_depths(workload, contestants, measure(contestants, workload, settings.repeats, ends), policies) && good;
  }
  return good;
}

// ---- scripted drafters
// ------------------------------------------------------------------------------------------------

Contestant scripted(Subject& subject, const std::string& name, double acceptance, int32_t depth,
                    const std::vector<Ask>& asks, const std::vector<std::vector<int32_t>>& replies) {
  drafters::ScriptOptions options;
  options.acceptance = acceptance;
  options.vocabulary = static_cast<int32_t>(subject.model->info().vocabulary_size);
  auto drafter = std::make_unique<drafters::ScriptedDrafter>(options);
  for (size_t i = 0; i < asks.size(); ++i) drafter->learn(asks[i].prompt, replies[i]);
  Drafters made;
  made.push_back(std::move(drafter));
  return {name, depth, start(subject, std::move(made), depth)};
}

bool synthetic(const Settings& settings) {
  Subject subject;
  subject.backend = make_backend(settings.threads);
  std::ifstream file(settings.synthetic);
  const nlohmann::json config = nlohmann::json::parse(file);
  subject.model = families::load_synthetic(config, 1, *subject.backend, 256 + 64).model;
  Workload workload{"synthetic weights of " + settings.synthetic, {}};
  Ask ask{.prompt = {}, .tokens = 96, .temperature = 0.0, .end = false};
  for (int32_t i = 0; i < 32; ++i) ask.prompt.push_back(1000 + 37 * i);
  workload.asks.push_back(ask);
  std::vector<Contestant> contestants;
  contestants.push_back({"serial", 0, start(subject, {}, -1)});
  const auto replies = play(*contestants[0].started.engine, workload, {}).replies;
  const std::map<double, std::vector<int32_t>> tried = {{0.5, {1, 2, 3, 5}}, {1.0, {1, 3, 7, 15, 31, 63}}};
  std::vector<PolicyRow> policies;
  for (const auto& [acceptance, counts] : tried) {
    const std::string name = fmt::format("scripted {}", acceptance);
    for (const int32_t depth : counts) {
      contestants.push_back(scripted(subject, name, acceptance, depth, workload.asks, replies));
    }
    const std::string policy = name + " policy";
    contestants.push_back(scripted(subject, policy, acceptance, -1, workload.asks, replies));
    policies.push_back({policy, {name}});
    play(*contestants.back().started.engine, workload, {});
    let_calibrate(contestants.back().started);
  }
  return print_depths(workload, contestants, measure(contestants, workload, std::min(settings.repeats, 3), {}),
                      policies);
}

// ---- pairs
// ------------------------------------------------------------------------------------------------------------

std::vector<Workload> pair_kinds(const Prompts& prompts, const std::string& text, int64_t vocabulary) {
  std::mt19937_64 random(7);
  const auto random_tokens = [&](size_t count) {
    std::vector<int32_t> tokens;
    while (tokens.size() < count) tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
    return tokens;
  };
  const std::vector<int32_t> story = prompts.chat("Tell me a story about a fox.");
  const std::vector<int32_t> count = prompts.chat("Count from 7 to 19.");
  const std::vector<int32_t> code = prompts.chat("Write a Python function that checks if a number is prime.");
  std::vector<int32_t> trap;
  const std::vector<int32_t> motif = random_tokens(12);
  for (int i = 0; i < 12; ++i) {
    trap.insert(trap.end(), motif.begin(), motif.end());
    const std::vector<int32_t> tail = random_tokens(4);
    trap.insert(trap.end(), tail.begin(), tail.end());
  }
  trap.insert(trap.end(), motif.begin(), motif.end());
  return {{"story, greedy", {{story, 128}}},
          {"code, greedy", {{code, 128}}},
          {"copy of a text", {{prompts.chat("Repeat this text:\n" + text), 160}}},
          {"story, temperature 1", {{story, 128, 1.0}}},
          {"thinking first",
           {{prompts.chat("What is 17 + 25?", true), 128}, {prompts.chat("Tell me a story about a fox.", true), 128}}},
          {"one-token replies", {{story, 1}, {code, 1}, {count, 1}}},
          {"eight-token replies", {{story, 8}, {code, 8}, {count, 8}}},
          {"long prompt, short reply", {{random_tokens(1200), 16, 1.0, false}}},
          {"random bytes, temperature 1.5", {{random_tokens(64), 128, 1.5, false}}},
          {"repeats that go on differently", {{trap, 128, 1.5, false}}},
          {"drafter always wrong", {{story, 128}, {code, 128}}},
          {"four at once", {{story, 128}, {code, 128}, {count, 128}, {random_tokens(40), 96, 1.0, false}}, true}};
}

bool pairs(const Settings& settings, Subject& subject, const Prompts& prompts) {
  const std::vector<int32_t> ends = subject.model->info().end_tokens;
  const Started serial = start(subject, {}, -1, 4);
  std::vector<std::string> sets = {"mtp+copies", "dflash2+copies"};
  std::erase_if(sets, [&](const std::string& set) { return set.find(settings.sets) == std::string::npos; });
  std::vector<Started> engines;
  const std::vector<Workload> kinds =
      pair_kinds(prompts, told_story(prompts, *serial.engine, ends), subject.model->info().vocabulary_size);
  for (const std::string& set : sets) {
    engines.push_back(start(subject, drafters_of(settings, subject, set), -1, 4));
    play(*engines.back().engine, kinds[0], ends);
    let_calibrate(engines.back());
  }
  fmt::print(
      "\nserial time / drafted time, whole requests: median of {} interleaved pairs (and of processor time, which a "
      "busy "
      "machine disturbs less)\n  {:<34}",
      settings.pairs, "kind");
  for (const std::string& set : sets) fmt::print("{:>20}", set);
  fmt::print("{:>12}\n", "ms serial");
  bool good = true;
  for (const Workload& kind : kinds) {
    if (kind.name.find(settings.only) == std::string::npos) continue;
    fmt::print("  {:<34}", kind.name);
    Started wrong;
    if (kind.name == "drafter always wrong") {
      wrong = scripted(subject, "wrong", 0.0, -1, kind.asks, play(*serial.engine, kind, ends).replies).started;
      play(*wrong.engine, kinds[0], ends);
      let_calibrate(wrong);
    }
    double milliseconds = 0.0;
    for (const Started& started : engines) {
      std::vector<double> ratios;
      std::vector<double> cpu_ratios;
      int64_t drafted_rows = 0;
      int64_t accepted_rows = 0;
      int64_t saved_rounds = 0;
      for (int pair = 0; pair < settings.pairs; ++pair) {
        const auto drafted = [&] { return play(wrong.engine ? *wrong.engine : *started.engine, kind, ends); };
        // Either may go first.
        const Run first = pair % 2 == 0 ? play(*serial.engine, kind, ends) : drafted();
        const Run second = pair % 2 == 0 ? drafted() : play(*serial.engine, kind, ends);
        const Run& plain = pair % 2 == 0 ? first : second;
        const Run& fast = pair % 2 == 0 ? second : first;
        if (plain.replies != fast.replies) fail(ErrorKind::io, "{}: a drafted reply differs", kind.name);
        ratios.push_back(plain.whole / fast.whole);
        cpu_ratios.push_back(plain.cpu / fast.cpu);
        milliseconds = 1e3 * plain.whole;
        drafted_rows += fast.drafted;
        accepted_rows += fast.accepted;
        saved_rounds += plain.rounds - fast.rounds;
      }
      const double ratio = median(ratios);
      good = good && ratio >= kGoalOfSerial;
      fmt::print("{:>8.3f} ({:.3f}){:<4}", ratio, median(cpu_ratios), ratio >= kGoalOfSerial ? "" : " LOW");
      if (settings.counts > 0)
        fmt::print(" [{} of {} drafts, {} rounds saved in {} replies]", accepted_rows, drafted_rows, saved_rounds,
                   settings.pairs);
    }
    fmt::print("{:>12.1f}\n", milliseconds);
    std::fflush(stdout);
  }
  return good;
}

Settings parse(int count, char** words) {
  Settings settings;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = words[i];
    const std::string value = words[i + 1];
    const std::map<std::string, std::string*> texts = {
        {"--model", &settings.model}, {"--drafter", &settings.drafter}, {"--synthetic", &settings.synthetic},
        {"--part", &settings.part},   {"--only", &settings.only},       {"--sets", &settings.sets}};
    const std::map<std::string, int*> counts = {{"--threads", &settings.threads},
                                                {"--repeats", &settings.repeats},
                                                {"--pairs", &settings.pairs},
                                                {"--counts", &settings.counts}};
    if (const auto text = texts.find(name); text != texts.end()) {
      *text->second = value;
    } else if (const auto number = counts.find(name); number != counts.end()) {
      *number->second = std::max(1, std::atoi(value.c_str()));
    } else {
      fail(ErrorKind::invalid_request, "unknown option {}", name);
    }
  }
  return settings;
}

int run(const Settings& settings) {
  const auto wants = [&](const char* part) { return settings.part == "all" || settings.part == part; };
  bool good = true;
  if (wants("depths") || wants("pairs")) {
    Subject subject;
    subject.backend = make_backend(settings.threads);
    subject.model = families::load_model(settings.model, *subject.backend, 256 + 64).model;
    const Prompts prompts(settings.model);
    if (wants("depths")) good = depths(settings, subject, prompts) && good;
    if (wants("pairs")) good = pairs(settings, subject, prompts) && good;
  }
  if (wants("synthetic")) good = synthetic(settings) && good;
  fmt::print("\n{}\n", good ? "every goal reached" : "a goal was missed");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace tensorfold

int main(int count, char** words) {
  try {
    return tensorfold::run(tensorfold::parse(count, words));
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_drafting: {}\n", error.what());
    return 2;
  }
}
