// Damaged tokenizer files: one clear Error or a working tokenizer, never a crash.
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/utf8.h"
#include "shared_data.h"
#include "text/tokenizer.h"

namespace tensorfold::text {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::string& demo_text() {
  static const std::string text = [] {
    std::ifstream file(testing::project_path("models/demo/tokenizer.json"), std::ios::binary);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
  }();
  return text;
}

// Loads and, if that works, uses the tokenizer; returns the error's message or an empty string.
std::string try_file(const std::string& text, const std::string& config = {}) {
  try {
    const Tokenizer tokenizer = Tokenizer::parse(text, config);
    const Ids ids = tokenizer.encode("Hello world 123 <|im_end|> é\n\n中文", {.add_special_tokens = true});
    EXPECT_TRUE(is_valid_utf8(tokenizer.decode(ids)));
    return {};
  } catch (const Error& error) {
    EXPECT_NE(error.kind(), ErrorKind::internal) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
}

struct Damage {
  const char* name;
  std::function<void(json&)> apply;
  const char* message;  // part of the message that must come
};

std::vector<Damage> damages() {
  return {
      {"no model", [](json& f) { f.erase("model"); }, "'model' is missing"},
      {"model is a list", [](json& f) { f["model"] = json::array(); }, "'model' must be an object"},
      {"unknown model", [](json& f) { f["model"]["type"] = "Unigram"; }, "model 'Unigram' is not supported"},
      {"no vocabulary", [](json& f) { f["model"].erase("vocab"); }, "'vocab' is missing"},
      {"vocabulary is a list", [](json& f) { f["model"]["vocab"] = {1, 2}; }, "'vocab' must be an object"},
      {"id is text", [](json& f) { f["model"]["vocab"]["th"] = "7"; }, "th: the id must be an integer"},
      {"id is negative", [](json& f) { f["model"]["vocab"]["th"] = -1; }, "th: the id must be an integer"},
      {"id is a fraction", [](json& f) { f["model"]["vocab"]["th"] = 1.5; }, "th: the id must be an integer"},
      {"id is huge", [](json& f) { f["model"]["vocab"]["th"] = 4294967297; }, "th: the id must be an integer"},
      {"two tokens share an id", [](json& f) { f["model"]["vocab"]["th"] = f["model"]["vocab"]["im"]; },
       "belongs to two tokens"},
      {"empty token", [](json& f) { f["model"]["vocab"][""] = 99999; }, "is empty"},
      {"no merges", [](json& f) { f["model"].erase("merges"); }, "'merges' is missing"},
      {"merges are an object", [](json& f) { f["model"]["merges"] = json::object(); }, "'merges' must be a list"},
      {"merge of three", [](json& f) { f["model"]["merges"][3] = {"a", "b", "c"}; }, "merge 3 is not a pair"},
      {"merge of numbers", [](json& f) { f["model"]["merges"][3] = {1, 2}; }, "merge 3 is not a pair"},
      {"merge without a space", [](json& f) { f["model"]["merges"][3] = "ab"; }, "merge 3 is not a pair"},
      {"merge with two spaces", [](json& f) { f["model"]["merges"][3] = "a b c"; }, "merge 3 is not a pair"},
      {"merge of unknown tokens", [](json& f) { f["model"]["merges"][3] = {"zz~", "q"}; }, "merge 3"},
      {"merge into an unknown token", [](json& f) { f["model"]["merges"][3] = {"~", "~"}; }, "merge 3"},
      {"merge of a token with nothing", [](json& f) { f["model"]["merges"][3] = {"a", ""}; }, "merge 3"},
      {"merges that begin with their result", [](json& f) { f["model"]["merges"][0] = {"th", "th"}; }, "merge 0"},
      {"option of the wrong type", [](json& f) { f["model"]["byte_fallback"] = "yes"; },
       "'byte_fallback' must be true or false"},
      {"dropout", [](json& f) { f["model"]["dropout"] = 0.1; }, "dropout"},
      {"unknown normalizer", [](json& f) { f["normalizer"]["type"] = "Precompiled"; },
       "normalizer 'Precompiled' is not supported"},
      {"normalizer is text", [](json& f) { f["normalizer"] = "NFC"; }, "'type' is missing"},
      {"unknown pre-tokenizer", [](json& f) { f["pre_tokenizer"] = {{"type", "Magic"}}; },
       "pre_tokenizer 'Magic' is not supported"},
      {"bad regular expression", [](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; },
       "cannot be compiled"},
      {"pattern is a number", [](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"] = 3; },
       "'pattern' must be an object"},
      {"unknown behavior", [](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Eaten"; },
       "behavior 'Eaten'"},
      {"step behind ByteLevel",
       [](json& f) { f["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Whitespace"}}); }, "behind ByteLevel"},
      {"unknown post-processor", [](json& f) { f["post_processor"]["type"] = "X"; },
       "post_processor 'X' is not supported"},
      {"template with an undescribed token",
       [](json& f) {
         f["post_processor"] = {{"type", "TemplateProcessing"},
                                {"special_tokens", json::object()},
                                {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}}};
       },
       "'<s>' is not described"},
      {"unknown decoder", [](json& f) { f["decoder"]["type"] = "CTC"; }, "decoder 'CTC' is not supported"},
      {"added tokens are text", [](json& f) { f["added_tokens"] = "<s>"; }, "'added_tokens' must be a list"},
      {"added token without id", [](json& f) { f["added_tokens"][2].erase("id"); }, "'id' is missing"},
      {"added token without content", [](json& f) { f["added_tokens"][2].erase("content"); }, "'content' is missing"},
      {"added token is a number", [](json& f) { f["added_tokens"][2] = 5; }, "'id' is missing"},
      {"added token takes a taken id",
       [](json& f) {
         f["added_tokens"][2]["content"] = "<new>";
         f["added_tokens"][2]["id"] = 300;
       },
       "belongs to two tokens"},
      {"added token contradicts the vocabulary", [](json& f) { f["added_tokens"][2]["id"] = 99998; },
       "but the vocabulary gives it"},
      {"flag of the wrong type", [](json& f) { f["added_tokens"][2]["lstrip"] = 1; }, "'lstrip' must be true or false"},
  };
}

TEST(DamagedTokenizer, EachDamageGetsItsOwnMessage) {
  ASSERT_EQ(try_file(demo_text()), "");
  for (const Damage& damage : damages()) {
    json file = json::parse(demo_text());
    damage.apply(file);
    EXPECT_NE(try_file(file.dump()).find(damage.message), std::string::npos)
        << damage.name << ": " << try_file(file.dump());
  }
}

TEST(DamagedTokenizer, AnyTruncationIsAnError) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 60; ++round) {
    const std::size_t length = round < 10 ? static_cast<std::size_t>(round) : random() % (demo_text().size() - 2);
    EXPECT_NE(try_file(demo_text().substr(0, length)), "") << length;
  }
}

