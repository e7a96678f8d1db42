#include "engine/verify_exact.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>

#include <fmt/format.h>

#include "backend/keyed_sampling.h"
#include "base/error.h"
#include "base/sha256.h"
#include "drafters/scripted_drafter.h"
#include "engine/engine.h"

namespace tensorfold::engine {
namespace {

constexpr size_t most_messages = 10;

/// A request with the reply it must get.
struct Question {
  std::string kind;
  std::vector<int32_t> prompt;
  backend::SamplingSettings sampling;
  std::vector<int32_t> expected;
};

/// How a group of requests is served.
struct Circumstances {
  size_t world = 0;
  std::string drafter;
  int32_t fixed_drafts = -1;
  std::string tier;
  int32_t neighbours = 0;
};

/// Waits for replies that come in on an engine's thread.
class Replies {
 public:
  explicit Replies(size_t count) : tokens_(count), results_(count), left_(count) {}
  void attach(Request& request, size_t i) {
    request.on_tokens = [this, i](std::span<const int32_t> tokens, std::span<const TokenLogprobs>) {
      tokens_[i].insert(tokens_[i].end(), tokens.begin(), tokens.end());
      return true;
    };
    request.on_finish = [this, i](const ReplyResult& result) {
      const std::lock_guard lock(mutex_);
      results_[i] = result;
      --left_;
      done_.notify_all();
    };
  }
  void wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return left_ == 0; });
  }
  [[nodiscard]] const std::vector<int32_t>& tokens(size_t i) const { return tokens_[i]; }
  [[nodiscard]] const ReplyResult& result(size_t i) const { return results_[i]; }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<ReplyResult> results_;
  size_t left_;
};

std::string token_sha(std::span<const int32_t> tokens) {
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) text.push_back(',');
    text += std::to_string(tokens[i]);
  }
  return to_hex(sha256(text)).substr(0, 12);
}

class Verification {
 public:
  Verification(const FuzzFactory& make, const std::vector<VerifyPrompt>& prompts,
               const std::vector<VerifyDrafter>& drafters, const VerifyOptions& options)
      : prompts_(prompts), drafters_(drafters), options_(options), random_(options.seed) {
    check(!prompts.empty() && !options.worlds.empty(), "verification needs prompts and worlds");
    for (const FuzzWorld& world : options.worlds) subjects_.push_back(make(world));
    EngineOptions serial = engine_options();
    serial.parallel = 1;
    serial.drafts = false;
    serial.keep_prefixes = false;
    reference_ = start_engine(*subjects_[0].backend, *subjects_[0].model, serial);
  }

