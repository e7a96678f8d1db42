#include "cli/model_options.h"

#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tensorfold::cli {
namespace {

std::string refusal(const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(ModelOptions, AThreadCountBeyondReasonIsRefusedByName) {
  EXPECT_EQ(refusal([] { check_threads(0); }), "");
  EXPECT_EQ(refusal([] { check_threads(1024); }), "");
  for (const int32_t threads : {-1, 1025, 1000000}) {
    EXPECT_THAT(refusal([&] { check_threads(threads); }), ::testing::HasSubstr("--threads must lie between 0"));
  }
}

TEST(ModelOptions, WhatNoReplyCanBeDrawnWithIsRefusedWithWhatIsAllowed) {
  const auto with = [](const std::function<void(ReplyOptions&)>& change) {
    ReplyOptions options;
    change(options);
    return refusal([&] { check_reply_options(options); });
  };
  EXPECT_EQ(with([](ReplyOptions& o) { o.top_p = 1.0; }), "");
  EXPECT_EQ(with([](ReplyOptions& o) { o.temperature = 2.0; }), "");
  EXPECT_EQ(with([](ReplyOptions& o) { o.top_p = 1.5; }), "--top-p must lie between 0 and 1, not 1.5");
  EXPECT_EQ(with([](ReplyOptions& o) { o.min_p = -0.5; }), "--min-p must lie between 0 and 1, not -0.5");
  EXPECT_EQ(with([](ReplyOptions& o) { o.max_tokens = 0; }), "--max-tokens must be at least 1, not 0");
  EXPECT_NE(with([](ReplyOptions& o) { o.temperature = std::nan(""); }), "");
  EXPECT_NE(with([](ReplyOptions& o) { o.top_k = -1; }), "");
}

}  // namespace
}  // namespace tensorfold::cli
