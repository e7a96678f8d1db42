#include "engine/engine.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "engine/cache_pool.h"
#include "engine/cost_calibration.h"
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
constexpr uint64_t most_automatic_lanes = 16;
// Seconds that a request waits at most for its own prefix from disk; the second where no prompt was timed yet.
constexpr double longest_hold = 5.0;
constexpr double unmeasured_hold = 1.0;
constexpr std::chrono::milliseconds longest_nap{5};

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
        files_(open_files(backend, options)),
        store_(pool_, {.device_slots = plan_.kept_states, .host_bytes = options.host_bytes}, files_.get()),
        rounds_(pool_, forward_, drafts_, options.keep_prefixes ? &store_ : nullptr, check_and_narrow(options)),
        calibration_(pool_, forward_, drafts_, status_.window_rows),
        log_(options.log),
        calibrates_(!drafts_.empty() && options.fixed_drafts < 0) {
    drafts_.attach(pool_);
    status_.lanes = plan_.lanes;
    status_.context = plan_.context;
    thread_ = std::thread([this] { run(); });
  }

  ~ThreadedEngine() override {
    stop();
    if (files_) files_->stop_fetching();
  }

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
  static MemoryPlan make_plan(backend::Backend& backend, families::Model& model, EngineOptions options,
                              const DraftPlanner& drafts) {
    const CacheCosts costs = measure_cache(backend, model.cache_layout(), drafts.layouts(), options.page_tokens);
    const uint64_t budget = cache_budget(options, backend, model);
    if (options.parallel == 0 && backend.info().name != "cpu") {
      // Rows that share a forward cost a device next to nothing: as many lanes as states fit a quarter of the memory.
      const auto affordable = budget / 4 / static_cast<uint64_t>(std::max<int64_t>(costs.state_bytes, 1));
      options.parallel = static_cast<int32_t>(std::clamp<uint64_t>(affordable, 4, most_automatic_lanes));
    }
    return plan_memory(options, costs, model.info().native_context, model.max_rows(), budget);
  }

  /// The disk tier, or null.
  std::unique_ptr<SnapshotFiles> open_files(const backend::Backend& backend, const EngineOptions& options) {
    if (!options.keep_prefixes || options.snapshot_directory.empty() || options.disk_bytes == 0) return nullptr;
    return std::make_unique<SnapshotFiles>(SnapshotFilesOptions{
        .directory = options.snapshot_directory,
        .most_bytes = options.disk_bytes,
        .identity = fmt::format("{}|{}|{}", options.weights_identity, backend.info().arithmetic, drafts_.names()),
        .page_tokens = pool_.page_tokens(),
        .page_bytes = static_cast<uint64_t>(pool_.page_bytes()),
        .state_bytes = static_cast<uint64_t>(pool_.state_bytes()),
        .log = options.log,
        .on_fetched = [this] {
          {
            const std::lock_guard lock(mutex_);
            ++disk_reads_;
          }
          wake_.notify_one();
        }});
  }

  /// Runs the row check, for single rows where drafts are off; the options of the rounds that follow from it.
  RoundOptions check_and_narrow(const EngineOptions& options) {
    RoundOptions rounds{.lanes = plan_.lanes,
                        .prefill_rows = std::min(options.prefill_rows, forward_.most_rows()),
                        .window_rows = std::clamp(options.window_rows, 1, forward_.most_logit_rows()),
                        .decode_share = options.decode_share};
    if (!options.drafts) rounds.window_rows = 1;
    const RowCheckResult result = check_rows(pool_, forward_, rounds.window_rows);
    rounds.window_rows = std::min(rounds.window_rows, result.exact_rows);
    status_.drafts_off_reason = result.problem;
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
        if (all_held_ && rounds_.running().empty()) {
          const uint64_t reads = reads_seen_;
          wake_.wait_for(lock, longest_nap, [&] { return stopping_ || !inbox_.empty() || disk_reads_ != reads; });
        } else {
          wake_.wait(lock,
                     [&] { return stopping_ || !inbox_.empty() || !waiting_.empty() || !rounds_.running().empty(); });
        }
        reads_seen_ = disk_reads_;
        waiting_.insert(waiting_.end(), inbox_.begin(), inbox_.end());
        inbox_.clear();
        if (stopping_) break;
      }
      work();
      publish();
      calibrate();
    }
    rounds_.finish_all(FinishReason::cancelled, "");
    for (const auto& sequence : waiting_) rounds_.finish(sequence, FinishReason::cancelled, "");
    waiting_.clear();
    publish();
  }

  void work() {
    try {
      rounds_.drop_cancelled();  // who waits takes such a lane in this round
      admit_waiting();
      std::vector<std::shared_ptr<Sequence>> yielded;
      rounds_.step(yielded);
      waiting_.insert(waiting_.end(), yielded.begin(), yielded.end());
    } catch (const std::exception& error) {
      // What was in flight is lost; the caches of later sequences are not touched by it.
      rounds_.finish_all(FinishReason::failed, error.what());
    }
  }

  /// Measures what rounds cost, once a reply has ended and nothing else is to be done.
  void calibrate() {
    if (!calibrates_ || calibration_.done() || !rounds_.running().empty() || !waiting_.empty()) return;
    try {
      calibration_.run(rounds_.last_ended(), [this] {
        const std::lock_guard lock(mutex_);
        return stopping_ || !inbox_.empty();
      });
      if (calibration_.done() && log_) log_(drafts_.describe_costs());
    } catch (const std::exception& error) {
      calibrates_ = false;  // rounds measure as they go
      if (log_) log_(fmt::format("costs were not measured: {}", error.what()));
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
    size_t held = 0;
    for (const auto& next : std::vector<std::shared_ptr<Sequence>>(waiting_)) {
      if (waits_for_disk(*next)) {
        ++held;
        continue;
      }
      if (!rounds_.has_free_lane() && next->request.priority == Priority::foreground) yield_background();
      if (!rounds_.admit(next)) break;
      std::erase(waiting_, next);
    }
    all_held_ = held > 0 && held == waiting_.size();
  }

  /// A request whose prefix is on disk lets others go first while that is read, but no longer than feeding the prompt
  /// would take.
  bool waits_for_disk(Sequence& sequence) {
    if (!files_ || sequence.started != Clock::time_point{}) return false;
    const Clock::time_point now = Clock::now();
    const bool first = sequence.held_until == Clock::time_point{};
    if (first) {
      const double row = rounds_.prompt_row_seconds();
      const double seconds = row > 0.0 ? std::min(row * sequence.size(), longest_hold) : unmeasured_hold;
      sequence.held_until = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    } else if (now >= sequence.held_until) {
      return false;
    } else if (sequence.held_at == reads_seen_) {
      return true;
    }
    sequence.held_at = reads_seen_;
    if (store_.awaits_disk(sequence.tokens)) return true;
    sequence.held_until = now;
    return false;
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
  CostCalibration calibration_;
  std::function<void(const std::string&)> log_;
  bool calibrates_;
  std::vector<std::shared_ptr<Sequence>> waiting_;

  mutable std::mutex mutex_;  ///< guards status_, inbox_, stopping_, next_id_ and disk_reads_
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Sequence>> inbox_;
  bool stopping_ = false;
  uint64_t next_id_ = 1;
  uint64_t disk_reads_ = 0;  ///< background reads that ended; guarded by mutex_
  uint64_t reads_seen_ = 0;  ///< of those, when the engine's thread last looked
  bool all_held_ = false;    ///< every waiting request waits for the disk
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
