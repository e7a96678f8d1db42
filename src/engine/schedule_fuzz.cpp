#include "engine/schedule_fuzz.h"

#include <algorithm>
#include <chrono>
#include <random>

#include <fmt/format.h>

#include "base/error.h"
#include "engine/fuzz_story.h"
#include "engine/prefix_store.h"

namespace tensorfold::engine {
namespace {

using Random = std::mt19937_64;

constexpr int32_t most_runners = 5;
constexpr int32_t most_logit_rows = 48;
constexpr size_t most_messages = 10;

// The situations that a run must have met.
constexpr const char* situations[] = {"chunks",           "chain_windows", "tree_windows",    "single_rows",
                                      "partial_keeps",    "nothing_kept",  "shared_forwards", "mixed_forwards",
                                      "page_crossings",   "partitions",    "evictions",       "snapshot_resumes",
                                      "restored_resumes", "shared_pages",  "spills",          "pages_copied",
                                      "page_sizes",       "worlds",        "whole_chunks",    "rows_beyond_a_window"};

/// One story being fed.
struct Runner {
  size_t story = 0;
  CacheLane lane;
  bool open = false;
};

/// What a runner does in a round.
struct Move {
  Runner* runner = nullptr;
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;
  std::vector<int32_t> true_depth;  ///< of a row on the story's own path; -1: a wrong draft
  std::vector<int32_t> path;        ///< rows to keep
  bool keep_all = false;
  WantedLogits logits = WantedLogits::all;
};

/// One cache of one subject, and the schedules run in it.
class World {
 public:
  World(FuzzSubject& subject, const backend::CacheSize& size, const std::vector<FuzzStory>& stories,
        bool pages_comparable, Random& random, FuzzReport& report)
      : stories_(stories),
        pages_comparable_(pages_comparable),
        random_(random),
        report_(report),
        pool_(*subject.backend, subject.model->cache_layout(), {}, size),
        forward_(*subject.backend, *subject.model, pool_.target(), {}, most_logit_rows),
        probe_(pool_, forward_),
        runners_(most_runners),
        store_(pool_, {.device_slots = 5, .host_bytes = host_bytes(pool_), .pinned = 1}, nullptr) {
    probe_.poison();
  }

  /// One forward over some of the runners, with everything compared, and now and then an upheaval.
  void round() {
    for (Runner& runner : runners_) {
      if (!runner.open && chance(0.7)) start(runner);
    }
    std::vector<Move> moves = plan_moves();
    if (!moves.empty()) play(moves);
    if (chance(0.2)) keep_one();
    if (chance(0.1)) store_.make_room(pool_.free_pages() + between(1, 20));
    if (chance(0.06)) evict();
    ++report_.rounds;
    count_store();
  }

 private:
  /// Room for few prefixes, so that the host tier overflows too.
  static uint64_t host_bytes(const CachePool& pool) {
    const int64_t pages = pool.size().pages / 6 + 1;
    return static_cast<uint64_t>(4 * pool.state_bytes() + pages * pool.page_bytes());
  }
  bool chance(double p) { return std::uniform_real_distribution<double>(0.0, 1.0)(random_) < p; }
  int32_t between(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(random_); }
  void count(const char* situation) { ++report_.counters[situation]; }

  /// Takes what the store and the pool counted since the last round over into the report.
  void count_store() {
    const PrefixStoreTotals& now = store_.totals();
    report_.counters["snapshot_resumes"] += now.resumed - before_.resumed;
    report_.counters["restored_resumes"] += now.from_host - before_.from_host;
    report_.counters["evictions"] += now.dropped - before_.dropped;
    report_.counters["spills"] += now.demoted - before_.demoted;
    report_.counters["pages_copied"] += pool_.pages_copied() - pages_copied_;
    before_ = now;
    pages_copied_ = pool_.pages_copied();
  }

  const FuzzStory& story_of(const Runner& runner) const { return stories_[runner.story]; }
  int32_t tokens_left(const Runner& runner) const {
    return static_cast<int32_t>(story_of(runner).tokens.size()) - runner.lane.committed;
  }

  void mismatch(const std::string& what) {
    ++report_.mismatches;
    if (report_.first_mismatches.size() < most_messages) report_.first_mismatches.push_back(what);
  }

  void start(Runner& runner) {
    runner.story = chance(0.3) ? 0 : random_() % stories_.size();
    if (!pool_.open(runner.lane)) return;
    runner.open = true;
    if (chance(0.2) || store_.resume(story_of(runner).tokens, runner.lane) == 0) return;
    compare_lane(runner, "after a resume");
    // Another may stand behind the same pages, and write on in them.
    for (const Runner& other : runners_) {
      if (&other == &runner || !other.open || other.lane.pages.empty()) continue;
      if (other.lane.pages.front() == runner.lane.pages.front()) count("shared_pages");
    }
  }

