#include "families/checkpoint.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint_files.h"
#include "families/sequence_runner.h"
#include "shared_data.h"

namespace tensorfold::families {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json demo_config() { return json::parse(testing::read_file(testing::project_path("models/demo/config.json"))); }

const Family& qwen() { return require_family(demo_config()); }

/// The widths of the published 27B checkpoint (specs: Qwen3.8-27B A.2).
json full_size_config() {
  json config = demo_config();
  json& text = config["text_config"];
  text.erase("layer_types");
  text.update({{"hidden_size", 5120},
               {"intermediate_size", 17408},
               {"num_hidden_layers", 64},
               {"num_attention_heads", 24},
               {"num_key_value_heads", 4},
               {"linear_num_key_heads", 16},
               {"linear_num_value_heads", 48},
               {"vocab_size", 248320},
               {"max_position_embeddings", 262144}});
  return config;
}

TEST(Families, AFullSizeInventoryAddsUpToThePublishedTotals) {
  json config = full_size_config();
  uint64_t text = 0;
  uint64_t mtp = 0;
  size_t text_tensors = 0;
  for (const TensorSpec& spec : qwen().inventory(config, {})) {
    uint64_t count = 1;
    for (const int64_t size : spec.shape) count *= static_cast<uint64_t>(size);
    (spec.module.starts_with("mtp.") ? mtp : text) += count;
    text_tensors += spec.module.starts_with("mtp.") ? 0 : 1;
  }
  EXPECT_EQ(text, 26'895'998'464U);
  EXPECT_EQ(mtp, 424'699'392U);
  EXPECT_EQ(text_tensors, 851U);
  EXPECT_NEAR(static_cast<double>(qwen().describe(config).decode_bytes), 14.41e9, 0.01e9);
  const backend::CacheLayout cache = qwen().cache_layout(config);
  EXPECT_EQ(paged_values(cache) * 2, 65'536);
  EXPECT_EQ(state_values(cache) * 4, 48LL * (3'145'728 + 3 * 10240 * 4));
}

TEST(Families, InfoNeedsNothingButTheConfig) {
  testing::TemporaryDirectory directory;
  testing::write_file(directory.path() / "config.json", full_size_config().dump());
  const CheckpointReport report = describe_checkpoint(directory.path());
  EXPECT_EQ(report.family->model_type, "qwen3_5");
  EXPECT_EQ(report.quantization, "affine 4 bit, groups of 64");
  EXPECT_NEAR(static_cast<double>(report.weights.total), 15.13e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(report.draft_head_bytes), 0.24e9, 0.01e9);
  EXPECT_TRUE(report.info.draft_head);
  EXPECT_EQ(report.draft_head_found, std::nullopt);
  EXPECT_THAT(report.files_problem, HasSubstr("holds no *.safetensors file"));
  EXPECT_EQ(describe_checkpoint(testing::project_path("models/demo")).draft_head_found, true);
}

/// A synthetic checkpoint written out under another layout's names.
class Layouts : public ::testing::Test {
 protected:
  void SetUp() override {
    config_ = demo_config();
    config_["text_config"].update({{"num_hidden_layers", 4},
                                   {"vocab_size", 64},
                                   {"hidden_size", 64},
                                   {"intermediate_size", 64},
                                   {"max_position_embeddings", 128}});
    config_["text_config"].erase("layer_types");
    config_.erase("quantization");
    config_.erase("quantization_config");
  }

  std::map<std::string, testing::WrittenTensor> tensors() {
    const auto inventory = qwen().inventory(config_, {});
    const auto store = make_synthetic_store(inventory, format::Quantization(), 11);
    std::map<std::string, testing::WrittenTensor> written;
    for (const std::string& name : store->names()) {
      const format::TensorInfo* tensor = store->find(name);
      std::string data(tensor->bytes, '\0');
      store->read(*tensor, 0, std::as_writable_bytes(std::span<char>(data.data(), data.size())));
      written[name] = {std::string(format::to_string(tensor->type)), tensor->shape, data};
    }
    return written;
  }

  LoadedModel load(const std::map<std::string, testing::WrittenTensor>& written) {
    testing::write_file(directory_.path() / "config.json", config_.dump());
    testing::write_file(directory_.path() / "model.safetensors", testing::safetensors_bytes(written));
    return load_model(directory_.path(), *backend_, 16);
  }

  std::vector<float> logits(const std::map<std::string, testing::WrittenTensor>& written) {
    const LoadedModel loaded = load(written);
    return testing::SequenceRunner(*backend_, *loaded.model, 16).feed(std::vector<int32_t>{5, 9, 33, 60}).values;
  }

  static std::map<std::string, testing::WrittenTensor> renamed(
      const std::map<std::string, testing::WrittenTensor>& written, const std::string& root, const std::string& head) {
    std::map<std::string, testing::WrittenTensor> result;
    for (const auto& [name, tensor] : written) {
      std::string to = name;
      if (name.starts_with("language_model.model.")) to = root + name.substr(21);
      if (name.starts_with("language_model.lm_head")) to = head + name.substr(22);
      result[to] = tensor;
    }
    return result;
  }

  json config_;
  testing::TemporaryDirectory directory_;
  std::unique_ptr<backend::Backend> backend_ = backend::make_cpu_backend(1);
};

TEST_F(Layouts, TheThreeSpellingsGiveTheSameLogits) {
  const auto mlx = tensors();
  const std::vector<float> expected = logits(mlx);
  for (const float value : expected) ASSERT_TRUE(std::isfinite(value) && std::abs(value) < 100.0F);
  EXPECT_EQ(logits(renamed(mlx, "model.language_model.", "lm_head")), expected);
  EXPECT_EQ(logits(renamed(mlx, "model.", "lm_head")), expected);
}

TEST_F(Layouts, HuggingFaceNormsAreZeroCentred) {
  auto plain = tensors();
  for (auto& [name, tensor] : plain) {
    if (name.starts_with("mtp.") || name.ends_with("linear_attn.norm.weight") || !name.ends_with("norm.weight"))
      continue;
    for (size_t i = 0; i < tensor.data.size(); i += 2) tensor.data.replace(i, 2, "\x80\x3F");  // bf16 1.0
  }
  auto centred = plain;
  for (auto& [name, tensor] : centred) {
    if (name.ends_with("conv1d.weight")) tensor.shape = {tensor.shape[0], 1, tensor.shape[1]};
    if (name.starts_with("mtp.") || name.ends_with("linear_attn.norm.weight") || !name.ends_with("norm.weight"))
      continue;
    tensor.data.assign(tensor.data.size(), '\0');
  }
  EXPECT_EQ(logits(centred), logits(plain));
}

TEST_F(Layouts, TiedEmbeddingsAreTheHead) {
  auto untied = tensors();
  untied["language_model.lm_head.weight"] = untied["language_model.model.embed_tokens.weight"];
  const std::vector<float> expected = logits(untied);
  config_["text_config"]["tie_word_embeddings"] = true;
  EXPECT_EQ(logits(untied), expected);  // the copy is ignored
  EXPECT_THAT(load(untied).notes, ElementsAre(HasSubstr("lm_head is not used")));
  untied.erase("language_model.lm_head.weight");
  EXPECT_EQ(logits(untied), expected);
}

TEST_F(Layouts, AVectorWithNaNIsRefusedByName) {
  auto written = tensors();
  written["language_model.model.norm.weight"].data.replace(0, 2, "\xC0\x7F");  // bf16 NaN
  try {
    load(written);
    ADD_FAILURE() << "loaded";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("norm.weight holds NaN or infinity"));
  }
}

TEST_F(Layouts, VisionIsSkippedWithANoteAndAMissingMtpHeadIsNoted) {
  auto written = tensors();
  written["vision_tower.blocks.0.attn.qkv.weight"] = {"BF16", {1}, "ab"};
  written["vision_tower.blocks.1.attn.qkv.weight"] = {"BF16", {1}, "ab"};
  EXPECT_THAT(load(written).notes, ElementsAre("the vision tower is skipped: text only"));
  std::erase_if(written, [](const auto& entry) { return entry.first.starts_with("mtp."); });
  const LoadedModel without = load(written);
  EXPECT_THAT(without.notes, ElementsAre(HasSubstr("vision tower"), "the checkpoint has no MTP head"));
  EXPECT_EQ(without.model->draft_head(), nullptr);
  EXPECT_FALSE(without.model->info().draft_head);
}

TEST_F(Layouts, MtpTensorsWithoutAConfigEntryAreSkipped) {
  config_["text_config"]["mtp_num_hidden_layers"] = 0;
  auto written = tensors();
  written["mtp.norm.weight"] = {"BF16", {1}, "ab"};
  EXPECT_THAT(load(written).notes, ElementsAre(HasSubstr("MTP tensors are skipped")));
}

TEST_F(Layouts, SmallVectorsMayBeFp32) {
  auto written = tensors();
  const std::vector<float> expected = logits(written);
  for (auto& [name, tensor] : written) {
    if (!name.ends_with("A_log") && !name.ends_with("dt_bias")) continue;
    std::string wide;
    for (size_t i = 0; i < tensor.data.size(); i += 2) wide += std::string(2, '\0') + tensor.data.substr(i, 2);
    tensor = {"F32", tensor.shape, wide};
  }
  EXPECT_EQ(logits(written), expected);
}

TEST(Synthetic, AModelOfRealWidthsStaysFinite) {
  json config = full_size_config();
  config["text_config"].update({{"num_hidden_layers", 2},
                                {"layer_types", {"linear_attention", "full_attention"}},
                                {"vocab_size", 512},
                                {"mtp_num_hidden_layers", 0}});
  const auto backend = backend::make_cpu_backend(0);
  const LoadedModel loaded = load_synthetic(config, 5, *backend, 8);
  testing::SequenceRunner runner(*backend, *loaded.model, 16);
  const testing::Rows logits = runner.feed(std::vector<int32_t>{1, 2, 3, 500});
  double squares = 0.0;
  for (const float value : logits.values) squares += static_cast<double>(value) * static_cast<double>(value);
  const double deviation = std::sqrt(squares / static_cast<double>(logits.values.size()));
  EXPECT_GT(deviation, 0.1);
  EXPECT_LT(deviation, 10.0);
}

}  // namespace
}  // namespace tensorfold::families
