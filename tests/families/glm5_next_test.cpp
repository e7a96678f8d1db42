// GLM-5.3-Flash beyond the golden logits: the sparse path at work, mlx-lm's own names, configs that are refused, and
// the published checkpoints as headers.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "backend/cpu/packed_matrix.h"
#include "families/checkpoint.h"
#include "families/edited_store.h"
#include "families/golden_file.h"
#include "families/header_store.h"
#include "format/floats.h"
#include "shared_data.h"

namespace tensorfold::families {
namespace {

using nlohmann::json;
using testing::EditedStore;
using testing::GoldenFile;
using testing::HeaderStore;
using testing::Rows;
using testing::SequenceRunner;

constexpr int32_t kMostRows = 256;
const char* const kGolden = "tests/golden/glm5_next/mlx4";

std::unique_ptr<Model> load_store(const json& config, const format::TensorStore& store, backend::Backend& backend) {
  const Family& family = require_family(config);
  check_inventory(family.inventory(config, store.names()), family.skipped, store, format::Quantization::parse(config));
  return family.load(config, store, backend, kMostRows);
}

double largest_difference(const Rows& actual, int64_t first, const Rows& expected) {
  double largest = 0.0;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const auto at = static_cast<size_t>(first * expected.width) + i;
    largest = std::max(largest, std::abs(static_cast<double>(actual.values[at] - expected.values[i])));
  }
  return largest;
}

class Glm5Next : public ::testing::Test {
 protected:
  GoldenFile golden_{testing::project_path("tests/golden/glm5_next/golden.safetensors")};
  std::unique_ptr<backend::Backend> backend_ = backend::make_cpu_backend(0);
  json config_ = format::load_config(testing::project_path(kGolden)).json;
  std::unique_ptr<format::SafetensorsStore> store_ =
      format::SafetensorsStore::open_directory(testing::project_path(kGolden));
};

// Up to 19 positions every one is attended to; the golden prompts of 70 and 200 tokens go beyond.
TEST_F(Glm5Next, RowsBeyondTheDenseContextAttendToAChoice) {
  json everything = config_;
  everything["text_config"]["index_topk"] = 4096;
  const auto sparse = load_store(config_, *store_, *backend_);
  const auto dense = load_store(everything, *store_, *backend_);
  const std::vector<int32_t> ids = golden_.ids("hf.1.input_ids");
  SequenceRunner sparse_runner(*backend_, *sparse, kMostRows);
  SequenceRunner dense_runner(*backend_, *dense, kMostRows);
  const Rows chosen = sparse_runner.feed(ids);
  const Rows all = dense_runner.feed(ids);
  const auto limit = static_cast<size_t>(19 * chosen.width);
  EXPECT_TRUE(std::equal(chosen.values.begin(), chosen.values.begin() + static_cast<std::ptrdiff_t>(limit),
                         all.values.begin()));
  const Rows expected = golden_.rows("mlx4.1.logits");
  EXPECT_LT(largest_difference(chosen, 0, expected), 1e-3);
  EXPECT_GT(largest_difference(all, 0, expected), 0.1) << "what the choice leaves out matters";
}

/// Dequantised values [outputs][inputs] of a packed module of 4 bits in groups of 64.
std::vector<float> dequantise(const EditedStore::Tensor& weight, const EditedStore::Tensor& scales,
                              const EditedStore::Tensor& biases) {
  std::vector<uint8_t> codes(weight.bytes.size() * 2);
  backend::cpu::unpack_affine_codes(weight.bytes, 4, codes);
  std::vector<float> factors(scales.bytes.size() / 2);
  std::vector<float> shifts(factors.size());
  format::widen(format::DataType::bf16, scales.bytes, factors);
  format::widen(format::DataType::bf16, biases.bytes, shifts);
  std::vector<float> values;
  for (size_t i = 0; i < codes.size(); ++i)
    values.push_back(std::fma(static_cast<float>(codes[i]), factors[i / 64], shifts[i / 64]));
  return values;
}

/// The golden checkpoint under mlx-lm's own names: convolutions joined, experts stacked, kv_b in its two halves.
EditedStore rename_for_mlx_lm(const format::TensorStore& golden, const json& config) {
  EditedStore store(golden);
  const json& text = config["text_config"];
  const std::string root = "model.language_model.layers.";
  const auto join = [&](const std::vector<std::string>& names, const std::string& to, std::vector<int64_t> shape) {
    std::vector<std::byte> bytes;
    format::DataType type{};
    for (const std::string& name : names) {
      const EditedStore::Tensor part = store.take(name);
      bytes.insert(bytes.end(), part.bytes.begin(), part.bytes.end());
      type = part.info.type;
      if (shape.size() == 1) shape.insert(shape.end(), part.info.shape.begin(), part.info.shape.end());
    }
    store.put(to, type, shape, std::move(bytes));
  };
  const int64_t heads = text["num_attention_heads"];
  const int64_t key_dim = text["qk_nope_head_dim"];
  const int64_t value_dim = text["v_head_dim"];
  const int64_t latent = text["kv_lora_rank"];
  for (int layer = 0; layer <= 4; ++layer) {
    const std::string prefix = root + std::to_string(layer) + ".";
    const std::string mixer = prefix + "self_attn.";
    if (store.has(mixer + "q_conv1d.weight")) {
      join({mixer + "q_conv1d.weight", mixer + "k_conv1d.weight", mixer + "v_conv1d.weight"}, mixer + "conv1d.weight",
           {768, 4, 1});
    }
    if (store.has(mixer + "kv_b_proj.weight")) {
      const std::vector<float> joined =
          dequantise(store.take(mixer + "kv_b_proj.weight"), store.take(mixer + "kv_b_proj.scales"),
                     store.take(mixer + "kv_b_proj.biases"));
      std::vector<float> absorb;
      std::vector<float> expand;
      const auto value = [&](int64_t row, int64_t n) { return joined[static_cast<size_t>(row * latent + n)]; };
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t first = h * (key_dim + value_dim);
        for (int64_t n = 0; n < latent; ++n) {
          for (int64_t k = 0; k < key_dim; ++k) absorb.push_back(value(first + k, n));
        }
        for (int64_t v = 0; v < value_dim; ++v) {
          for (int64_t n = 0; n < latent; ++n) expand.push_back(value(first + key_dim + v, n));
        }
      }
      store.put_floats(mixer + "embed_q.weight", {heads, latent, key_dim}, absorb);
      store.put_floats(mixer + "unembed_out.weight", {heads, value_dim, latent}, expand);
    }
    if (!store.has(prefix + "mlp.experts.0.gate_proj.weight")) continue;
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      for (const char* tensor : {".weight", ".scales", ".biases"}) {
        std::vector<std::string> names;
        for (int expert = 0; expert < 6; ++expert)
          names.push_back(prefix + "mlp.experts." + std::to_string(expert) + "." + part + tensor);
        join(names, prefix + "mlp.switch_mlp." + part + tensor, {6});
      }
    }
  }
  store.rename([&](const std::string& name) {
    std::string to = name;
    const auto replace = [&](const std::string& from, const std::string& by) {
      if (const size_t at = to.find(from); at != std::string::npos) to.replace(at, from.size(), by);
    };
    for (const char* part : {"eh_proj", "enorm", "hnorm"}) replace(root + "4." + part, std::string("mtp.0.") + part);
    replace(root + "4.shared_head.norm", "mtp.0.norm");
    replace(root + "4.", "mtp.0.block.");
    replace("model.language_model.", "language_model.model.");
    if (to.starts_with("lm_head")) to = "language_model." + to;
    for (const char* site : {"attn", "ffn"}) {
      for (const char* part : {"fn", "base", "scale"})
        replace(std::string("hc_") + site + "_" + part, std::string(site) + "_hc." + part);
    }
    for (const char* part : {"A_log", "dt_bias", "f_a_proj", "f_b_proj"})
      replace(std::string("self_attn.") + part, std::string("self_attn.forget_gate.") + part);
    return to;
  });
  return store;
}

