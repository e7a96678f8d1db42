// Drafts of the families' own heads and of block drafters leave a reply as it is: the golden greedy ids come out with
// drafts as without. Random drafters are right by chance alone, so this is about rollback, not about speed.
#include "drafters/dflash_drafter.h"
#include "drafters/drafter_set.h"
#include "drafters/memory_store.h"
#include "engine_fixture.h"
#include "families/golden_file.h"

namespace tensorfold::engine {
namespace {

using tensorfold::testing::GoldenFile;
using tensorfold::testing::project_path;
using tensorfold::testing::random_values;

using Drafters = std::vector<std::unique_ptr<drafters::Drafter>>;

/// The reply to a golden prompt with the given drafters; how many drafts it saw goes to `drafted`.
std::vector<int32_t> reply_with(testing::Subject& subject, Drafters drafters, const std::vector<int32_t>& prompt,
                                int32_t tokens, int32_t& drafted) {
  EngineOptions options = testing::small_options();
  options.context = 256;
  const auto engine = start_engine(*subject.backend, subject.model(), options, std::move(drafters));
  Request request;
  request.prompt = prompt;
  request.max_tokens = tokens;
  testing::Reply reply;
  reply.attach(request);
  engine->submit(std::move(request));
  const ReplyResult& result = reply.wait();
  EXPECT_EQ(result.error, "");
  drafted = result.statistics.drafted;
  return reply.tokens();
}

/// The golden greedy ids of a family whose checkpoint has an MTP head come out with its drafts.
void expect_serial_replies(const std::string& family) {
  const GoldenFile golden(project_path("tests/golden/" + family + "/golden.safetensors"));
  const auto subject = testing::load_subject("tests/golden/" + family + "/mlx4", 2, 256);
  ASSERT_NE(subject->model().draft_head(), nullptr);
  int32_t drafted = 0;
  drafters::DrafterChoice choice;
  choice.mtp_options.confidence = 0.0F;
  const std::vector<int32_t> expected = golden.ids("mlx4.greedy");
  EXPECT_EQ(reply_with(*subject, drafters::make_drafters(*subject->backend, subject->model(), choice),
                       golden.ids("hf.1.input_ids"), static_cast<int32_t>(expected.size()), drafted),
            expected);
  EXPECT_GT(drafted, 0);
}

TEST(FamilyDrafts, NemotronRepliesAreSerialWithItsMtpHead) { expect_serial_replies("nemotron_h"); }

// With rows chosen by their indexers: the prompt is longer than what every row attends to.
TEST(FamilyDrafts, FlashNextRepliesAreSerialWithItsMtpHead) { expect_serial_replies("qwen4_exp"); }
TEST(FamilyDrafts, GlmRepliesAreSerialWithItsMtpHead) { expect_serial_replies("glm5_next"); }

/// A DFlash v1 drafter for the golden Gemma checkpoint, as published ones are made, with random weights.
nlohmann::json dflash_config() {
  return nlohmann::json::parse(R"({
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 128, "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 24, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
    "vocab_size": 512, "block_size": 8, "final_logit_softcapping": 30.0, "num_target_layers": 4,
    "dflash_config": {"mask_token_id": 4, "target_layer_ids": [0, 1, 3]}
  })");
}

tensorfold::testing::MemoryStore dflash_weights() {
  tensorfold::testing::MemoryStore store;
  std::mt19937 random(81);
  const auto matrix = [&](const std::string& name, int64_t outputs, int64_t inputs) {
    store.add(name, {outputs, inputs}, random_values(random, static_cast<size_t>(outputs * inputs), 0.08F));
  };
  const auto norm = [&](const std::string& name, int64_t width) {
    store.add(name, {width}, std::vector<float>(static_cast<size_t>(width), 1.0F));
  };
  matrix("fc.weight", 128, 3 * 128);
  norm("hidden_norm.weight", 128);
  norm("norm.weight", 128);
  for (const char* layer : {"layers.0.", "layers.1."}) {
    const std::string at = layer;
    norm(at + "input_layernorm.weight", 128);
    norm(at + "post_attention_layernorm.weight", 128);
    matrix(at + "self_attn.q_proj.weight", 128, 128);
    matrix(at + "self_attn.k_proj.weight", 64, 128);
    matrix(at + "self_attn.v_proj.weight", 64, 128);
    matrix(at + "self_attn.o_proj.weight", 128, 128);
    norm(at + "self_attn.q_norm.weight", 32);
    norm(at + "self_attn.k_norm.weight", 32);
    matrix(at + "mlp.gate_proj.weight", 96, 128);
    matrix(at + "mlp.up_proj.weight", 96, 128);
    matrix(at + "mlp.down_proj.weight", 128, 96);
  }
  return store;
}

/// A DFlash2 drafter for the golden GLM checkpoint: dynamic convolutions and a candidate selector.
nlohmann::json dflash2_config() {
  nlohmann::json config = dflash_config();
  config["architectures"] = {"DFlash2DraftModel"};
  config["is_causal"] = false;
  config.erase("final_logit_softcapping");
  config["dflash_config"].update({{"block_size", 8},
                                  {"conv_kernel_size", 2},
                                  {"conv_group_size", 16},
                                  {"selector_rank", 16},
                                  {"selector_top_k", 8}});
  return config;
}

tensorfold::testing::MemoryStore dflash2_weights() {
  tensorfold::testing::MemoryStore store = dflash_weights();
  std::mt19937 random(82);
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    size_t count = 1;
    for (const int64_t size : shape) count *= static_cast<size_t>(size);
    store.add(name, shape, random_values(random, count, 0.1F));
  };
  add("candidate_selector.hidden_projection.weight", {16, 128});
  add("candidate_selector.predecessor_codebook", {512, 16});
  add("candidate_selector.successor_codebook", {512, 16});
  for (const char* layer : {"layers.0.", "layers.1."}) {
    for (const char* convolution : {"attention_conv", "mlp_conv"}) {
      add(std::string(layer) + convolution + ".base_kernel", {2, 2, 128});
      add(std::string(layer) + convolution + ".kernel_projection.weight", {2 * 2 * 8, 128});
    }
  }
  return store;
}

/// The family's golden reply comes out unchanged beside a block drafter of these weights, and some drafts are tried.
void expect_serial_reply(const std::string& family, const nlohmann::json& config,
                         const tensorfold::testing::MemoryStore& store, bool tree) {
  const GoldenFile golden(project_path("tests/golden/" + family + "/golden.safetensors"));
  const auto subject = testing::load_subject("tests/golden/" + family + "/mlx4", 2, 256);
  Drafters own;
  own.push_back(
      std::make_unique<drafters::DflashDrafter>(*subject->backend, subject->model(), config, store,
                                                drafters::DflashOptions{.bits = 0, .tree = tree, .weights = {}}));
  int32_t drafted = 0;
  const std::vector<int32_t> expected = golden.ids("mlx4.greedy");
  EXPECT_EQ(reply_with(*subject, std::move(own), golden.ids("hf.1.input_ids"), static_cast<int32_t>(expected.size()),
                       drafted),
            expected);
  EXPECT_GT(drafted, 0);
}

TEST(FamilyDrafts, GlmRepliesAreSerialWithADflash2Drafter) {
  const tensorfold::testing::MemoryStore store = dflash2_weights();
  for (const bool tree : {false, true}) expect_serial_reply("glm5_next", dflash2_config(), store, tree);
}

TEST(FamilyDrafts, GemmaRepliesAreSerialWithADflashDrafter) {
  expect_serial_reply("gemma4", dflash_config(), dflash_weights(), false);
}

}  // namespace
}  // namespace tensorfold::engine
