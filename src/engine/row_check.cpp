#include "engine/row_check.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"

namespace tensorfold::engine {
namespace {

constexpr int32_t prompt_tokens = 48;
constexpr std::array<int32_t, 9> widths = {2, 3, 4, 6, 8, 12, 16, 32, 64};
// The reference for rows behind these: windows of so many rows, once those are known to be exact.
constexpr int32_t narrow = 16;
// Windows up to so many rows are always tried; wider ones while the check is expected to end within this time. What was
// not tried is not used.
constexpr int32_t always_tried = 8;
constexpr double most_seconds = 2.0;
// Enough to see whether logits are numbers, where no window is wanted.
constexpr size_t few_tokens = 4;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// A lane that gives its pages back.
class ScopedLane {
 public:
  explicit ScopedLane(CachePool& pool) : pool_(pool) { check(pool.open(lane), "the row check found no free lane"); }
  ~ScopedLane() { pool_.close(lane); }
  ScopedLane(const ScopedLane&) = delete;
  ScopedLane& operator=(const ScopedLane&) = delete;
  void reserve(int32_t tokens) { check(pool_.reserve(lane, tokens), "the row check found no free pages"); }
  /// Says that `tokens` are committed now.
  void extend(std::span<const int32_t> tokens) {
    past.insert(past.end(), tokens.begin(), tokens.end());
    lane.committed += static_cast<int32_t>(tokens.size());
  }
  CacheLane lane;
  std::vector<int32_t> past;

 private:
  CachePool& pool_;
};

class RowCheck {
 public:
  RowCheck(CachePool& pool, ForwardRunner& forward, int32_t widest)
      : pool_(pool), forward_(forward), widest_(std::min({widest, widths.back(), forward.most_logit_rows()})) {
    const auto vocabulary = static_cast<int32_t>(forward.vocabulary());
    for (int32_t i = 0; i < prompt_tokens; ++i) prompt_.push_back(((37 * i + 11) % 50000 + 1000) % vocabulary);
    for (int32_t r = 0; r < widest_ + 1; ++r) next_.push_back((3001 + 17 * r) % vocabulary);
  }

  RowCheckResult run() {
    RowCheckResult result;
    ScopedLane lane(pool_);
    lane.reserve(prompt_tokens + widest_ + 2);
    if (widest_ < 2) {
      feed(lane, std::span<const int32_t>(prompt_).first(few_tokens), WantedLogits::last);
      static_cast<void>(read_finite(0));
      return result;
    }
    const Clock::time_point start = Clock::now();
    feed(lane, prompt_, WantedLogits::none);
    prompt_seconds_ = seconds_since(start);
    bool in_time = true;
    for (const int32_t width : widths) {
      in_time = width <= always_tried || seconds_since(start) + seconds_of(width) <= most_seconds;
      if (width > widest_ || !in_time) break;
      if (width > narrow) {
        single_lane_.reset();
        feed_narrow(width);
      } else {
        feed_singles(static_cast<size_t>(width) + 1);
      }
      if (!chain_is_exact(lane, width)) {
        result.problem = fmt::format("a window of {} rows gives other bits than single rows", width);
        return result;
      }
      result.exact_rows = width;
    }
    if (in_time) result.exact_rows = widest_;
    single_lane_.reset();
    if (!tree_is_exact(lane)) {
      result = {.exact_rows = 1, .problem = "a tree of drafts gives other bits than single rows"};
    } else if (!neighbours_are_exact(lane)) {
      result = {.exact_rows = 1, .problem = "a window beside another sequence gives other bits than alone"};
    } else if (!partly_kept_is_exact(lane)) {
      result = {.exact_rows = 1, .problem = "decoding after a partly kept window gives other bits"};
    }
    return result;
  }

 private:
  using Logits = std::vector<float>;

  static Window window_of(ScopedLane& lane, std::span<const int32_t> tokens, bool keep_all) {
    return {.lane = &lane.lane,
            .tokens = tokens,
            .past = lane.past,
            .parents = {},
            .keep_all = keep_all,
            .logits = WantedLogits::all};
  }

  /// Runs `tokens` and keeps them all.
  void feed(ScopedLane& lane, std::span<const int32_t> tokens, WantedLogits logits) {
    Window window = window_of(lane, tokens, true);
    window.logits = logits;
    forward_.run(std::span(&window, 1));
    lane.extend(tokens);
  }

  /// Runs `tokens`, a chain unless `parents` says otherwise, and keeps none of them.
  void propose(ScopedLane& lane, std::span<const int32_t> tokens, std::span<const int32_t> parents = {}) {
    Window window = window_of(lane, tokens, false);
    window.parents = parents;
    forward_.run(std::span(&window, 1));
  }

  [[nodiscard]] Logits read(int32_t logit_row) {
    Logits logits(static_cast<size_t>(forward_.vocabulary()));
    forward_.read_logits(logit_row, 1, logits);
    return logits;
  }

  [[nodiscard]] bool equal(int32_t logit_row, const Logits& expected) {
    const Logits logits = read(logit_row);
    return std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)) == 0;
  }