  std::vector<Move> plan_moves() {
    std::vector<Move> moves;
    int32_t rows = forward_.most_rows();
    int32_t logit_rows = forward_.most_logit_rows();
    const bool alone = chance(0.25);
    for (Runner& runner : runners_) {
      if (!runner.open || (!moves.empty() && (alone || chance(0.3)))) continue;
      if (tokens_left(runner) == 0) {
        pool_.close(runner.lane);
        runner.open = false;
        continue;
      }
      Move move;
      move.runner = &runner;
      const double kind = std::uniform_real_distribution<double>(0.0, 1.0)(random_);
      if (kind < 0.4) {
        plan_chunk(move, rows);
      } else if (kind < 0.55) {
        plan_chunk(move, 1);
      } else if (kind < 0.8) {
        plan_chain(move, std::min({rows, logit_rows, chance(0.15) ? most_logit_rows : 18}));
      } else {
        plan_tree(move, std::min({rows, logit_rows, 18}));
      }
      const auto count_of = static_cast<int32_t>(move.tokens.size());
      if (count_of == 0 || count_of > rows) continue;
      if (count_of > logit_rows) move.logits = logit_rows > 0 ? WantedLogits::last : WantedLogits::none;
      if (!pool_.reserve(runner.lane, runner.lane.committed + count_of)) {
        store_.make_room(pool_.pages_needed(runner.lane, runner.lane.committed + count_of));
        if (!pool_.reserve(runner.lane, runner.lane.committed + count_of)) continue;
      }
      rows -= count_of;
      logit_rows -= move.logits == WantedLogits::all ? count_of : move.logits == WantedLogits::last ? 1 : 0;
      note_move(move);
      moves.push_back(std::move(move));
    }
    return moves;
  }

  void note_move(const Move& move) {
    const int32_t first = move.runner->lane.committed;
    const int32_t last = first + static_cast<int32_t>(move.tokens.size()) - 1;
    if (move.tokens.size() > 1 && first / pool_.page_tokens() != last / pool_.page_tokens()) count("page_crossings");
    if (last >= 512) count("partitions");
    if (move.tokens.size() > 16) count("rows_beyond_a_window");
  }

  void plan_chunk(Move& move, int32_t most) {
    const int32_t left = std::min(most, tokens_left(*move.runner));
    if (left <= 0) return;
    // Long stories move fast until their second attention partition: where models are slow, rounds are few.
    const bool hurries = story_of(*move.runner).tokens.size() > 512 && move.runner->lane.committed < 512;
    const int32_t rows = chance(hurries ? 0.6 : 0.2) ? left : between(1, left);
    if (rows > 1 && rows == tokens_left(*move.runner)) count("whole_chunks");
    count(rows == 1 ? "single_rows" : "chunks");
    const auto first = story_of(*move.runner).tokens.begin() + move.runner->lane.committed;
    move.tokens.assign(first, first + rows);
    for (int32_t row = 0; row < rows; ++row) {
      move.true_depth.push_back(row);
      move.path.push_back(row);
    }
    move.keep_all = chance(0.8) || rows > most_logit_rows;
  }

  int32_t wrong_token(int32_t right) {
    const auto vocabulary = static_cast<int32_t>(forward_.vocabulary());
    return (right + between(1, vocabulary - 1)) % vocabulary;
  }

  void plan_chain(Move& move, int32_t most) {
    const int32_t left = std::min(most, tokens_left(*move.runner));
    if (left < 2) return;
    const int32_t rows = between(2, left);
    // Acceptance 0, all, or something between; then a keep that may stop short of it.
    const int32_t right = chance(0.25) ? 1 : chance(0.35) ? rows : between(1, rows);
    for (int32_t row = 0; row < rows; ++row) {
      const int32_t token = story_of(*move.runner).tokens[static_cast<size_t>(move.runner->lane.committed + row)];
      move.tokens.push_back(row < right ? token : wrong_token(token));
      move.true_depth.push_back(row < right ? row : -1);
    }
    const int32_t kept = chance(0.1) ? 0 : chance(0.7) ? right : between(1, right);
    for (int32_t row = 0; row < kept; ++row) move.path.push_back(row);
    count("chain_windows");
    if (kept > 0 && kept < rows) count("partial_keeps");
    if (kept == 0) count("nothing_kept");
  }

