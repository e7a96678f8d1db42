// The draw by many workers on one row against draw_token: one worker, and several threads in step.
#include "backend/row_draw.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <thread>

#include <gtest/gtest.h>

#include "backend/draw_case.h"

namespace tensorfold::backend {
namespace {

using testing::DrawCase;
using testing::DrawRandom;

/// What the members of a team share.
struct TeamRoom {
  TeamRoom(int members, size_t slots) : size(members), barrier(members), values(slots) {}
  const int size;
  std::barrier<> barrier;
  std::atomic<uint64_t> highest{0};
  std::array<std::atomic<int64_t>, 8> sums{};
  std::atomic<int32_t> listed{0};
  std::array<uint64_t, row_draw::kMostListed> list{};
  std::array<uint64_t, row_draw::kMostListed> sorted{};
  std::array<double, row_draw::kMostListed> shares{};
  std::vector<float> values;  ///< empty: passes read the row itself
};

class ThreadTeam {
 public:
  ThreadTeam(TeamRoom& room, int rank) : room_(room), rank_(rank) {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return room_.size; }
  [[nodiscard]] int local_rank() const { return rank_; }
  [[nodiscard]] int local_size() const { return room_.size; }
  void local_barrier() { room_.barrier.arrive_and_wait(); }
  uint64_t maximum(uint64_t value) {
    reset([&] { room_.highest = 0; });
    uint64_t seen = room_.highest;
    while (value > seen && !room_.highest.compare_exchange_weak(seen, value)) {
    }
    local_barrier();
    return room_.highest;
  }
  template <size_t n>
  void add(int64_t (&values)[n]) {
    reset([&] {
      for (auto& sum : room_.sums) sum = 0;
    });
    for (size_t i = 0; i < n; ++i) room_.sums[i] += values[i];
    local_barrier();
    for (size_t i = 0; i < n; ++i) values[i] = room_.sums[i];
  }
  void begin_list() {
    reset([&] { room_.listed = 0; });
  }
  void append(uint64_t place) { room_.list.at(static_cast<size_t>(room_.listed++)) = place; }
  int32_t end_list() {
    local_barrier();
    return room_.listed;
  }
  [[nodiscard]] const uint64_t* list() const { return room_.list.data(); }
  [[nodiscard]] uint64_t* sorted() { return room_.sorted.data(); }
  [[nodiscard]] double* shares() { return room_.shares.data(); }
  [[nodiscard]] float* values() { return room_.values.empty() ? nullptr : room_.values.data(); }

 private:
  template <typename Action>
  void reset(const Action& action) {
    local_barrier();
    if (rank_ == 0) action();
    local_barrier();
  }
  TeamRoom& room_;
  int rank_;
};

row_draw::Request request_of(const DrawRow& row, size_t vocabulary) {
  row_draw::Request request{row.settings, row.position, row.forced, 0, row.top_logprobs};
  for (size_t id = 0; id < vocabulary; ++id) {
    if (row.mask.empty() || (id / 32 < row.mask.size() && ((row.mask[id / 32] >> (id % 32)) & 1U) != 0)) {
      request.fallback = static_cast<int32_t>(id);
      break;
    }
  }
  return request;
}

void expect_equal(const DrawCase& made, int members) {
  const DrawRow row = made.row();
  Drawn expected;
  draw_token(made.logits, row, expected);
  const row_draw::Row view{made.logits.data(), static_cast<int32_t>(made.logits.size()),
                           row.mask.empty() ? nullptr : row.mask.data(), static_cast<int32_t>(row.mask.size())};
  row_draw::Row raw = view;
  raw.mask = nullptr;
  const row_draw::Request request = request_of(row, made.logits.size());
  TeamRoom room(members, row.position % 2 == 0 ? made.logits.size() + static_cast<size_t>(members) : 0);
  std::vector<std::thread> threads;
  const auto work = [&](int rank) {
    ThreadTeam team(room, rank);
    EXPECT_EQ(row_draw::choose(team, view, row_draw::read_row(team, view), request), expected.token);
    if (row.top_logprobs < 0) return;
    const uint64_t first = row_draw::read_row(team, raw);
    const float best = row_draw::logit_of(first);
    EXPECT_EQ(
        row_logprob(made.logits[static_cast<size_t>(expected.token)], best, row_draw::total_mass(team, raw, best)),
        expected.logprob);
    const int32_t wanted = expected.ranked;
    if (wanted == 0) return;
    ASSERT_EQ(row_draw::list_in_order(team, raw, row_draw::top_end(team, raw, first, wanted)), wanted);
    for (int32_t i = 0; i < wanted; ++i) {
      EXPECT_EQ(row_draw::id_of(team.sorted()[i]), expected.top[static_cast<size_t>(i)].token);
    }
  };
  for (int rank = 1; rank < members; ++rank) threads.emplace_back(work, rank);
  work(0);
  for (std::thread& thread : threads) thread.join();
}

TEST(RowDraw, OneWorkerDrawsWhatDrawTokenDraws) {
  DrawRandom random(std::random_device{}());
  for (int trial = 0; trial < 6000 && !::testing::Test::HasFailure(); ++trial) {
    const DrawCase made = testing::hard_case(random, 1 + random() % (trial % 8 == 0 ? 6000 : 400), false);
    if (row_draw::too_many_in_order(made.settings.settings)) continue;
    SCOPED_TRACE("trial " + std::to_string(trial));
    expect_equal(made, 1);
  }
}

TEST(RowDraw, MasksAreHonoured) {
  DrawRandom random(std::random_device{}());
  for (int trial = 0; trial < 3000 && !::testing::Test::HasFailure(); ++trial) {
    DrawCase made = testing::hard_case(random, 1 + random() % 2000, true);
    made.counts.clear();
    made.biases.clear();
    if (row_draw::too_many_in_order(made.settings.settings)) continue;
    SCOPED_TRACE("trial " + std::to_string(trial));
    expect_equal(made, 1);
  }
}

TEST(RowDraw, ThreadsInStepDrawTheSame) {
  DrawRandom random(std::random_device{}());
  for (int trial = 0; trial < 20 && !::testing::Test::HasFailure(); ++trial) {
    const DrawCase made = testing::hard_case(random, 1 + random() % 3000, false);
    if (row_draw::too_many_in_order(made.settings.settings)) continue;
    SCOPED_TRACE("trial " + std::to_string(trial));
    expect_equal(made, 3);
  }
}

}  // namespace
}  // namespace tensorfold::backend