TEST(DamagedTokenizer, DeepNestingNeedsNoStack) {
  const std::string deep(1'000'000, '[');
  EXPECT_NE(try_file(deep), "");
  EXPECT_NE(try_file("{\"model\":" + deep), "");
  std::string sequence = "{\"type\":\"NFC\"}";
  for (int i = 0; i < 1000; ++i) sequence = "{\"type\":\"Sequence\",\"normalizers\":[" + sequence + "]}";
  json file = json::parse(demo_text());
  file.erase("normalizer");
  std::string text = file.dump();
  EXPECT_NE(try_file(text.insert(1, "\"normalizer\":" + sequence + ",")).find("nested too deep"), std::string::npos);
}

TEST(DamagedTokenizer, RandomBytesNeverCrash) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 150; ++round) {
    std::string text = demo_text();
    for (auto i = 1 + random() % 8; i > 0; --i) {
      const std::size_t position = round % 2 == 0 ? random() % 3000 : random() % text.size();
      if (random() % 3 == 0) {
        text.erase(position, 1 + random() % 20);
      } else {
        text[position] = static_cast<char>(random() % 3 == 0 ? random() % 256 : 32 + random() % 95);
      }
    }
    try_file(text);
  }
}

TEST(DamagedTokenizer, RandomValuesOfTheWrongTypeNeverCrash) {
  std::mt19937 random(std::random_device{}());
  json small = json::parse(demo_text());
  json merges = json::array();
  for (std::size_t i = 0; i < 20; ++i) merges.push_back(small["model"]["merges"][i]);
  small["model"]["merges"] = merges;
  const std::vector<json> values = {
      nullptr, true, -1, 1.5, 1e300, "", "x", json::array(), json::object(), json::array({1}), 18446744073709551615ULL};
  const json flat = small.flatten();
  std::vector<std::string> places;
  for (const auto& [place, value] : flat.items()) {
    if (place.find("/vocab/") == std::string::npos || random() % 300 == 0) places.push_back(place);
  }
  for (const std::string& place : places) {
    for (std::string parent = place; !parent.empty(); parent = parent.substr(0, parent.rfind('/'))) {
      if (parent != place && random() % 6 != 0) continue;
      json file = small;
      file[json::json_pointer(parent)] = values[random() % values.size()];
      if (random() % 4 == 0) try_file(file.dump());
    }
  }
}

