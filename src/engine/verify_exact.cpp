#include "engine/verify_exact.h"

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "backend/keyed_sampling.h"
#include "base/error.h"
#include "engine/verify_serving.h"

namespace tensorfold::engine {
namespace {

constexpr const char* scripted[] = {"scripted 0", "scripted 0.5", "scripted 1", "scripted tree"};

/// How a group of requests is served.
struct Circumstances {
  VerifyServing serving;
  std::string tier;  ///< as in the report: serving.tier, or "restarted process"
  int32_t neighbours = 0;
};

class Verification {
 public:
  Verification(const FuzzFactory& make, const std::vector<VerifyPrompt>& prompts,
               const std::vector<VerifyDrafter>& drafters, const VerifyOptions& options)
      : prompts_(prompts), drafters_(drafters), options_(options), random_(options.seed) {
    check(!prompts.empty() && !options.worlds.empty(), "verification needs prompts and worlds");
    for (const FuzzWorld& world : options.worlds) subjects_.push_back(make(world));
    reference_ = start_reference(subjects_[0], options);
    tiers_ = {"device", "host"};
    if (!options.scratch.empty()) tiers_.emplace_back("disk");
    if (!options.scratch.empty() && options.serve_elsewhere) tiers_.emplace_back("restarted process");
    name_circumstances();
  }

  VerifyReport run() {
    while (report_.requests < options_.requests) {
      Circumstances circumstances = pick_circumstances();
      std::vector<VerifyQuestion> earlier;
      std::vector<VerifyQuestion> questions;
      for (int32_t i = 0; i <= circumstances.neighbours; ++i) add_question(earlier, questions);
      serve_and_compare(circumstances, earlier, questions);
      if (options_.progress) {
        options_.progress(
            fmt::format("{} of {} requests, {} differences", report_.requests, options_.requests, report_.differences));
      }
    }
    return report_;
  }

 private:
  size_t below(size_t count) { return random_() % count; }
  bool chance(double p) { return std::uniform_real_distribution<double>(0.0, 1.0)(random_) < p; }

  [[nodiscard]] static std::string world_name(const FuzzWorld& world) {
    return fmt::format("threads {}", world.threads);
  }
  [[nodiscard]] static std::string neighbours_name(int32_t neighbours) {
    return neighbours == 0 ? "alone" : neighbours <= 5 ? "beside 1 to 5" : "beside 6 and more";
  }

  /// Everything that can be met stands in the report, met or not.
  void name_circumstances() {
    for (const VerifyDrafter& drafter : drafters_) report_.met["drafter " + drafter.name] = 0;
    for (const char* name : scripted) report_.met[std::string("drafter ") + name] = 0;
    for (const FuzzWorld& world : options_.worlds) report_.met[world_name(world)] = 0;
    for (const std::string& tier : tiers_) {
      report_.met["tier " + tier] = 0;
      report_.met["resumed from tier " + tier] = 0;
    }
    for (const VerifyPrompt& prompt : prompts_) report_.met["prompt " + prompt.kind] = 0;
    for (const int32_t neighbours : {0, 1, 6}) {
      if (neighbours <= options_.most_neighbours) report_.met[neighbours_name(neighbours)] = 0;
    }
    for (const char* name : {"greedy", "sampled", "goes on inside a prompt", "goes on behind a reply",
                             "drafts chosen by cost", "drafts always so many", "windows above 16 rows allowed"}) {
      report_.met[name] = 0;
    }
  }

  Circumstances pick_circumstances() {
    Circumstances picked;
    VerifyServing& serving = picked.serving;
    serving.world = below(subjects_.size());
    const size_t choice = below(drafters_.size() + std::size(scripted));
    serving.drafter = choice < drafters_.size() ? drafters_[choice].name : scripted[choice - drafters_.size()];
    serving.fixed_drafts = chance(0.5) ? static_cast<int32_t>(1 + below(chance(0.3) ? 63 : 15)) : -1;
    serving.parallel = static_cast<int32_t>(1 + below(16));
    serving.prefill_rows = std::max<int32_t>(1, subjects_[0].model->max_rows() >> below(5));
    serving.seed = random_();
    picked.tier = tiers_[below(tiers_.size())];
    serving.tier = picked.tier == "restarted process" ? "disk" : picked.tier;
    // Few and many neighbours, none rather often.
    picked.neighbours =
        chance(0.3) ? 0 : static_cast<int32_t>(below(static_cast<size_t>(options_.most_neighbours) + 1));
    return picked;
  }

  VerifyQuestion ask(std::string kind, std::vector<int32_t> prompt) {
    VerifyQuestion question{.kind = std::move(kind), .prompt = std::move(prompt), .sampling = {}, .expected = {}};
    if (chance(0.6)) {
      question.sampling = {.temperature = chance(0.5) ? 1.0 : 0.7,
                           .top_k = chance(0.5) ? 20 : 0,
                           .top_p = chance(0.5) ? 0.95 : 1.0,
                           .min_p = chance(0.3) ? 0.05 : 0.0,
                           .seed = backend::default_seed(question.prompt, static_cast<int64_t>(below(1000)))};
    }
    question.expected = ask_all(*reference_, options_, std::span(&question, 1), false).front().tokens;
    return question;
  }

