#include "engine/engine.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "engine/cache_pool.h"
#include "engine/draft_planner.h"
#include "engine/forward.h"
#include "engine/memory_plan.h"
#include "engine/prefix_store.h"
#include "engine/rounds.h"
#include "engine/row_check.h"

namespace tensorfold::engine {
namespace {

// Logits are vocabulary wide, so their rows are bounded.
constexpr int32_t most_decode_rows = 64;
constexpr double memory_share = 0.7;

class SequenceTicket final : public Ticket {
 public:
  explicit SequenceTicket(std::shared_ptr<Sequence> sequence) : sequence_(std::move(sequence)) {}
  void cancel() override { sequence_->cancelled = true; }

 private:
  std::shared_ptr<Sequence> sequence_;
};

uint64_t cache_budget(const EngineOptions& options, const backend::Backend& backend, const families::Model& model) {
  if (options.memory_budget > 0) return options.memory_budget;
  const auto share = static_cast<uint64_t>(memory_share * static_cast<double>(backend.info().memory_bytes));
  const auto weights = static_cast<uint64_t>(std::max<int64_t>(model.info().decode_bytes, 0));
  return share > weights ? share - weights : 0;
}

class ThreadedEngine final : public Engine {
 public:
  ThreadedEngine(backend::Backend& backend, families::Model& model, const EngineOptions& options,
                 std::vector<std::unique_ptr<drafters::Drafter>> drafters)
      : model_(model),
        drafts_(options.drafts ? std::move(drafters) : std::vector<std::unique_ptr<drafters::Drafter>>{},
                options.fixed_drafts),
        plan_(make_plan(backend, model, options, drafts_)),
        pool_(backend, model.cache_layout(), drafts_.layouts(), plan_.cache),
        forward_(backend, model, pool_.target(), drafts_.wants(), std::max(most_decode_rows, plan_.lanes)),
        files_(open_files(backend, options, pool_, drafts_)),
        store_(pool_, {.device_slots = plan_.kept_states, .host_bytes = options.host_bytes}, files_.get()),
        rounds_(pool_, forward_, drafts_, options.keep_prefixes ? &store_ : nullptr, check_and_narrow(options)) {
    drafts_.attach(pool_);
    status_.lanes = plan_.lanes;
    status_.context = plan_.context;
    thread_ = std::thread([this] { run(); });
  }

  ~ThreadedEngine() override { stop(); }

  std::shared_ptr<Ticket> submit(Request request) override {
    validate(request);
    auto sequence = std::make_shared<Sequence>();
    sequence->request = std::move(request);
    sequence->tokens = sequence->request.prompt;
    sequence->constraint = ConstraintGuard(sequence->request.constraint);
    sequence->submitted = Clock::now();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) fail(ErrorKind::cancelled, "the engine is stopping");
      sequence->id = next_id_++;
      inbox_.push_back(sequence);
      ++status_.waiting;
    }
    wake_.notify_one();
    return std::make_shared<SequenceTicket>(std::move(sequence));
  }

  [[nodiscard]] EngineStatus status() const override {
    const std::lock_guard lock(mutex_);
    return status_;
  }