  VerifyReport run() {
    while (report_.requests < options_.requests) {
      const Circumstances circumstances = pick_circumstances();
      std::vector<Question> earlier;
      std::vector<Question> questions;
      for (int32_t i = 0; i <= circumstances.neighbours; ++i) add_question(earlier, questions);
      serve(circumstances, earlier, questions);
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

  [[nodiscard]] EngineOptions engine_options() const {
    EngineOptions options;
    options.context = options_.context;
    options.memory_budget = options_.memory_budget;
    options.prefill_rows = std::min(options.prefill_rows, subjects_[0].model->max_rows());
    return options;
  }

  Circumstances pick_circumstances() {
    Circumstances picked;
    picked.world = below(subjects_.size());
    const size_t choice = below(drafters_.size() + 4);
    const char* scripted[] = {"scripted 0", "scripted 0.5", "scripted 1", "scripted tree"};
    picked.drafter = choice < drafters_.size() ? drafters_[choice].name : scripted[choice - drafters_.size()];
    picked.fixed_drafts = chance(0.5) ? static_cast<int32_t>(1 + below(15)) : -1;
    const char* tiers[] = {"device", "host", "disk"};
    picked.tier = tiers[below(options_.scratch.empty() ? 2 : 3)];
    // Few and many neighbours, none rather often.
    picked.neighbours =
        chance(0.3) ? 0 : static_cast<int32_t>(below(static_cast<size_t>(options_.most_neighbours) + 1));
    return picked;
  }

  Question ask(std::string kind, std::vector<int32_t> prompt) {
    Question question{.kind = std::move(kind), .prompt = std::move(prompt), .sampling = {}, .expected = {}};
    if (chance(0.6)) {
      question.sampling = {.temperature = chance(0.5) ? 1.0 : 0.7,
                           .top_k = chance(0.5) ? 20 : 0,
                           .top_p = chance(0.5) ? 0.95 : 1.0,
                           .min_p = chance(0.3) ? 0.05 : 0.0,
                           .seed = backend::default_seed(question.prompt, static_cast<int64_t>(below(1000)))};
    }
    const std::vector<Question> alone = {question};
    Replies replies(1);
    submit(*reference_, alone, replies, false);
    replies.wait();
    question.expected = replies.tokens(0);
    return question;
  }

  [[nodiscard]] bool fits(size_t tokens) const {
    return static_cast<int32_t>(tokens) + options_.max_tokens < options_.context;
  }

  /// A request, and sometimes one before it whose cache it goes on from.
  void add_question(std::vector<Question>& earlier, std::vector<Question>& questions) {
    const VerifyPrompt& prompt = prompts_[below(prompts_.size())];
    std::vector<int32_t> tokens = prompt.tokens;
    if (chance(0.3) && tokens.size() > 2) {
      // Any point of the prompt as a place to go on from.
      const auto cut = static_cast<std::ptrdiff_t>(1 + below(tokens.size() - 1));
      earlier.push_back(ask(prompt.kind + ", cut", {tokens.begin(), tokens.begin() + cut}));
    } else if (chance(0.5)) {
      // A further turn: the earlier prompt, its reply, and more.
      Question first = ask(prompt.kind, tokens);
      tokens.insert(tokens.end(), first.expected.begin(), first.expected.end());
      const std::vector<int32_t>& more = prompts_[below(prompts_.size())].tokens;
      if (fits(tokens.size() + more.size())) {
        tokens.insert(tokens.end(), more.begin(), more.end());
        earlier.push_back(std::move(first));
      } else {
        tokens = prompt.tokens;
      }
    }
    if (!fits(tokens.size())) return;
    questions.push_back(ask(prompt.kind, std::move(tokens)));
  }

  std::vector<std::unique_ptr<drafters::Drafter>> make_drafters(const Circumstances& circumstances,
                                                                std::span<const Question> known) {
    FuzzSubject& subject = subjects_[circumstances.world];
    for (const VerifyDrafter& drafter : drafters_) {
      if (drafter.name == circumstances.drafter) return drafter.make(*subject.backend, *subject.model);
    }
    drafters::ScriptOptions script;
    script.acceptance = circumstances.drafter == "scripted 0" ? 0.0 : circumstances.drafter == "scripted 1" ? 1.0 : 0.5;
    script.branches = circumstances.drafter == "scripted tree" ? 3 : 1;
    script.vocabulary = static_cast<int32_t>(subject.model->info().vocabulary_size);
    script.seed = random_();
    auto drafter = std::make_unique<drafters::ScriptedDrafter>(script);
    for (const Question& question : known) drafter->learn(question.prompt, question.expected);
    std::vector<std::unique_ptr<drafters::Drafter>> made;
    made.push_back(std::move(drafter));
    return made;
  }

  std::unique_ptr<Engine> start(const Circumstances& circumstances, std::span<const Question> known) {
    FuzzSubject& subject = subjects_[circumstances.world];
    EngineOptions options = engine_options();
    options.parallel = static_cast<int32_t>(1 + below(6));
    options.fixed_drafts = circumstances.fixed_drafts;
    options.prefill_rows = std::max<int32_t>(1, options.prefill_rows >> below(5));
    if (circumstances.tier == "host") {
      options.kept_states = 1;
      options.host_bytes = uint64_t{1} << 30;
    } else if (circumstances.tier == "disk") {
      options.snapshot_directory = options_.scratch;
      options.disk_bytes = uint64_t{4} << 30;
      options.weights_identity = "verify-exact";
    }
    return start_engine(*subject.backend, *subject.model, options, make_drafters(circumstances, known));
  }

  void submit(Engine& engine, std::span<const Question> questions, Replies& replies, bool draft) {
    for (size_t i = 0; i < questions.size(); ++i) {
      Request request;
      request.prompt = questions[i].prompt;
      request.sampling = questions[i].sampling;
      request.max_tokens = options_.max_tokens;
      request.end_tokens = options_.end_tokens;
      request.draft = draft;
      replies.attach(request, i);
      engine.submit(std::move(request));
    }
  }

  void serve(const Circumstances& circumstances, std::span<const Question> earlier,
             std::span<const Question> questions) {
    std::vector<Question> known(earlier.begin(), earlier.end());
    known.insert(known.end(), questions.begin(), questions.end());
    const auto serve_all = [&](Engine& engine, std::span<const Question> group) {
      Replies replies(group.size());
      submit(engine, group, replies, true);
      replies.wait();
      for (size_t i = 0; i < group.size(); ++i) compare(circumstances, group[i], replies.tokens(i), replies.result(i));
    };
    auto engine = start(circumstances, known);
    serve_all(*engine, earlier);
    if (circumstances.tier == "disk") {
      // As if the process had been started again.
      engine.reset();
      engine = start(circumstances, known);
    }
    serve_all(*engine, questions);
    engine.reset();
    if (circumstances.tier == "disk") {
      std::error_code ignored;
      std::filesystem::remove_all(options_.scratch, ignored);
    }
  }

  void compare(const Circumstances& circumstances, const Question& question, const std::vector<int32_t>& tokens,
               const ReplyResult& result) {
    ++report_.requests;
    ++report_.met["drafter " + circumstances.drafter];
    ++report_.met["tier " + circumstances.tier];
    ++report_.met[question.sampling.temperature > 0.0 ? "sampled" : "greedy"];
    ++report_.met["kind " + question.kind];
    if (circumstances.neighbours > 0) ++report_.met["beside others"];
    if (result.statistics.cached_tokens > 0) ++report_.met["resumed from " + circumstances.tier];
    if (result.statistics.accepted > 0) ++report_.met["drafts accepted"];
    report_.drafted += static_cast<uint64_t>(result.statistics.drafted);
    report_.accepted += static_cast<uint64_t>(result.statistics.accepted);
    report_.cached_tokens += static_cast<uint64_t>(result.statistics.cached_tokens);
    if (result.error.empty() && tokens == question.expected) return;
    ++report_.differences;
    if (report_.first_differences.size() >= most_messages) return;
    const auto place = std::mismatch(tokens.begin(), tokens.end(), question.expected.begin(), question.expected.end());
    report_.first_differences.push_back(fmt::format(
        "{}: token_sha {} is not {} (first difference at token {}; {} prompt tokens, {} cached; drafter {}, {} drafts, "
        "tier {}, {} neighbours, world {}){}",
        question.kind, token_sha(tokens), token_sha(question.expected), place.first - tokens.begin(),
        question.prompt.size(), result.statistics.cached_tokens, circumstances.drafter, circumstances.fixed_drafts,
        circumstances.tier, circumstances.neighbours, circumstances.world,
        result.error.empty() ? "" : "; error: " + result.error));
  }

  const std::vector<VerifyPrompt>& prompts_;
  const std::vector<VerifyDrafter>& drafters_;
  const VerifyOptions& options_;
  std::mt19937_64 random_;
  std::vector<FuzzSubject> subjects_;
  std::unique_ptr<Engine> reference_;
  VerifyReport report_;
};

}  // namespace

VerifyReport verify_exact(const FuzzFactory& make, const std::vector<VerifyPrompt>& prompts,
                          const std::vector<VerifyDrafter>& drafters, const VerifyOptions& options) {
  return Verification(make, prompts, drafters, options).run();
}

}  // namespace tensorfold::engine
