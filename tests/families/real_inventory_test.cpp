// Published checkpoints as headers alone, written out from what is known of their files, pass the checks that loading
// makes; a missing or misshapen tensor is named.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "families/checkpoint.h"
#include "families/header_store.h"

namespace tensorfold::families {
namespace {

using nlohmann::json;
using testing::HeaderStore;

std::vector<std::string> check_headers(const json& config, const HeaderStore& store) {
  const Family& family = require_family(config);
  const std::vector<std::string> names = store.names();
  return check_inventory(family.inventory(config, names), family.skipped, store, format::Quantization::parse(config));
}

std::string problems_of(const json& config, const HeaderStore& store) {
  try {
    check_headers(config, store);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// ---- Nemotron 3.5 Lightning 30B-A3B ----

constexpr const char* kNemotronPattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";

/// config.json of the original, with its layer list or, as the family's older members have it, the pattern.
json nemotron_config(bool packed, bool pattern) {
  json config = json::parse(R"({
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 2688,
    "num_hidden_layers": 52, "max_position_embeddings": 1048576, "layer_norm_epsilon": 1e-5, "norm_eps": 1e-5,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "attention_bias": false,
    "attention_dropout": 0.0, "sliding_window": null, "rope_theta": 10000, "partial_rotary_factor": 1.0,
    "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "expand": 2,
    "chunk_size": 128, "mamba_hidden_act": "silu", "mamba_proj_bias": false, "use_bias": false, "use_conv_bias": true,
    "mamba_ssm_cache_dtype": "float32", "time_step_min": 0.001, "time_step_max": 0.1, "time_step_floor": 1e-4,
    "n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 1, "moe_intermediate_size": 1856,
    "intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "moe_latent_size": null, "n_group": 1,
    "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "mlp_hidden_act": "relu2",
    "mlp_bias": false, "num_nextn_predict_layers": 1, "mtp_layers_block_type": ["attention", "moe"],
    "tie_word_embeddings": false, "residual_in_fp32": false, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0
  })");
  if (pattern) {
    config["hybrid_override_pattern"] = kNemotronPattern;
  } else {
    for (const char* letter = kNemotronPattern; *letter != '\0'; ++letter)
      config["layers_block_type"].push_back(*letter == 'M' ? "mamba" : *letter == 'E' ? "moe" : "attention");
  }
  if (packed) config["quantization"] = {{"group_size", 64}, {"bits", 4}, {"mode", "affine"}};
  return config;
}

void add_nemotron_attention(HeaderStore& store, const std::string& mixer) {
  store.packed(mixer + "q_proj", {4096, 2688});
  store.packed(mixer + "k_proj", {256, 2688});
  store.packed(mixer + "v_proj", {256, 2688});
  store.packed(mixer + "o_proj", {2688, 4096});
}

void add_nemotron_experts(HeaderStore& store, const std::string& mixer) {
  store.bf16(mixer + "gate.weight", {128, 2688});
  store.f32(mixer + "gate.e_score_correction_bias", {128});
  store.packed(mixer + "switch_mlp.fc1", {128, 1856, 2688});
  store.packed(mixer + "switch_mlp.fc2", {128, 2688, 1856});
  store.packed(mixer + "shared_experts.up_proj", {3712, 2688});
  store.packed(mixer + "shared_experts.down_proj", {2688, 3712});
}

HeaderStore nemotron_headers() {
  HeaderStore store;
  store.packed("backbone.embeddings", {131072, 2688});
  store.bf16("backbone.norm_f.weight", {2688});
  store.packed("lm_head", {131072, 2688});
  for (int layer = 0; kNemotronPattern[layer] != '\0'; ++layer) {
    const std::string prefix = "backbone.layers." + std::to_string(layer) + ".";
    const std::string mixer = prefix + "mixer.";
    store.bf16(prefix + "norm.weight", {2688});
    if (kNemotronPattern[layer] == '*') add_nemotron_attention(store, mixer);
    if (kNemotronPattern[layer] == 'E') add_nemotron_experts(store, mixer);
    if (kNemotronPattern[layer] != 'M') continue;
    store.packed(mixer + "in_proj", {10304, 2688});
    store.bf16(mixer + "conv1d.weight", {6144, 4, 1});
    store.bf16(mixer + "conv1d.bias", {6144});
    store.bf16(mixer + "A_log", {64});
    store.bf16(mixer + "D", {64});
    store.bf16(mixer + "dt_bias", {64});
    store.bf16(mixer + "norm.weight", {4096});
    store.packed(mixer + "out_proj", {2688, 4096});
  }
  return store;
}

void add_nemotron_mtp(HeaderStore& store) {
  for (const char* norm :
       {"layers.0.enorm", "layers.0.hnorm", "layers.0.norm", "layers.1.norm", "layers.1.final_layernorm"}) {
    store.bf16(std::string(norm) + ".weight", {2688});
  }
  store.packed("layers.0.eh_proj", {2688, 5376});
  add_nemotron_attention(store, "layers.0.mixer.");
  add_nemotron_experts(store, "layers.1.mixer.");
}

TEST(RealInventory, NemotronInFourBits) {
  for (const bool pattern : {false, true}) {
    const json config = nemotron_config(true, pattern);
    HeaderStore store = nemotron_headers();
    EXPECT_EQ(store.bytes(), 17'775'339'392U);  // as published
    EXPECT_EQ(problems_of(config, store), "");
    add_nemotron_mtp(store);
    EXPECT_EQ(store.bytes(), 18'526'974'592U);  // the repository of 18.5 GB
    EXPECT_EQ(problems_of(config, store), "");
  }
}

TEST(RealInventory, NemotronSizesFromItsConfigAlone) {
  const json config = nemotron_config(true, false);
  const Family& family = require_family(config);
  const ModelInfo info = family.describe(config);
  EXPECT_EQ(info.layers, 52);
  EXPECT_TRUE(info.draft_head);
  // 1.811 GB of 4-bit weights and 15.8 MB of routers a token, and the small vectors.
  EXPECT_NEAR(static_cast<double>(info.decode_bytes), 1.8106e9 + 15.83e6, 3e6);
  const backend::CacheLayout layout = family.cache_layout(config);
  EXPECT_EQ(paged_values(layout) * 2, 6144);                           // bytes a token in 16 bits
  EXPECT_EQ(state_values(layout), 23 * (64LL * 64 * 128 + 3 * 6144));  // fp32 values a sequence
  HeaderStore complete = nemotron_headers();
  add_nemotron_mtp(complete);
  const auto counted =
      count_bytes(family.inventory(config, complete.names()), format::Quantization::parse(config)).total;
  EXPECT_NEAR(static_cast<double>(counted), static_cast<double>(complete.bytes()), 24 * 256);  // correction in fp32
}

TEST(RealInventory, NemotronOriginal) {
  const json config = nemotron_config(false, false);
  HeaderStore store;
  const HeaderStore packed = nemotron_headers();
  // The original spells experts one by one and holds everything but the correction in bf16.
  for (const TensorSpec& spec : require_family(config).inventory(config, packed.names())) {
    if (spec.role == TensorRole::vector || spec.shape.size() == 3) continue;
    store.bf16(spec.module + ".weight", spec.shape);
  }
  for (int layer = 0; kNemotronPattern[layer] != '\0'; ++layer) {
    const std::string prefix = "backbone.layers." + std::to_string(layer) + ".";
    const std::string mixer = prefix + "mixer.";
    store.bf16(prefix + "norm.weight", {2688});
    if (kNemotronPattern[layer] == 'M') {
      store.bf16(mixer + "conv1d.weight", {6144, 1, 4});
      store.bf16(mixer + "conv1d.bias", {6144});
      for (const char* name : {"A_log", "D", "dt_bias"}) store.bf16(mixer + name, {64});
      store.bf16(mixer + "norm.weight", {4096});
    }
    if (kNemotronPattern[layer] != 'E') continue;
    store.f32(mixer + "gate.e_score_correction_bias", {128});
    for (int expert = 0; expert < 128; ++expert) {
      const std::string module = mixer + "experts." + std::to_string(expert);
      store.bf16(module + ".up_proj.weight", {1856, 2688});
      store.bf16(module + ".down_proj.weight", {2688, 1856});
    }
  }
  store.bf16("backbone.norm_f.weight", {2688});
  EXPECT_EQ(problems_of(config, store), "");
  EXPECT_NEAR(static_cast<double>(store.bytes()), 2 * 31'577'940'288.0, 23 * 256 + 1);  // 31.58 B parameters
  store.remove("backbone.layers.51.mixer.experts.127.down_proj.weight");
  EXPECT_TRUE(contains(problems_of(config, store), "backbone.layers.51.mixer.experts.127.down_proj.weight is missing"));
}

TEST(RealInventory, NemotronNamesWhatIsWrong) {
  const json config = nemotron_config(true, false);
  HeaderStore store = nemotron_headers();
  store.remove("backbone.layers.2.mixer.D");
  store.packed("backbone.layers.1.mixer.switch_mlp.fc2", {128, 2688, 1792});
  store.bf16("backbone.layers.5.mixer.rope", {64});
  const std::string problems = problems_of(config, store);
  EXPECT_TRUE(contains(problems, "backbone.layers.2.mixer.D is missing")) << problems;
  EXPECT_TRUE(contains(problems, "backbone.layers.1.mixer.switch_mlp.fc2")) << problems;
  EXPECT_TRUE(contains(problems, "backbone.layers.5.mixer.rope")) << problems;
}

TEST(RealInventory, NemotronRefusesWhatItDoesNotServe) {
  json config = nemotron_config(true, false);
  config["moe_latent_size"] = 1024;
  config["n_group"] = 4;
  config["layers_block_type"][3] = "mlp";
  config["time_step_limit"] = {0.0, "many"};
  try {
    require_family(config).describe(config);
    FAIL() << "described";
  } catch (const Error& error) {
    for (const char* field : {"moe_latent_size", "n_group", "mlp", "time_step_limit"})
      EXPECT_TRUE(contains(error.what(), field)) << error.what();
  }
}

// ---- Gemma 4 26B-A4B ----

json gemma_config(bool packed, bool saved_again) {
  json text = json::parse(R"({
    "model_type": "gemma4_text", "vocab_size": 262144, "hidden_size": 2816, "num_hidden_layers": 30,
    "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256,
    "global_head_dim": 512, "attention_k_eq_v": true, "attention_bias": false, "sliding_window": 1024,
    "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
      "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}},
    "max_position_embeddings": 262144, "intermediate_size": 2112, "enable_moe_block": true, "num_experts": 128,
    "top_k_experts": 8, "moe_intermediate_size": 704, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
    "final_logit_softcapping": 30.0, "tie_word_embeddings": true, "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 262144, "num_kv_shared_layers": 0, "use_double_wide_mlp": false,
    "use_bidirectional_attention": "vision", "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0
  })");
  for (int layer = 0; layer < 30; ++layer)
    text["layer_types"].push_back(layer % 6 == 5 ? "full_attention" : "sliding_attention");
  if (saved_again) {  // as transformers 5.17 writes it
    text.erase("global_head_dim");
    text.erase("num_global_key_value_heads");
    for (const char* layer : {"5", "11", "17", "23", "29"})
      text["per_layer_config"][layer] = {{"head_dim", 512}, {"num_key_value_heads", 2}};
  }
  json config = {{"architectures", {"Gemma4ForConditionalGeneration"}},
                 {"model_type", "gemma4"},
                 {"eos_token_id", {1, 106}},
                 {"text_config", text}};
  if (!packed) return config;
  config["quantization"] = {{"group_size", 64}, {"bits", 4}, {"mode", "affine"}};
  for (int layer = 0; layer < 30; ++layer) {
    config["quantization"]["language_model.model.layers." + std::to_string(layer) + ".router.proj"] = {
        {"group_size", 64}, {"bits", 8}};
  }
  return config;
}

void add_gemma_vectors(HeaderStore& store, const std::string& prefix, bool full) {
  for (const char* norm :
       {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "pre_feedforward_layernorm_2",
        "post_feedforward_layernorm", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"}) {
    store.bf16(prefix + norm + ".weight", {2816});
  }
  store.bf16(prefix + "layer_scalar", {1});
  store.bf16(prefix + "router.scale", {2816});
  store.bf16(prefix + "router.per_expert_scale", {128});
  for (const char* norm : {"q_norm", "k_norm"})
    store.bf16(prefix + "self_attn." + norm + ".weight", {full ? 512 : 256});
}

HeaderStore gemma_headers() {
  HeaderStore store;
  store.packed("language_model.model.embed_tokens", {262144, 2816});
  store.bf16("language_model.model.norm.weight", {2816});
  store.bf16("vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight", {1152, 1152});
  for (int layer = 0; layer < 30; ++layer) {
    const std::string prefix = "language_model.model.layers." + std::to_string(layer) + ".";
    const bool full = layer % 6 == 5;
    add_gemma_vectors(store, prefix, full);
    store.packed(prefix + "self_attn.q_proj", {full ? 8192 : 4096, 2816});
    store.packed(prefix + "self_attn.k_proj", {full ? 1024 : 2048, 2816});
    if (!full) store.packed(prefix + "self_attn.v_proj", {2048, 2816});
    store.packed(prefix + "self_attn.o_proj", {2816, full ? 8192 : 4096});
    store.packed(prefix + "mlp.gate_proj", {2112, 2816});
    store.packed(prefix + "mlp.up_proj", {2112, 2816});
    store.packed(prefix + "mlp.down_proj", {2816, 2112});
    store.packed(prefix + "router.proj", {128, 2816}, 8);
    store.packed(prefix + "experts.switch_glu.gate_proj", {128, 704, 2816});
    store.packed(prefix + "experts.switch_glu.up_proj", {128, 704, 2816});
    store.packed(prefix + "experts.switch_glu.down_proj", {128, 2816, 704});
  }
  return store;
}

TEST(RealInventory, GemmaInFourBits) {
  HeaderStore store = gemma_headers();
  for (const bool saved_again : {false, true}) {
    const json config = gemma_config(true, saved_again);
    EXPECT_EQ(problems_of(config, store), "");
    const std::vector<std::string> notes = check_headers(config, store);
    ASSERT_EQ(notes.size(), 1U);
    EXPECT_TRUE(contains(notes.front(), "vision tower"));
  }
  store.remove("vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight");
  EXPECT_EQ(store.bytes(), 14'200'055'868U);  // 14.2 GB of text weights
  const json config = gemma_config(true, false);
  const auto bytes =
      count_bytes(require_family(config).inventory(config, store.names()), format::Quantization::parse(config));
  EXPECT_EQ(bytes.total, store.bytes());
  // What the reference measured that a token reads: 2.155 GB, and the small vectors.
  EXPECT_NEAR(static_cast<double>(bytes.read), 2'155'186'176.0, 2e6);
  const backend::CacheLayout layout = require_family(config).cache_layout(config);
  EXPECT_EQ(paged_values(layout) * 2, 5 * 4096 + 25 * 8192);  // bytes a token in 16 bits: full, then sliding layers
}

TEST(RealInventory, GemmaOriginal) {
  for (const bool towers : {true, false}) {
    const json config = towers ? gemma_config(false, false) : gemma_config(false, true)["text_config"];
    const std::string root = towers ? "model.language_model." : "model.";
    HeaderStore store;
    store.bf16(root + "embed_tokens.weight", {262144, 2816});
    store.bf16(root + "norm.weight", {2816});
    if (towers) store.bf16("model.embed_vision.embedding_projection.weight", {2816, 1152});
    for (int layer = 0; layer < 30; ++layer) {
      const std::string prefix = root + "layers." + std::to_string(layer) + ".";
      const bool full = layer % 6 == 5;
      add_gemma_vectors(store, prefix, full);
      store.bf16(prefix + "self_attn.q_proj.weight", {full ? 8192 : 4096, 2816});
      store.bf16(prefix + "self_attn.k_proj.weight", {full ? 1024 : 2048, 2816});
      if (!full) store.bf16(prefix + "self_attn.v_proj.weight", {2048, 2816});
      store.bf16(prefix + "self_attn.o_proj.weight", {2816, full ? 8192 : 4096});
      store.bf16(prefix + "mlp.gate_proj.weight", {2112, 2816});
      store.bf16(prefix + "mlp.up_proj.weight", {2112, 2816});
      store.bf16(prefix + "mlp.down_proj.weight", {2816, 2112});
      store.bf16(prefix + "router.proj.weight", {128, 2816});
      store.bf16(prefix + "experts.gate_up_proj", {128, 1408, 2816});
      store.bf16(prefix + "experts.down_proj", {128, 2816, 704});
    }
    EXPECT_EQ(problems_of(config, store), "");
    if (!towers) {
      EXPECT_EQ(store.bytes(), 2 * 25'233'141'790ULL);  // 25.23 B parameters
    }
    store.remove(root + "layers.7.experts.gate_up_proj");
    const std::string problems = problems_of(config, store);
    EXPECT_TRUE(contains(problems, root + "layers.7.experts.gate_up_proj")) << problems;
  }
}

TEST(RealInventory, GemmaRefusesOtherSizesOfItsFamily) {
  json config = gemma_config(true, false);
  config["text_config"]["hidden_size_per_layer_input"] = 256;
  config["text_config"]["num_kv_shared_layers"] = 10;
  config["text_config"]["enable_moe_block"] = false;
  config["text_config"]["layer_types"][4] = "chunked_attention";
  try {
    require_family(config).describe(config);
    FAIL() << "described";
  } catch (const Error& error) {
    for (const char* field :
         {"hidden_size_per_layer_input", "num_kv_shared_layers", "enable_moe_block", "chunked_attention"})
      EXPECT_TRUE(contains(error.what(), field)) << error.what();
  }
}

}  // namespace
}  // namespace tensorfold::families
