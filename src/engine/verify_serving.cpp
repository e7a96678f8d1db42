#include "engine/verify_serving.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include <fmt/format.h>

#include "base/sha256.h"
#include "drafters/scripted_drafter.h"

namespace tensorfold::engine {
namespace {

constexpr size_t most_messages = 10;

/// Waits for replies that come in on an engine's thread.
class Replies {
 public:
  explicit Replies(size_t count) : answers_(count), left_(count) {}
  void attach(Request& request, size_t i) {
    request.on_tokens = [this, i](std::span<const int32_t> tokens, std::span<const TokenLogprobs>) {
      answers_[i].tokens.insert(answers_[i].tokens.end(), tokens.begin(), tokens.end());
      return true;
    };
    request.on_finish = [this, i](const ReplyResult& result) {
      const std::lock_guard lock(mutex_);
      answers_[i].drafted = result.statistics.drafted;
      answers_[i].accepted = result.statistics.accepted;
      answers_[i].cached_tokens = result.statistics.cached_tokens;
      answers_[i].error = result.error;
      --left_;
      done_.notify_all();
    };
  }
  std::vector<VerifyAnswer> wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return left_ == 0; });
    return std::move(answers_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<VerifyAnswer> answers_;
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

EngineOptions engine_options(const FuzzSubject& subject, const VerifyOptions& options) {
  EngineOptions engine;
  engine.context = options.context;
  engine.memory_budget = options.memory_budget;
  engine.prefill_rows = std::min(engine.prefill_rows, subject.model->max_rows());
  return engine;
}

std::vector<std::unique_ptr<drafters::Drafter>> make_drafters(FuzzSubject& subject,
                                                              const std::vector<VerifyDrafter>& drafters,
                                                              const VerifyServing& serving) {
  for (const VerifyDrafter& drafter : drafters) {
    if (drafter.name == serving.drafter) return drafter.make(*subject.backend, *subject.model);
  }
  drafters::ScriptOptions script;
  script.acceptance = serving.drafter == "scripted 0" ? 0.0 : serving.drafter == "scripted 1" ? 1.0 : 0.5;
  script.branches = serving.drafter == "scripted tree" ? 3 : 1;
  script.vocabulary = static_cast<int32_t>(subject.model->info().vocabulary_size);
  script.seed = serving.seed;
  auto drafter = std::make_unique<drafters::ScriptedDrafter>(script);
  for (const VerifyQuestion& question : serving.known) drafter->learn(question.prompt, question.expected);
  std::vector<std::unique_ptr<drafters::Drafter>> made;
  made.push_back(std::move(drafter));
  return made;
}

}  // namespace

std::vector<std::string> VerifyReport::never_met() const {
  std::vector<std::string> names;
  for (const auto& [name, count] : met) {
    if (count == 0) names.push_back(name);
  }
  return names;
}

std::unique_ptr<Engine> start_reference(FuzzSubject& subject, const VerifyOptions& options) {
  EngineOptions serial = engine_options(subject, options);
  serial.parallel = 1;
  serial.drafts = false;
  serial.keep_prefixes = false;
  return start_engine(*subject.backend, *subject.model, serial);
}

std::unique_ptr<Engine> start_serving(FuzzSubject& subject, const std::vector<VerifyDrafter>& drafters,
                                      const VerifyOptions& options, const VerifyServing& serving) {
  EngineOptions engine = engine_options(subject, options);
  engine.parallel = serving.parallel;
  engine.fixed_drafts = serving.fixed_drafts;
  engine.prefill_rows = std::min(engine.prefill_rows, serving.prefill_rows);
  if (serving.tier == "host") {
    engine.kept_states = 1;
    engine.host_bytes = uint64_t{1} << 30;
  } else if (serving.tier == "disk") {
    engine.snapshot_directory = options.scratch;
    engine.disk_bytes = uint64_t{4} << 30;
    engine.weights_identity = "verify-exact";
  }
  return start_engine(*subject.backend, *subject.model, engine, make_drafters(subject, drafters, serving));
}

std::vector<VerifyAnswer> ask_all(Engine& engine, const VerifyOptions& options,
                                  std::span<const VerifyQuestion> questions, bool draft) {
  Replies replies(questions.size());
  for (size_t i = 0; i < questions.size(); ++i) {
    Request request;
    request.prompt = questions[i].prompt;
    request.sampling = questions[i].sampling;
    request.max_tokens = options.max_tokens;
    request.end_tokens = options.end_tokens;
    request.draft = draft;
    replies.attach(request, i);
    engine.submit(std::move(request));
  }
  return replies.wait();
}

std::vector<VerifyAnswer> serve(FuzzSubject& subject, const std::vector<VerifyDrafter>& drafters,
                                const VerifyOptions& options, const VerifyServing& serving) {
  return ask_all(*start_serving(subject, drafters, options, serving), options, serving.questions, true);
}

void compare_answer(VerifyReport& report, const VerifyQuestion& question, const VerifyAnswer& answer,
                    const std::string& circumstances) {
  ++report.requests;
  report.drafted += static_cast<uint64_t>(answer.drafted);
  report.accepted += static_cast<uint64_t>(answer.accepted);
  report.cached_tokens += static_cast<uint64_t>(answer.cached_tokens);
  if (answer.error.empty() && answer.tokens == question.expected) return;
  ++report.differences;
  if (report.first_differences.size() >= most_messages) return;
  const auto place =
      std::mismatch(answer.tokens.begin(), answer.tokens.end(), question.expected.begin(), question.expected.end());
  report.first_differences.push_back(
      fmt::format("{}: token_sha {} is not {} (first difference at token {}; {} prompt tokens, {} cached; {}){}",
                  question.kind, token_sha(answer.tokens), token_sha(question.expected),
                  place.first - answer.tokens.begin(), question.prompt.size(), answer.cached_tokens, circumstances,
                  answer.error.empty() ? "" : "; error: " + answer.error));
}

}  // namespace tensorfold::engine