TEST_F(Glm5Next, ReadsTheNamesOfMlxLm) {
  EditedStore store = rename_for_mlx_lm(*store_, config_);
  // One layer's decays as converters store them: exponentiated.
  for (int layer = 0; layer < 3; ++layer) {
    const std::string mixer = "language_model.model.layers." + std::to_string(layer) + ".self_attn.";
    const EditedStore::Tensor logs = store.take(mixer + "forget_gate.A_log");
    std::vector<float> values(logs.bytes.size() / 4);
    format::widen(format::DataType::f32, logs.bytes, values);
    for (float& value : values) value = std::exp(value);
    store.put_floats(mixer + "A", {static_cast<int64_t>(values.size())}, values);
  }
  const auto model = load_store(config_, store, *backend_);
  ASSERT_NE(model->draft_head(), nullptr);
  for (const char* prompt : {"0", "1", "2"}) {
    SequenceRunner runner(*backend_, *model, kMostRows);
    const Rows logits = runner.feed(golden_.ids(std::string("hf.") + prompt + ".input_ids"));
    const Rows expected = golden_.rows(std::string("mlx4.") + prompt + ".logits");
    EXPECT_LT(largest_difference(logits, logits.count() - expected.count(), expected), 1e-3) << prompt;
  }
}

std::string problems_of(const json& config) {
  try {
    require_family(config).describe(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_F(Glm5Next, RefusesWhatItsForwardDoesNotCover) {
  EXPECT_EQ(problems_of(config_), "");
  const std::pair<const char*, json> changes[] = {{"mla_use_nope", false},
                                                  {"qk_rope_head_dim", 64},
                                                  {"n_group", 2},
                                                  {"topk_group", 2},
                                                  {"scoring_func", "softmax"},
                                                  {"topk_method", "greedy"},
                                                  {"hidden_act", "gelu"},
                                                  {"attention_bias", true},
                                                  {"index_kpool_always_select_tail", false},
                                                  {"index_topk", 18},
                                                  {"mhc", false},
                                                  {"hc_mult", 16},
                                                  {"num_key_value_heads", 1},
                                                  {"layer_types", {"linear_attention", "sliding_attention", "x", "x"}},
                                                  {"indexer_types", {"full", "full", "full", "shared"}},
                                                  {"mlp_layer_types", {"dense"}}};
  for (const auto& [field, value] : changes) {
    json config = config_;
    config["text_config"][field] = value;
    const std::string problems = problems_of(config);
    EXPECT_NE(problems.find(field), std::string::npos) << field << ": " << problems;
  }
  json config = config_;
  config["text_config"]["linear_attn_config"]["gate_lower_bound"] = 0.0;
  EXPECT_NE(problems_of(config).find("linear_attn_config: gate_lower_bound"), std::string::npos);
}

TEST_F(Glm5Next, ReadsBothSpellingsOfTheDeltaSettings) {
  json flat = config_;
  json& text = flat["text_config"];
  text.erase("linear_attn_config");
  text["linear_num_heads"] = 2;
  text["linear_head_dim"] = 128;
  text["linear_conv_kernel_dim"] = 4;
  text["linear_lower_bound"] = -5.0;
  const std::vector<int32_t> ids = golden_.ids("hf.0.input_ids");
  const auto nested_model = load_store(config_, *store_, *backend_);
  const auto flat_model = load_store(flat, *store_, *backend_);
  SequenceRunner nested_runner(*backend_, *nested_model, kMostRows);
  SequenceRunner flat_runner(*backend_, *flat_model, kMostRows);
  EXPECT_EQ(nested_runner.feed(ids).values, flat_runner.feed(ids).values);
}

// ---- The published checkpoints ----

json published_config(bool packed) {
  json text = json::parse(R"({
    "model_type": "glm5_next_text", "hidden_size": 4096, "num_hidden_layers": 45, "vocab_size": 154880,
    "rms_norm_eps": 1e-5, "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256, "head_dim": 0,
    "mla_use_nope": true, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "index_kpool": 4,
    "index_kpool_always_select_tail": true, "index_kpool_compress": true, "index_share_for_mtp_iteration": true,
    "indexer_rope_interleave": true, "first_k_dense_replace": 3, "intermediate_size": 12288,
    "moe_intermediate_size": 2048, "n_routed_experts": 288, "num_experts_per_tok": 8, "n_shared_experts": 1,
    "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "moe_router_dtype": "float32", "hidden_act": "silu", "swiglu_limit": 10.0,
    "linear_attn_config": {"num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0},
    "mhc": true, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20, "num_nextn_predict_layers": 1,
    "max_position_embeddings": 1048576, "attention_bias": false, "attention_dropout": 0.0, "pad_token_id": 154820,
    "bos_token_id": null, "eos_token_id": [154820, 154827, 154829]
  })");
  for (int layer = 0; layer < 45; ++layer) {
    text["layer_types"].push_back(layer % 4 == 3 ? "deepseek_sparse_attention" : "linear_attention");
    text["mlp_layer_types"].push_back(layer < 3 ? "dense" : "sparse");
    text["indexer_types"].push_back("full");
  }
  json config = {{"model_type", "glm5_next"},
                 {"architectures", {"Glm5NextForConditionalGeneration"}},
                 {"image_token_id", 154854},
                 {"tie_word_embeddings", false},
                 {"text_config", text}};
  if (packed) config["quantization"] = {{"bits", 4}, {"group_size", 64}, {"mode", "affine"}};
  return config;
}

/// Adds a module packed in 4 bits, or in bf16.
class PublishedHeaders {
 public:
  explicit PublishedHeaders(bool packed) : packed_(packed) {
    const std::string root = "model.language_model.";
    matrix(root + "embed_tokens", {154880, 4096});
    matrix("lm_head", {154880, 4096});
    store.bf16(root + "norm.weight", {4096});
    store.bf16("model.visual.blocks.0.attn.qkv.weight", {3072, 1024});
    for (int layer = 0; layer <= 45; ++layer) {
      const std::string prefix = root + "layers." + std::to_string(layer) + ".";
      for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
        store.bf16(prefix + norm + ".weight", {4096});
      if (layer < 45) add_streams(prefix);
      layer % 4 == 3 || layer == 45 ? add_attention(prefix + "self_attn.") : add_delta(prefix + "self_attn.");
      layer < 3 ? add_gated(prefix + "mlp.", 12288) : add_experts(prefix + "mlp.");
    }
    const std::string mtp = root + "layers.45.";
    for (const char* norm : {"enorm", "hnorm", "shared_head.norm"}) store.bf16(mtp + norm + ".weight", {4096});
    matrix(mtp + "eh_proj", {4096, 8192});
  }

  HeaderStore store;

 private:
  void matrix(const std::string& module, std::vector<int64_t> shape) {
    packed_ ? store.packed(module, std::move(shape)) : store.bf16(module + ".weight", std::move(shape));
  }
  void add_streams(const std::string& prefix) {
    for (const char* site : {"hc_attn_", "hc_ffn_"}) {
      store.bf16(prefix + site + "fn", {24, 16384});
      store.f32(prefix + site + "base", {24});
      store.f32(prefix + site + "scale", {3});
    }
  }
  void add_delta(const std::string& mixer) {
    for (const char* part : {"q", "k", "v"}) {
      matrix(mixer + part + "_proj", {8192, 4096});
      store.bf16(mixer + part + "_conv1d.weight", {8192, 1, 4});
    }
    for (const char* part : {"f", "g"}) {
      matrix(mixer + part + "_a_proj", {128, 4096});
      matrix(mixer + part + "_b_proj", {8192, 128});
    }
    matrix(mixer + "b_proj", {64, 4096});
    store.f32(mixer + "A_log", {64});
    store.f32(mixer + "dt_bias", {8192});
    store.bf16(mixer + "o_norm.weight", {128});
    matrix(mixer + "o_proj", {4096, 8192});
  }
  void add_attention(const std::string& mixer) {
    matrix(mixer + "q_a_proj", {1536, 4096});
    store.bf16(mixer + "q_a_layernorm.weight", {1536});
    matrix(mixer + "q_b_proj", {16384, 1536});
    matrix(mixer + "kv_a_proj_with_mqa", {512, 4096});
    store.bf16(mixer + "kv_a_layernorm.weight", {512});
    matrix(mixer + "kv_b_proj", {32768, 512});
    matrix(mixer + "o_proj", {4096, 16384});
    matrix(mixer + "indexer.wk", {128, 4096});
    matrix(mixer + "indexer.wq_b", {4096, 1536});
    matrix(mixer + "indexer.weights_proj", {32, 4096});
    store.bf16(mixer + "indexer.k_norm.weight", {128});
    store.bf16(mixer + "indexer.k_norm.bias", {128});
    store.bf16(mixer + "indexer.index_kpool_compress_gate", {128, 4096});
    store.bf16(mixer + "indexer.index_kpool_compress_ape", {4, 128});
  }
  void add_gated(const std::string& mlp, int64_t width) {
    matrix(mlp + "gate_proj", {width, 4096});
    matrix(mlp + "up_proj", {width, 4096});
    matrix(mlp + "down_proj", {4096, width});
  }
  void add_experts(const std::string& mlp) {
    store.bf16(mlp + "gate.weight", {288, 4096});
    store.f32(mlp + "gate.e_score_correction_bias", {288});
    for (int expert = 0; expert < 288; ++expert) add_gated(mlp + "experts." + std::to_string(expert) + ".", 2048);
    add_gated(mlp + "shared_experts.", 2048);
  }

  bool packed_;
};

std::string check_headers(const json& config, const HeaderStore& store) {
  const Family& family = require_family(config);
  try {
    check_inventory(family.inventory(config, store.names()), family.skipped, store,
                    format::Quantization::parse(config));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Glm5NextPublished, FourBitsPassTheChecksOfLoading) {
  const json config = published_config(true);
  PublishedHeaders headers(true);
  EXPECT_EQ(check_headers(config, headers.store), "");
  headers.store.remove("model.visual.blocks.0.attn.qkv.weight");
  // 176.3 GB and an MTP layer of 4.18 GB by the specification's count of 4.5 bits a weight.
  EXPECT_NEAR(static_cast<double>(headers.store.bytes()), 176.3e9 + 4.18e9, 0.3e9);
  const Family& family = require_family(config);
  const auto counted =
      count_bytes(family.inventory(config, headers.store.names()), format::Quantization::parse(config));
  // The inventory counts vectors as bf16; streams' bases, decays and corrections are fp32.
  EXPECT_NEAR(static_cast<double>(counted.total), static_cast<double>(headers.store.bytes()), 2e6);
  headers.store.remove("model.language_model.layers.7.self_attn.kv_b_proj.scales");
  headers.store.remove("model.language_model.layers.44.mlp.experts.287.down_proj.weight");
  headers.store.bf16("model.language_model.layers.3.self_attn.indexer.index_kpool_compress_ape", {8, 128});
  const std::string problems = check_headers(config, headers.store);
  for (const char* name : {"layers.7.self_attn.kv_b_proj", "layers.44.mlp.experts.287.down_proj",
                           "layers.3.self_attn.indexer.index_kpool_compress_ape"})
    EXPECT_NE(problems.find(name), std::string::npos) << problems;
}

TEST(Glm5NextPublished, TheOriginalPassesToo) {
  EXPECT_EQ(check_headers(published_config(false), PublishedHeaders(false).store), "");
}

TEST(Glm5NextPublished, SizesFromTheConfigAlone) {
  const json config = published_config(true);
  const Family& family = require_family(config);
  const ModelInfo info = family.describe(config);
  EXPECT_EQ(info.layers, 45);
  EXPECT_EQ(info.default_context, 2051);
  ASSERT_EQ(info.notes.size(), 1U);
  EXPECT_NE(info.notes.front().find("2051 tokens"), std::string::npos);
  EXPECT_EQ(info.end_tokens, (std::vector<int32_t>{154820, 154827, 154829}));
  EXPECT_TRUE(info.draft_head);
  // 5.0 GB a token and rank of two, but for what both read.
  EXPECT_NEAR(static_cast<double>(info.decode_bytes), 10.0e9, 1.0e9);
  const backend::CacheLayout layout = family.cache_layout(config);
  EXPECT_EQ(paged_values(layout), 11 * (512 + 2 * 128));
  EXPECT_EQ(state_values(layout), 34LL * (64 * 128 * 128 + 3 * 24576));
}

TEST(Glm5NextPublished, TheOriginalInFp8IsRefusedByName) {
  json config = published_config(false);
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  const std::string problems = problems_of(config);
  EXPECT_NE(problems.find("fp8"), std::string::npos) << problems;
}

}  // namespace
}  // namespace tensorfold::families
