// Draws and candidates on the device against draw_token and the CPU's candidates, bit for bit.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "backend/backend.h"
#include "backend/draw_case.h"
#include "backend/keyed_sampling.h"

namespace tensorfold::testing {
namespace {

class CudaDraws : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no NVIDIA GPU";
    backend_ = backend::make_cuda_backend(0);
  }

  /// Draws all cases in one call, from rows in reverse order of one tensor, and compares each with the host.
  void expect_host_draws(const std::vector<DrawCase>& cases, bool with_padding) {
    const auto width = static_cast<int64_t>(cases.front().logits.size());
    const auto count = static_cast<int64_t>(cases.size());
    const int64_t padding = with_padding ? 3 : 0;
    const backend::OwnedTensor tensor = backend_->allocate(count, width + padding, backend::Precision::full);
    const backend::Tensor logits = tensor.view.columns(padding, width);
    std::vector<backend::DrawRow> rows;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t place = count - 1 - i;
      std::vector<float> whole(static_cast<size_t>(width + padding), 1e9F);
      std::copy(cases[static_cast<size_t>(i)].logits.begin(), cases[static_cast<size_t>(i)].logits.end(),
                whole.begin() + padding);
      backend_->write_rows(tensor.view, place, 1, whole);
      rows.push_back(cases[static_cast<size_t>(i)].row());
      rows.back().logit_row = static_cast<int32_t>(place);
    }
    std::vector<backend::Drawn> drawn(rows.size());
    std::memset(static_cast<void*>(drawn.data()), 0x5A, drawn.size() * sizeof(backend::Drawn));
    backend_->draw({}, logits, rows);
    backend_->read_draws(drawn);
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE("row " + std::to_string(i) + " temperature " + std::to_string(rows[i].settings.temperature) +
                   " top_k " + std::to_string(rows[i].settings.top_k) + " top_p " +
                   std::to_string(rows[i].settings.top_p) + " min_p " + std::to_string(rows[i].settings.min_p) +
                   " seed " + std::to_string(rows[i].settings.seed));
      backend::Drawn expected;
      backend::draw_token(cases[i].logits, rows[i], expected);
      EXPECT_EQ(drawn[i].token, expected.token);
      EXPECT_EQ(drawn[i].probability, expected.probability);
      EXPECT_EQ(drawn[i].logprob, expected.logprob);
      ASSERT_EQ(drawn[i].ranked, expected.ranked);
      for (size_t j = 0; j < static_cast<size_t>(expected.ranked); ++j) {
        EXPECT_EQ(drawn[i].top[j].token, expected.top[j].token);
        EXPECT_EQ(drawn[i].top[j].logprob, expected.top[j].logprob);
      }
    }
  }

  std::unique_ptr<backend::Backend> backend_;
};

TEST_F(CudaDraws, HardRowsDrawTheHostsTokens) {
  DrawRandom random(std::random_device{}());
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    const size_t vocabulary = 1 + random() % one_of(random, std::array<size_t, 4>{40, 3000, 20000, 70000});
    std::vector<DrawCase> cases;
    for (int i = 0; i < 16; ++i) cases.push_back(hard_case(random, vocabulary, round % 2 == 1));
    expect_host_draws(cases, round % 3 == 0);
  }
}

TEST_F(CudaDraws, RowsOfTheRealWidthDrawTheHostsTokens) {
  DrawRandom random(std::random_device{}());
  for (int round = 0; round < 6 && !HasFailure(); ++round) {
    std::vector<DrawCase> cases;
    for (int i = 0; i < 8; ++i) cases.push_back(hard_case(random, 248320, i % 2 == 1));
    expect_host_draws(cases, false);
  }
}

TEST_F(CudaDraws, ARowTooLongForSharedMemoryIsReadAgain) {
  DrawRandom random(std::random_device{}());
  std::vector<DrawCase> cases;
  for (int i = 0; i < 4; ++i) cases.push_back(hard_case(random, 500001, true));
  expect_host_draws(cases, false);
}

