#include "format/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint_files.h"

namespace tensorfold::format {
namespace {

using ::tensorfold::testing::TemporaryDirectory;
using ::tensorfold::testing::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

CheckpointConfig load(const char* config, const char* generation = nullptr) {
  TemporaryDirectory directory;
  if (config != nullptr) write_file(directory.path() / "config.json", config);
  if (generation != nullptr) write_file(directory.path() / "generation_config.json", generation);
  return load_config(directory.path());
}

TEST(Config, EndTokensAreTheUnionOfAllPlaces) {
  const auto config = load(R"({"eos_token_id":7,"text_config":{"eos_token_id":[9,7]}})", R"({"eos_token_id":[3,9]})");
  EXPECT_THAT(config.generation.end_tokens, ElementsAre(3, 7, 9));
  EXPECT_TRUE(load(R"({"eos_token_id":null})").generation.end_tokens.empty());
}

TEST(Config, SamplingDefaultsFollowDoSample) {
  EXPECT_EQ(load("{}", R"({"do_sample":false,"temperature":0.7})").generation.temperature, 0.0);
  EXPECT_EQ(load("{}", R"({"do_sample":true})").generation.temperature, 1.0);
  EXPECT_EQ(load("{}", R"({"do_sample":true,"temperature":0.7})").generation.temperature, 0.7);
  EXPECT_EQ(load("{}", R"({"top_k":20,"top_p":null})").generation.top_k, 20);
  EXPECT_EQ(load("{}", R"({"top_k":20,"top_p":null})").generation.top_p, std::nullopt);
  EXPECT_EQ(load("{}").generation.temperature, std::nullopt);
}

TEST(Config, MalformedFilesGiveOneLineWithEverything) {
  try {
    load(R"({"eos_token_id":"x","text_config":{"eos_token_id":-1}})",
         R"({"temperature":"hot","top_k":-3,"top_p":1e300})");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::corrupt_file);
    for (const char* part : {"eos_token_id \"x\"", "eos_token_id -1", "temperature \"hot\"", "top_k -3", "top_p 1e"}) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"do_sample":"yes"})", "do_sample \"yes\", not true or false"},
      {R"({"top_p":1.5})", "top_p 1.5, not a number from 0 to 1"},
      {R"({"min_p":2})", "min_p 2, not a number from 0 to 1"},
      {R"({"repetition_penalty":0})", "repetition_penalty 0"},
      {R"({"eos_token_id":[3,100]})", "eos_token_id 100 is not in the vocabulary of 100 tokens"},
  };
  for (const auto& [generation, expected] : wrong) {
    try {
      load(R"({"text_config":{"vocab_size":100}})", generation);
      ADD_FAILURE() << generation;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(expected));
    }
  }
  EXPECT_THROW(load(R"({"text_config":"qwen"})"), Error);
  const std::string deep(3'000'000, '[');
  for (const std::string& text : {std::string(), std::string("[]"), std::string("{"), std::string("{\"a\":\"\xff\"}"),
                                  deep, "{\"eos_token_id\":" + deep + std::string(3'000'000, ']') + "}"}) {
    EXPECT_THROW(load(text.c_str()), Error);
  }
  try {
    load(nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::not_found);
  }
}

}  // namespace
}  // namespace tensorfold::format