  void stop() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    const std::lock_guard lock(join_mutex_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  static MemoryPlan make_plan(backend::Backend& backend, families::Model& model, const EngineOptions& options,
                              const DraftPlanner& drafts) {
    const CacheCosts costs = measure_cache(backend, model.cache_layout(), drafts.layouts(), options.page_tokens);
    return plan_memory(options, costs, model.info().native_context, model.max_rows(),
                       cache_budget(options, backend, model));
  }

  /// The disk tier, or null.
  static std::unique_ptr<SnapshotFiles> open_files(const backend::Backend& backend, const EngineOptions& options,
                                                   const CachePool& pool, const DraftPlanner& drafts) {
    if (!options.keep_prefixes || options.snapshot_directory.empty() || options.disk_bytes == 0) return nullptr;
    return std::make_unique<SnapshotFiles>(SnapshotFilesOptions{
        .directory = options.snapshot_directory,
        .most_bytes = options.disk_bytes,
        .identity = fmt::format("{}|{}|{}", options.weights_identity, backend.info().arithmetic, drafts.names()),
        .page_tokens = pool.page_tokens(),
        .page_bytes = static_cast<uint64_t>(pool.page_bytes()),
        .state_bytes = static_cast<uint64_t>(pool.state_bytes()),
        .log = options.log});
  }

  /// Runs the row check where drafts may be used; the options of the rounds that follow from it.
  RoundOptions check_and_narrow(const EngineOptions& options) {
    RoundOptions rounds{.lanes = plan_.lanes,
                        .prefill_rows = std::min(options.prefill_rows, forward_.most_rows()),
                        .window_rows = std::clamp(options.window_rows, 1, forward_.most_logit_rows()),
                        .decode_share = options.decode_share};
    if (!options.drafts) rounds.window_rows = 1;
    if (rounds.window_rows > 1) {
      const RowCheckResult result = check_rows(pool_, forward_, rounds.window_rows);
      if (!result.problem.empty()) {
        rounds.window_rows = result.exact_rows;
        status_.drafts_off_reason = result.problem;
      }
    }
    status_.window_rows = rounds.window_rows;
    return rounds;
  }

  void validate(const Request& request) const {
    const int64_t vocabulary = model_.info().vocabulary_size;
    if (request.prompt.empty()) fail(ErrorKind::invalid_request, "the prompt is empty");
    for (const int32_t token : request.prompt) {
      if (token < 0 || token >= vocabulary)
        fail(ErrorKind::invalid_request, "token {} is not in the vocabulary", token);
    }
    if (request.max_tokens < 1) fail(ErrorKind::invalid_request, "max_tokens must be at least 1");
    const int64_t total = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
    if (total > plan_.context) {
      fail(ErrorKind::invalid_request, "{} prompt tokens and {} reply tokens exceed the context of {}",
           request.prompt.size(), request.max_tokens, plan_.context);
    }
  }

  void run() {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock,
                   [&] { return stopping_ || !inbox_.empty() || !waiting_.empty() || !rounds_.running().empty(); });
        waiting_.insert(waiting_.end(), inbox_.begin(), inbox_.end());
        inbox_.clear();
        if (stopping_) break;
      }
      work();
      publish();
    }
    rounds_.finish_all(FinishReason::cancelled, "");
    for (const auto& sequence : waiting_) rounds_.finish(sequence, FinishReason::cancelled, "");
    waiting_.clear();
    publish();
  }

  void work() {
    try {
      admit_waiting();
      std::vector<std::shared_ptr<Sequence>> yielded;
      rounds_.step(yielded);
      waiting_.insert(waiting_.end(), yielded.begin(), yielded.end());
    } catch (const std::exception& error) {
      // What was in flight is lost; the caches of later sequences are not touched by it.
      rounds_.finish_all(FinishReason::failed, error.what());
    }
  }

  void admit_waiting() {
    const std::vector<std::shared_ptr<Sequence>> before = waiting_;
    for (const auto& sequence : before) {
      if (!sequence->cancelled) continue;
      std::erase(waiting_, sequence);
      rounds_.finish(sequence, FinishReason::cancelled, "");
    }
    std::sort(waiting_.begin(), waiting_.end(), [](const auto& a, const auto& b) {
      if (a->request.priority != b->request.priority) return a->request.priority == Priority::foreground;
      return a->id < b->id;
    });
    while (!waiting_.empty()) {
      const std::shared_ptr<Sequence> next = waiting_.front();
      if (!rounds_.has_free_lane() && next->request.priority == Priority::foreground) yield_background();
      if (!rounds_.admit(next)) break;
      std::erase(waiting_, next);
    }
  }

  /// The youngest background sequence gives its lane to a foreground one and waits again.
  void yield_background() {
    const auto running = rounds_.running();
    for (size_t i = running.size(); i-- > 0;) {
      if (running[i]->request.priority != Priority::background) continue;
      const std::shared_ptr<Sequence> sequence = running[i];
      rounds_.give_up(sequence);
      waiting_.push_back(sequence);
      return;
    }
  }

  void publish() {
    const std::lock_guard lock(mutex_);
    const RoundTotals& totals = rounds_.totals();
    status_.running = static_cast<int32_t>(rounds_.running().size());
    status_.waiting = static_cast<int32_t>(waiting_.size() + inbox_.size());
    status_.rounds = totals.rounds;
    status_.prompt_tokens = totals.prompt_tokens;
    status_.cached_tokens = totals.cached_tokens;
    status_.reply_tokens = totals.reply_tokens;
    status_.drafted = totals.drafted;
    status_.accepted = totals.accepted;
    status_.kept_prefixes = store_.snapshots();
    status_.resumed_prefixes = store_.totals().resumed;
  }

  families::Model& model_;
  EngineStatus status_;
  DraftPlanner drafts_;
  MemoryPlan plan_;
  CachePool pool_;
  ForwardRunner forward_;
  std::unique_ptr<SnapshotFiles> files_;
  PrefixStore store_;
  Rounds rounds_;
  std::vector<std::shared_ptr<Sequence>> waiting_;

  mutable std::mutex mutex_;  ///< guards status_, inbox_, stopping_ and next_id_
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Sequence>> inbox_;
  bool stopping_ = false;
  uint64_t next_id_ = 1;
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace

int32_t forward_rows(const EngineOptions& options) { return options.prefill_rows + most_decode_rows; }

std::unique_ptr<Engine> start_engine(backend::Backend& backend, families::Model& model, const EngineOptions& options,
                                     std::vector<std::unique_ptr<drafters::Drafter>> drafters) {
  return std::make_unique<ThreadedEngine>(backend, model, options, std::move(drafters));
}

}  // namespace tensorfold::engine
