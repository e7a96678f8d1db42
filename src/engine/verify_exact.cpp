#include "engine/verify_exact.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include "backend/keyed_sampling.h"
#include "base/error.h"
#include "engine/verify_serving.h"

namespace tensorfold::engine {
namespace {

constexpr const char* scripted[] = {"scripted 0", "scripted 0.5", "scripted 1", "scripted tree"};
constexpr size_t few_neighbours = 5;

/// Deals the numbers 0 to count - 1 in random order, each once before any comes again: what a choice could be, it is
/// within `count` deals, whatever the seed.
class Deck {
 public:
  explicit Deck(size_t count) : cards_(count) { std::iota(cards_.begin(), cards_.end(), size_t{0}); }
  size_t deal(std::mt19937_64& random) {
    if (dealt_ % cards_.size() == 0) std::shuffle(cards_.begin(), cards_.end(), random);
    return cards_[dealt_++ % cards_.size()];
  }
  [[nodiscard]] size_t count() const { return cards_.size(); }

 private:
  std::vector<size_t> cards_;
  size_t dealt_ = 0;
};

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
    for (size_t i = 0; i < prompts.size(); ++i) kinds_[prompts[i].kind].push_back(i);
    drafter_deck_ = Deck(drafters_.size() + std::size(scripted));
    world_deck_ = Deck(subjects_.size());
    tier_deck_ = Deck(tiers_.size());
    kind_deck_ = Deck(kinds_.size());
    name_circumstances();
  }

  VerifyReport run() {
    size_t groups = 0;
    while (report_.requests < options_.requests || groups < least_groups()) {
      Circumstances circumstances = pick_circumstances();
      std::vector<VerifyQuestion> earlier;
      std::vector<VerifyQuestion> questions;
      // What is kept in a tier is to be found there, too.
      bool goes_on = report_.met["resumed from tier " + circumstances.tier] == 0;
      for (int32_t i = 0; i <= circumstances.neighbours; ++i) {
        add_question(earlier, questions, goes_on);
        goes_on = false;
      }
      ++groups;
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

  /// So many groups deal every deck once; a short run need not.
  [[nodiscard]] size_t least_groups() const {
    if (options_.requests < requests_that_meet_all) return 0;
    return std::max({drafter_deck_.count(), world_deck_.count(), tier_deck_.count(), kind_deck_.count(),
                     neighbour_deck_.count(), start_deck_.count()});
  }

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
    serving.world = world_deck_.deal(random_);
    const size_t choice = drafter_deck_.deal(random_);
    serving.drafter = choice < drafters_.size() ? drafters_[choice].name : scripted[choice - drafters_.size()];
    serving.fixed_drafts = depth_deck_.deal(random_) == 0 ? -1 : static_cast<int32_t>(1 + below(chance(0.3) ? 63 : 15));
    serving.parallel = static_cast<int32_t>(1 + below(16));
    serving.prefill_rows = std::max<int32_t>(1, subjects_[0].model->max_rows() >> below(5));
    serving.seed = random_();
    picked.tier = tiers_[tier_deck_.deal(random_)];
    serving.tier = picked.tier == "restarted process" ? "disk" : picked.tier;
    picked.neighbours = pick_neighbours();
    return picked;
  }

  /// Few and many neighbours, none rather often.
  int32_t pick_neighbours() {
    const size_t card = neighbour_deck_.deal(random_);
    const auto most = static_cast<size_t>(options_.most_neighbours);
    if (card < 2 || most == 0) return 0;
    if (card == 2 || most < few_neighbours + 1) return static_cast<int32_t>(1 + below(std::min(few_neighbours, most)));
    return static_cast<int32_t>(few_neighbours + 1 + below(most - few_neighbours));
  }

  VerifyQuestion ask(std::string kind, std::vector<int32_t> prompt) {
    VerifyQuestion question{.kind = std::move(kind), .prompt = std::move(prompt), .sampling = {}, .expected = {}};
    if (sampling_deck_.deal(random_) > 1) {
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

  /// A request, and sometimes one before it whose cache it goes on from (`goes_on`: a whole earlier turn, surely).
  void add_question(std::vector<VerifyQuestion>& earlier, std::vector<VerifyQuestion>& questions, bool goes_on) {
    const std::vector<size_t>& of_kind =
        std::next(kinds_.begin(), static_cast<std::ptrdiff_t>(kind_deck_.deal(random_)))->second;
    const VerifyPrompt& prompt = prompts_[of_kind[below(of_kind.size())]];
    std::vector<int32_t> tokens = prompt.tokens;
    const size_t start = goes_on ? 1 : start_deck_.deal(random_);
    if (start == 0 && tokens.size() > 2) {
      // Any point of the prompt as a place to go on from.
      const auto cut = static_cast<std::ptrdiff_t>(1 + below(tokens.size() - 1));
      earlier.push_back(ask(prompt.kind, {tokens.begin(), tokens.begin() + cut}));
      ++report_.met["goes on inside a prompt"];
    } else if (start == 1) {
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
  std::map<std::string, std::vector<size_t>> kinds_;  ///< prompts by their kind
  Deck drafter_deck_{1};
  Deck world_deck_{1};
  Deck tier_deck_{1};
  Deck kind_deck_{1};
  Deck neighbour_deck_{4};  ///< none, none, few, many
  Deck depth_deck_{2};      ///< by cost, always so many
  Deck sampling_deck_{5};   ///< greedy twice, sampled three times
  Deck start_deck_{3};      ///< inside a prompt, behind a reply, afresh
  VerifyReport report_;
};

}  // namespace

VerifyReport verify_exact(const FuzzFactory& make, const std::vector<VerifyPrompt>& prompts,
                          const std::vector<VerifyDrafter>& drafters, const VerifyOptions& options) {
  return Verification(make, prompts, drafters, options).run();
}

}  // namespace tensorfold::engine