  [[nodiscard]] bool fits(size_t tokens) const {
    return static_cast<int32_t>(tokens) + options_.max_tokens < options_.context;
  }

  /// A request, and sometimes one before it whose cache it goes on from.
  void add_question(std::vector<VerifyQuestion>& earlier, std::vector<VerifyQuestion>& questions) {
    const VerifyPrompt& prompt = prompts_[below(prompts_.size())];
    std::vector<int32_t> tokens = prompt.tokens;
    if (chance(0.3) && tokens.size() > 2) {
      // Any point of the prompt as a place to go on from.
      const auto cut = static_cast<std::ptrdiff_t>(1 + below(tokens.size() - 1));
      earlier.push_back(ask(prompt.kind, {tokens.begin(), tokens.begin() + cut}));
      ++report_.met["goes on inside a prompt"];
    } else if (chance(0.5)) {
      // A further turn: the earlier prompt, its reply, and more.
      VerifyQuestion first = ask(prompt.kind, tokens);
      tokens.insert(tokens.end(), first.expected.begin(), first.expected.end());
      const std::vector<int32_t>& more = prompts_[below(prompts_.size())].tokens;
      if (fits(tokens.size() + more.size())) {
        tokens.insert(tokens.end(), more.begin(), more.end());
        earlier.push_back(std::move(first));
        ++report_.met["goes on behind a reply"];
      } else {
        tokens = prompt.tokens;
      }
    }
    if (!fits(tokens.size())) return;
    questions.push_back(ask(prompt.kind, std::move(tokens)));
  }

  void serve_and_compare(Circumstances& circumstances, std::span<const VerifyQuestion> earlier,
                         std::span<const VerifyQuestion> questions) {
    VerifyServing& serving = circumstances.serving;
    serving.known.assign(earlier.begin(), earlier.end());
    serving.known.insert(serving.known.end(), questions.begin(), questions.end());
    FuzzSubject& subject = subjects_[serving.world];
    auto engine = start_serving(subject, drafters_, options_, serving);
    compare(circumstances, earlier, ask_all(*engine, options_, earlier, true));
    if (circumstances.tier == "restarted process") {
      engine.reset();
      serving.questions.assign(questions.begin(), questions.end());
      compare(circumstances, questions, options_.serve_elsewhere(serving));
    } else {
      if (circumstances.tier == "disk") {
        // What the device held is gone; the files remain.
        engine.reset();
        engine = start_serving(subject, drafters_, options_, serving);
      }
      compare(circumstances, questions, ask_all(*engine, options_, questions, true));
      engine.reset();
    }
    if (serving.tier == "disk") {
      std::error_code ignored;
      std::filesystem::remove_all(options_.scratch, ignored);
    }
  }

  void compare(const Circumstances& circumstances, std::span<const VerifyQuestion> questions,
               const std::vector<VerifyAnswer>& answers) {
    const VerifyServing& serving = circumstances.serving;
    check(answers.size() == questions.size(), "a request got no answer");
    const std::string line =
        fmt::format("drafter {}, {} drafts, tier {}, {} neighbours, {}", serving.drafter, serving.fixed_drafts,
                    circumstances.tier, circumstances.neighbours, world_name(options_.worlds[serving.world]));
    for (size_t i = 0; i < questions.size(); ++i) {
      ++report_.met["drafter " + serving.drafter];
      ++report_.met["tier " + circumstances.tier];
      ++report_.met[world_name(options_.worlds[serving.world])];
      ++report_.met[questions[i].sampling.temperature > 0.0 ? "sampled" : "greedy"];
      ++report_.met["prompt " + questions[i].kind];
      ++report_.met[neighbours_name(circumstances.neighbours)];
      ++report_.met[serving.fixed_drafts < 0 ? "drafts chosen by cost" : "drafts always so many"];
      if (serving.fixed_drafts < 0 || serving.fixed_drafts > 15) ++report_.met["windows above 16 rows allowed"];
      if (answers[i].cached_tokens > 0) ++report_.met["resumed from tier " + circumstances.tier];
      compare_answer(report_, questions[i], answers[i], line);
    }
  }

  const std::vector<VerifyPrompt>& prompts_;
  const std::vector<VerifyDrafter>& drafters_;
  const VerifyOptions& options_;
  std::mt19937_64 random_;
  std::vector<FuzzSubject> subjects_;
  std::unique_ptr<Engine> reference_;
  std::vector<std::string> tiers_;
  VerifyReport report_;
};

}  // namespace

VerifyReport verify_exact(const FuzzFactory& make, const std::vector<VerifyPrompt>& prompts,
                          const std::vector<VerifyDrafter>& drafters, const VerifyOptions& options) {
  return Verification(make, prompts, drafters, options).run();
}

}  // namespace tensorfold::engine