  void plan_tree(Move& move, int32_t most) {
    const int32_t left = std::min(most, tokens_left(*move.runner));
    if (left < 3) return;
    const auto& tokens = story_of(*move.runner).tokens;
    const auto committed = static_cast<size_t>(move.runner->lane.committed);
    const int32_t rows = between(3, left);
    std::vector<int32_t> depth;
    std::vector<int32_t> spine;  // rows of the true path
    for (int32_t row = 0; row < rows; ++row) {
      const auto next = static_cast<size_t>(spine.size());
      // The spine grows at its tip; other rows hang anywhere, below wrong rows too.
      const bool true_row = row == 0 || chance(0.45);
      const int32_t parent = row == 0 ? -1 : true_row ? spine.back() : between(0, row - 1);
      const int32_t own = parent < 0 ? 0 : depth[static_cast<size_t>(parent)] + 1;
      const int32_t story_token = tokens[std::min(committed + static_cast<size_t>(own), tokens.size() - 1)];
      move.parents.push_back(parent);
      move.tokens.push_back(true_row ? tokens[committed + next] : wrong_token(story_token));
      move.true_depth.push_back(true_row ? own : -1);
      depth.push_back(own);
      if (true_row) spine.push_back(row);
    }
    const auto kept = chance(0.7) ? spine.size() : random_() % (spine.size() + 1);
    move.path.assign(spine.begin(), spine.begin() + static_cast<std::ptrdiff_t>(kept));
    count("tree_windows");
    if (kept > 0) count("partial_keeps");
  }

  void play(std::vector<Move>& moves) {
    std::vector<Window> windows;
    bool chunk = false;
    bool window = false;
    for (const Move& move : moves) {
      const auto committed = static_cast<size_t>(move.runner->lane.committed);
      windows.push_back({.lane = &move.runner->lane,
                         .tokens = move.tokens,
                         .past = std::span(story_of(*move.runner).tokens).first(committed),
                         .parents = move.parents,
                         .keep_all = move.keep_all,
                         .logits = move.logits});
      (move.keep_all ? chunk : window) = true;
    }
    if (moves.size() > 1) count("shared_forwards");
    if (chunk && window) count("mixed_forwards");
    forward_.run(windows);
    for (size_t i = 0; i < moves.size(); ++i) compare_logits(moves[i], i);
    std::vector<backend::KeptPath> kept;
    for (size_t i = 0; i < moves.size(); ++i) {
      if (!moves[i].keep_all) kept.push_back({.sequence = static_cast<int32_t>(i), .rows = moves[i].path});
    }
    forward_.commit(kept);
    for (const Move& move : moves) {
      move.runner->lane.committed += static_cast<int32_t>(move.path.size());
      compare_lane(*move.runner, move.keep_all ? "after a chunk" : "after a commit");
    }
  }

  void compare_logits(const Move& move, size_t index) {
    for (size_t row = 0; row < move.tokens.size(); ++row) {
      const bool wanted =
          move.logits == WantedLogits::all || (move.logits == WantedLogits::last && row + 1 == move.tokens.size());
      if (!wanted || move.true_depth[row] < 0) continue;
      const int32_t position = move.runner->lane.committed + move.true_depth[row];
      const uint64_t found = probe_.logits(forward_.logit_row(index, static_cast<int32_t>(row)));
      ++report_.compared_rows;
      if (found == story_of(*move.runner).logits[static_cast<size_t>(position)]) continue;
      mismatch(fmt::format("round {}: logits at position {} of story {} differ (row {} of {} in a {}, {} sequences)",
                           report_.rounds, position, move.runner->story, row, move.tokens.size(),
                           move.keep_all          ? "chunk"
                           : move.parents.empty() ? "chain"
                                                  : "tree",
                           forward_.plan().sequences.size()));
    }
  }

  void compare_lane(const Runner& runner, const char* when) {
    const auto length = static_cast<size_t>(runner.lane.committed);
    if (pool_.has_state()) {
      ++report_.compared_states;
      if (probe_.state(runner.lane) != story_of(runner).states[length]) {
        mismatch(fmt::format("round {}: the state after {} tokens of story {} differs {}", report_.rounds, length,
                             runner.story, when));
      }
    }
    if (!pages_comparable_) return;
    const size_t full = length / static_cast<size_t>(pool_.page_tokens());
    // The pages written last, and one of the others.
    for (size_t j = 0; j < full; ++j) {
      if (j + 3 < full && random_() % full != 0) continue;
      ++report_.compared_pages;
      if (probe_.page(runner.lane.pages[j]) == story_of(runner).pages[j]) continue;
      mismatch(fmt::format("round {}: page {} of story {} differs {}", report_.rounds, j, runner.story, when));
    }
  }