TEST_F(CudaDraws, CandidatesAreTheFirstOfTheOrder) {
  DrawRandom random(std::random_device{}());
  for (const size_t vocabulary : {size_t{1024}, size_t{2049}, size_t{248320}}) {
    for (const int32_t wanted : {1, 16, 64, 1000}) {
      constexpr int32_t count = 7;
      const backend::OwnedTensor tensor =
          backend_->allocate(count, static_cast<int64_t>(vocabulary), backend::Precision::full);
      std::vector<std::vector<float>> rows;
      backend::Plan plan;
      for (int32_t i = 0; i < count; ++i) {
        rows.push_back(hard_logits(random, vocabulary));
        backend_->write_rows(tensor.view, i, 1, rows.back());
        plan.logit_rows.push_back(i);
      }
      std::vector<float> values(static_cast<size_t>(count * wanted), 7e7F);
      std::vector<int32_t> ids(values.size(), -7);
      backend_->top_candidates(plan, tensor.view, wanted);
      backend_->read_candidates(values, ids);
      for (size_t i = 0; i < rows.size(); ++i) {
        std::vector<float>& row = rows[i];
        for (float& logit : row) logit = std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
        std::vector<int32_t> order(vocabulary);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
        });
        for (size_t j = 0; j < static_cast<size_t>(wanted); ++j) {
          ASSERT_EQ(ids[i * static_cast<size_t>(wanted) + j], order[j]) << vocabulary << " " << wanted << " row " << i;
          ASSERT_EQ(values[i * static_cast<size_t>(wanted) + j], row[static_cast<size_t>(order[j])]);
        }
      }
    }
  }
}

/// Not a check: what draws of a round take, beside copying the rows to the host and drawing there.
TEST_F(CudaDraws, Times) {
  DrawRandom random(5);
  constexpr int64_t width = 248320;
  constexpr int32_t most = 32;
  const backend::OwnedTensor tensor = backend_->allocate(most, width, backend::Precision::full);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> row(static_cast<size_t>(width));
  for (int32_t i = 0; i < most; ++i) {
    for (float& logit : row) logit = normal(random);
    row[random() % row.size()] += 12.0F;
    backend_->write_rows(tensor.view, i, 1, row);
  }
  struct Kind {
    const char* name;
    backend::SamplingSettings settings;
    int32_t reported = -1;
  };
  const Kind kinds[] = {{"greedy", {.temperature = 0.0}},
                        {"top_k 20, top_p 0.95", {.temperature = 0.7, .top_k = 20, .top_p = 0.95}},
                        {"top_p 0.95", {.temperature = 1.0, .top_p = 0.95}},
                        {"temperature 1 alone", {.temperature = 1.0}},
                        {"greedy with its share", {.temperature = 0.0}, 0}};
  for (const Kind& kind : kinds) {
    for (const int32_t count : {1, 8, 32}) {
      std::vector<backend::DrawRow> rows(static_cast<size_t>(count));
      for (int32_t i = 0; i < count; ++i) {
        backend::DrawRow& own = rows[static_cast<size_t>(i)];
        own.logit_row = i;
        own.position = i;
        own.settings = kind.settings;
        own.top_logprobs = kind.reported;
      }
      std::vector<backend::Drawn> drawn(rows.size());
      std::vector<double> device;
      std::vector<double> host;
      std::vector<float> copied(row.size() * rows.size());
      const auto microseconds = [](auto since) {
        return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - since).count();
      };
      for (int i = 0; i < 20; ++i) {
        auto start = std::chrono::steady_clock::now();
        backend_->draw({}, tensor.view, rows);
        backend_->read_draws(drawn);
        device.push_back(microseconds(start));
        if (i >= 3) continue;
        start = std::chrono::steady_clock::now();
        backend_->read_rows(tensor.view, 0, count, copied);
        for (size_t j = 0; j < rows.size(); ++j) {
          backend::draw_token(std::span(copied).subspan(j * row.size(), row.size()), rows[j], drawn[j]);
        }
        host.push_back(microseconds(start));
      }
      std::sort(device.begin(), device.end());
      std::sort(host.begin(), host.end());
      std::printf("%-22s %2d rows: %7.1f us; rows to the host and drawn there: %8.1f us\n", kind.name, count,
                  device[device.size() / 2], host[host.size() / 2]);
    }
  }
}

}  // namespace
}  // namespace tensorfold::testing