  /// A row of the reference. Weights with NaN or infinity in them must not pass as weights that agree with themselves.
  [[nodiscard]] Logits read_finite(int32_t logit_row) {
    Logits logits = read(logit_row);
    if (!std::all_of(logits.begin(), logits.end(), [](float value) { return std::isfinite(value); }))
      fail(ErrorKind::corrupt_file, "the model computes NaN or infinity: its weights are damaged");
    return logits;
  }

  /// Adds to the reference until it has `rows` rows: one at a time, each committed.
  void feed_singles(size_t rows) {
    if (!single_lane_) {
      single_lane_.emplace(pool_);
      single_lane_->reserve(prompt_tokens + widest_ + 1);
      feed(*single_lane_, prompt_, WantedLogits::none);
    }
    const Clock::time_point start = Clock::now();
    const size_t known = singles_.size();
    while (singles_.size() < rows) {
      feed(*single_lane_, {&next_[singles_.size()], 1}, WantedLogits::all);
      singles_.push_back(read_finite(0));
    }
    if (rows > known) single_seconds_ = seconds_since(start) / static_cast<double>(rows - known);
  }

  /// What a chain of `width` rows and its reference will take, at no more than what rows took so far.
  [[nodiscard]] double seconds_of(int32_t width) const {
    const double chain = chain_seconds_ * width / chain_rows_;
    if (width <= narrow) return chain + single_seconds_ * (width + 1 - static_cast<double>(singles_.size()));
    return 2.0 * chain + prompt_seconds_;
  }

  /// Adds the reference of rows up to `rows`, by kept windows of `narrow` rows.
  void feed_narrow(int32_t rows) {
    ScopedLane lane(pool_);
    lane.reserve(prompt_tokens + rows);
    feed(lane, prompt_, WantedLogits::none);
    const std::span<const int32_t> next(next_);
    for (int32_t first = 0; first < rows; first += narrow) {
      const int32_t count = std::min(narrow, rows - first);
      const auto tokens = next.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
      feed(lane, tokens, WantedLogits::all);
      for (int32_t row = 0; row < count; ++row) {
        if (static_cast<size_t>(first + row) >= singles_.size()) singles_.push_back(read_finite(row));
      }
    }
  }

  bool chain_is_exact(ScopedLane& lane, int32_t width) {
    const auto tokens = std::span<const int32_t>(next_).first(static_cast<size_t>(width));
    const Clock::time_point start = Clock::now();
    propose(lane, tokens);
    for (int32_t row = 0; row < width; ++row) {
      if (!equal(row, singles_[static_cast<size_t>(row)])) return false;
    }
    chain_seconds_ = seconds_since(start);
    chain_rows_ = width;
    return true;
  }

  /// The true chain with wrong siblings between its rows.
  bool tree_is_exact(ScopedLane& lane) {
    const std::array<int32_t, 5> tokens = {next_[0], prompt_[5], next_[1], prompt_[9], next_[2]};
    const std::array<int32_t, 5> parents = {-1, 0, 0, 1, 2};
    if (widest_ < 3 || forward_.most_logit_rows() < 5) return true;
    propose(lane, tokens, parents);
    return equal(0, singles_[0]) && equal(2, singles_[1]) && equal(4, singles_[2]);
  }

  bool neighbours_are_exact(ScopedLane& lane) {
    if (forward_.most_logit_rows() < 5) return true;
    ScopedLane other(pool_);
    other.reserve(prompt_tokens);
    const auto few = std::span<const int32_t>(prompt_).first(3);
    const auto two = std::span<const int32_t>(next_).first(2);
    const std::array<Window, 2> windows = {window_of(other, few, true), window_of(lane, two, false)};
    forward_.run(windows);
    return equal(3, singles_[0]) && equal(4, singles_[1]);
  }

  bool partly_kept_is_exact(ScopedLane& lane) {
    const std::array<int32_t, 2> tokens = {next_[0], prompt_[7]};
    propose(lane, tokens);
    const backend::KeptPath kept{.sequence = 0, .rows = {0}};
    forward_.commit(std::span(&kept, 1));
    lane.extend({next_.data(), 1});
    feed(lane, {&next_[1], 1}, WantedLogits::all);
    return equal(0, singles_[1]);
  }

  CachePool& pool_;
  ForwardRunner& forward_;
  int32_t widest_;
  std::vector<int32_t> prompt_;
  std::vector<int32_t> next_;
  std::optional<ScopedLane> single_lane_;  ///< behind the last row of singles_, while they are fed one by one
  std::vector<Logits> singles_;
  double prompt_seconds_ = 0.0;
  double single_seconds_ = 0.0;
  double chain_seconds_ = 0.0;  ///< of the last chain, of chain_rows_ rows
  int32_t chain_rows_ = 1;
};

}  // namespace

RowCheckResult check_rows(CachePool& pool, ForwardRunner& forward, int32_t widest) {
  return RowCheck(pool, forward, widest).run();
}

}  // namespace tensorfold::engine