  void keep_one() {
    const Runner& runner = runners_[random_() % runners_.size()];
    if (!runner.open || runner.lane.committed == 0) return;
    const auto reason = static_cast<KeepReason>(random_() % 4);
    store_.keep(story_of(runner).tokens, runner.lane, reason);
  }

  void evict() {
    Runner& runner = runners_[random_() % runners_.size()];
    if (!runner.open) return;
    pool_.close(runner.lane);
    runner.open = false;
    if (chance(0.3)) probe_.poison();
  }

  const std::vector<FuzzStory>& stories_;
  bool pages_comparable_;
  Random& random_;
  FuzzReport& report_;
  CachePool pool_;
  ForwardRunner forward_;
  FuzzProbe probe_;
  std::vector<Runner> runners_;
  PrefixStore store_;
  PrefixStoreTotals before_;
  uint64_t pages_copied_ = 0;
};

backend::CacheSize size_for(int32_t page_tokens, int32_t longest, int32_t window_rows) {
  const int32_t tokens = (most_runners + 2) * (longest + 64);
  return {.page_tokens = page_tokens,
          .pages = tokens / page_tokens + 4 * most_runners,
          .state_slots = most_runners + 8,
          .window_rows = window_rows};
}

bool has_enough(const FuzzReport& report, uint64_t rows, bool has_states) {
  return report.compared_rows >= rows && report.compared_pages >= rows / 5 &&
         (!has_states || report.compared_states >= rows / 5) && report.untouched().empty();
}

}  // namespace

std::vector<std::string> FuzzReport::untouched() const {
  std::vector<std::string> names;
  for (const auto& [name, times] : counters) {
    if (times == 0) names.push_back(name);
  }
  return names;
}

FuzzReport fuzz_schedules(const FuzzFactory& make, const FuzzOptions& options) {
  check(!options.worlds.empty() && options.long_story >= 64, "the fuzzer needs threads and a long story");
  Random random(options.seed);
  FuzzReport report;
  for (const char* situation : situations) report.counters[situation] = 0;
  std::vector<FuzzStory> stories;
  constexpr int32_t page_sizes[] = {1, 3, 16, 64};
  const int32_t reference_page = page_sizes[1 + random() % 3];
  int32_t longest = options.long_story + 64;
  for (size_t w = 0; w < options.worlds.size(); ++w) {
    FuzzSubject subject = make(options.worlds[w]);
    const int64_t slice = subject.backend->info().slice_inputs;
    report.several_slices = report.several_slices || (slice > 0 && subject.model->info().hidden_size > slice);
    if (stories.empty()) {
      stories = make_stories(options.long_story, subject.model->info().vocabulary_size, random);
      for (const FuzzStory& story : stories) longest = std::max(longest, static_cast<int32_t>(story.tokens.size()));
      CachePool pool(*subject.backend, subject.model->cache_layout(), {},
                     size_for(reference_page, longest, subject.model->max_rows()));
      ForwardRunner forward(*subject.backend, *subject.model, pool.target(), {}, most_logit_rows);
      for (FuzzStory& story : stories) record_story(story, pool, forward);
    }
    using Clock = std::chrono::steady_clock;
    const auto share = std::chrono::duration<double>(options.seconds / static_cast<double>(options.worlds.size()));
    const auto start = Clock::now();
    const bool last = w + 1 == options.worlds.size();
    const bool has_states = std::ranges::any_of(subject.model->cache_layout().entries, [](const auto& entry) {
      return std::holds_alternative<backend::StateEntry>(entry);
    });
    const auto patience =
        options.patience_seconds > 0 ? std::chrono::duration<double>(options.patience_seconds) : 8 * share;
    const auto goes_on = [&] {
      const auto spent = Clock::now() - start;
      return spent < share || (last && spent < patience && !has_enough(report, options.enough, has_states));
    };
    for (size_t turn = 0; goes_on(); ++turn) {
      const int32_t page_tokens = turn % 2 == 1 ? page_sizes[random() % 4] : reference_page;
      World world(subject, size_for(page_tokens, longest, subject.model->max_rows()), stories,
                  page_tokens == reference_page, random, report);
      ++report.counters["worlds"];
      if (page_tokens != reference_page) ++report.counters["page_sizes"];
      // A slow model's first world ends early, so that there is a second one.
      const auto ends = [&] { return turn == 0 && Clock::now() - start > share / 2; };
      for (int round = 0; round < 25 && goes_on() && !ends(); ++round) world.round();
    }
  }
  return report;
}

}  // namespace tensorfold::engine
