#include "engine/row_check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"

namespace tensorfold::engine {
namespace {

constexpr int32_t prompt_tokens = 48;
constexpr std::array<int32_t, 9> widths = {2, 3, 4, 6, 8, 12, 16, 32, 64};
// The reference for rows behind these: windows of so many rows, once those are known to be exact.
constexpr int32_t narrow = 16;

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
    feed_singles();
    ScopedLane lane(pool_);
    lane.reserve(prompt_tokens + widest_ + 2);
    feed(lane, prompt_, WantedLogits::none);
    for (const int32_t width : widths) {
      if (width > widest_) break;
      if (width > narrow) feed_narrow(width);
      if (!chain_is_exact(lane, width)) {
        result.problem = fmt::format("a window of {} rows gives other bits than single rows", width);
        return result;
      }
      result.exact_rows = width;
    }
    if (widest_ < 2) return result;
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

  /// The reference: rows one at a time, each committed.
  void feed_singles() {
    ScopedLane lane(pool_);
    lane.reserve(prompt_tokens + widest_ + 1);
    feed(lane, prompt_, WantedLogits::none);
    const auto few = static_cast<size_t>(std::min(widest_, narrow) + 1);
    for (const int32_t& token : std::span<const int32_t>(next_).first(few)) {
      feed(lane, {&token, 1}, WantedLogits::all);
      singles_.push_back(read(0));
    }
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
        if (static_cast<size_t>(first + row) >= singles_.size()) singles_.push_back(read(row));
      }
    }
  }

  bool chain_is_exact(ScopedLane& lane, int32_t width) {
    const auto tokens = std::span<const int32_t>(next_).first(static_cast<size_t>(width));
    propose(lane, tokens);
    for (int32_t row = 0; row < width; ++row) {
      if (!equal(row, singles_[static_cast<size_t>(row)])) return false;
    }
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
  std::vector<Logits> singles_;
};

}  // namespace

RowCheckResult check_rows(CachePool& pool, ForwardRunner& forward, int32_t widest) {
  return RowCheck(pool, forward, widest).run();
}

}  // namespace tensorfold::engine
