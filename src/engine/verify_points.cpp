// Every resume point of a conversation, one after the other, on an engine's parts without its thread, so that the kept
// prefixes can be forgotten between two points.
#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "engine/draft_planner.h"
#include "engine/memory_plan.h"
#include "engine/rounds.h"
#include "engine/verify_serving.h"

namespace tensorfold::engine {
namespace {

class EveryPoint {
 public:
  EveryPoint(FuzzSubject& subject, std::vector<std::unique_ptr<drafters::Drafter>> drafters,
             const VerifyOptions& options)
      : options_(options),
        planner_(std::move(drafters), -1),
        plan_(plan_for(subject, planner_, options)),
        pool_(*subject.backend, subject.model->cache_layout(), planner_.layouts(), plan_.cache),
        forward_(*subject.backend, *subject.model, pool_.target(), planner_.wants(), 64),
        store_(pool_, {.device_slots = plan_.kept_states, .host_bytes = 0}, nullptr),
        rounds_(pool_, forward_, planner_, &store_,
                {.lanes = 1, .prefill_rows = std::min(256, subject.model->max_rows()), .window_rows = 64}) {
    planner_.attach(pool_);
  }

  /// Keeps the first `point` tokens of the prompt, then asks the whole.
  VerifyAnswer ask(const VerifyQuestion& question, size_t point) {
    store_.clear();
    const std::vector<int32_t> start(question.prompt.begin(),
                                     question.prompt.begin() + static_cast<std::ptrdiff_t>(point));
    play(start, 1, {});
    return play(question.prompt, options_.max_tokens, question.sampling);
  }

 private:
  static MemoryPlan plan_for(FuzzSubject& subject, const DraftPlanner& planner, const VerifyOptions& options) {
    EngineOptions engine;
    engine.context = options.context;
    engine.parallel = 1;
    const uint64_t budget = options.memory_budget > 0 ? options.memory_budget : uint64_t{1} << 30;
    const CacheCosts costs =
        measure_cache(*subject.backend, subject.model->cache_layout(), planner.layouts(), engine.page_tokens);
    return plan_memory(engine, costs, subject.model->info().native_context, subject.model->max_rows(), budget);
  }

  VerifyAnswer play(const std::vector<int32_t>& prompt, int32_t most, const backend::SamplingSettings& sampling) {
    auto sequence = std::make_shared<Sequence>();
    VerifyAnswer answer;
    bool finished = false;
    Request& request = sequence->request;
    request.prompt = prompt;
    request.max_tokens = most;
    request.sampling = sampling;
    request.end_tokens = options_.end_tokens;
    request.on_tokens = [&](std::span<const int32_t> tokens, std::span<const TokenLogprobs>) {
      answer.tokens.insert(answer.tokens.end(), tokens.begin(), tokens.end());
      return true;
    };
    request.on_finish = [&](const ReplyResult& result) {
      answer.drafted = result.statistics.drafted;
      answer.accepted = result.statistics.accepted;
      answer.cached_tokens = result.statistics.cached_tokens;
      answer.error = result.error;
      finished = true;
    };
    sequence->tokens = prompt;
    check(rounds_.admit(sequence), "a sequence found no place");
    std::vector<std::shared_ptr<Sequence>> yielded;
    while (!finished) rounds_.step(yielded);
    return answer;
  }

  const VerifyOptions& options_;
  DraftPlanner planner_;
  MemoryPlan plan_;
  CachePool pool_;
  ForwardRunner forward_;
  PrefixStore store_;
  Rounds rounds_;
};

}  // namespace

VerifyReport verify_every_point(const FuzzFactory& make, const std::vector<VerifyPrompt>& prompts,
                                const std::vector<VerifyDrafter>& drafters, const VerifyOptions& options,
                                int32_t conversations) {
  check(!prompts.empty() && !options.worlds.empty() && !drafters.empty(), "verification needs prompts and drafters");
  VerifyReport report;
  FuzzSubject subject = make(options.worlds.back());
  const auto reference = start_reference(subject, options);
  const auto answer_of = [&](const VerifyQuestion& question) {
    return ask_all(*reference, options, std::span(&question, 1), false).front().tokens;
  };
  for (int32_t c = 0; c < conversations; ++c) {
    const VerifyPrompt& opening = prompts[static_cast<size_t>(c) % prompts.size()];
    const VerifyPrompt& further = prompts[static_cast<size_t>(c * 7 + 3) % prompts.size()];
    VerifyQuestion question{.kind = opening.kind, .prompt = opening.tokens, .sampling = {}, .expected = {}};
    if (c % 2 == 1)
      question.sampling = {.temperature = 0.8, .top_k = 0, .top_p = 0.95, .min_p = 0.0, .seed = options.seed};
    const std::vector<int32_t> reply = answer_of(question);
    question.prompt.insert(question.prompt.end(), reply.begin(), reply.end());
    question.prompt.insert(question.prompt.end(), further.tokens.begin(), further.tokens.end());
    if (static_cast<int32_t>(question.prompt.size()) + options.max_tokens >= options.context) {
      fail(ErrorKind::invalid_request, "--context is too small for two turns of {} tokens", question.prompt.size());
    }
    question.expected = answer_of(question);
    const VerifyDrafter& drafter = drafters[static_cast<size_t>(c) % drafters.size()];
    EveryPoint player(subject, drafter.make(*subject.backend, *subject.model), options);
    for (size_t point = 1; point < question.prompt.size(); ++point) {
      VerifyAnswer answer = player.ask(question, point);
      if (answer.cached_tokens != static_cast<int32_t>(point) && answer.error.empty()) {
        answer.error = fmt::format("it resumed behind {} tokens", answer.cached_tokens);
      }
      compare_answer(report, question, answer, fmt::format("conversation {}, resume point {}", c, point));
    }
    ++report.met["conversations"];
    report.met["resume points"] += static_cast<int32_t>(question.prompt.size()) - 1;
    if (options.progress) {
      options.progress(fmt::format("conversation {} of {}: {} resume points, {} differences so far", c + 1,
                                   conversations, question.prompt.size() - 1, report.differences));
    }
  }
  return report;
}

}  // namespace tensorfold::engine