TEST(TokenizerConfig, AddsTheTokensThatTheFirstFileLacks) {
  const Tokenizer plain = Tokenizer::parse(demo_text());
  const auto id = static_cast<std::int32_t>(plain.vocabulary_size());
  const json config = {{"added_tokens_decoder",
                        {{std::to_string(id), {{"content", "<audio>"}, {"special", true}}},
                         {"1", {{"content", "<|im_start|>"}, {"special", false}}}}},
                       {"bos_token", nullptr},
                       {"eos_token", {{"content", "<|im_end|>"}}},
                       {"model_max_length", 1e30}};
  const Tokenizer tokenizer = Tokenizer::parse(demo_text(), config.dump());
  EXPECT_EQ(tokenizer.encode("<audio>"), Ids{id});
  EXPECT_TRUE(tokenizer.is_special(id));
  EXPECT_TRUE(tokenizer.is_special(1));  // tokenizer.json's own entry wins
  EXPECT_EQ(tokenizer.named_token("eos_token"), "<|im_end|>");
  EXPECT_FALSE(tokenizer.named_token("bos_token"));
  EXPECT_NE(try_file(demo_text(), R"({"added_tokens_decoder": {"x1": {"content": "a"}}})"), "");
  EXPECT_NE(try_file(demo_text(), R"({"added_tokens_decoder": [1]})"), "");
  EXPECT_NE(try_file(demo_text(), "[]"), "");
}

TEST(TokenizerLoad, ANormalizerThatMakesTextsEndlessIsRefusedAtOnce) {
  json file = json::parse(demo_text());
  const json doubling = {{"type", "Replace"}, {"pattern", {{"String", "H"}}}, {"content", "HH"}};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
  for (int i = 0; i < 30; ++i) file["normalizer"]["normalizers"].push_back(doubling);
  const auto encode = [](const json& tokenizer) { return Tokenizer::parse(tokenizer.dump()).encode("H").size(); };
  EXPECT_THROW(static_cast<void>(encode(file)), Error);
  file["normalizer"]["normalizers"] = {doubling, doubling};
  EXPECT_GT(encode(file), 0U);
}

TEST(TokenizerLoad, ALongRegularExpressionIsNotEchoedWhole) {
  json file = json::parse(demo_text());
  file["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "(" + std::string(1'000'000, 'a')}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const std::string message = try_file(file.dump());
  EXPECT_LT(message.size(), 500U);
  EXPECT_NE(message.find("aaa\u2026' "), std::string::npos) << message;
}

TEST(TokenizerLoad, AMissingFolderIsNotFound) {
  try {
    Tokenizer::load("/nonexistent");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::not_found);
  }
}

}  // namespace
}  // namespace tensorfold::text
