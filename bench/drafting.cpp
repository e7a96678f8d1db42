// Does drafting pay what it could? Three tables, all measured in one run, contestants interleaved:
//   depths     for stories, code and copies on the demonstration model: E tokens a round and C cost of a round (one
//   plain
//              round: 1) at fixed numbers of drafts, the best E/C, and what the draft policy reached of it
//   synthetic  the same on random weights of real shapes with a drafter of known acceptance
//   pairs      twelve kinds of requests, whole time with drafts against whole time without: medians of interleaved
//   pairs
// The floor of a drafted run is the best E/C of its table; the goals are 0.9 of it, and never below 0.95 of serial.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "drafters/drafter_set.h"
#include "drafters/scripted_drafter.h"
#include "drafting_contestants.h"
#include "server/prompt_renderer.h"
#include "text/tokenizer.h"

namespace tensorfold {
namespace {

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

// ---- the table of depths

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

Contestant scripted(Subject& subject, const std::string& name, double acceptance, int32_t depth,
                    const std::vector<Ask>& asks, const std::vector<std::vector<int32_t>>& replies) {
  drafters::ScriptOptions options;
  options.acceptance = acceptance;
  options.by_position = true;  // every contestant meets the same luck
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
  return print_depths(workload, contestants, measure(contestants, workload, settings.repeats, {}), policies);
}

// ---- pairs

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
