// Qwen3.8 Flash Next beyond what every family's golden test asks: whole streams layer by layer, n-grams across the end
// token, the hash constants of the published checkpoint, and its tensors as headers alone.
#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "families/checkpoint.h"
#include "families/golden_file.h"
#include "families/header_store.h"
#include "families/qwen4_exp/ngram_rows.h"
#include "shared_data.h"

namespace tensorfold::families {
namespace {

using nlohmann::json;
using testing::GoldenFile;
using testing::HeaderStore;
using testing::project_path;
using testing::Rows;
using testing::SequenceRunner;

constexpr int32_t kMostRows = 256;

std::string problem_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = a.size() == b.size() ? 0.0 : HUGE_VAL;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

// ---- The golden checkpoint ----

GoldenFile golden() { return GoldenFile(project_path("tests/golden/qwen4_exp/golden.safetensors")); }

/// The first `layers` layers of a checkpoint as a model of its own: its hidden rows are the streams behind the last.
std::unique_ptr<Model> load_first_layers(const Checkpoint& checkpoint, int layers, backend::Backend& backend) {
  json config = checkpoint.config.json;
  json& text = config.contains("text_config") ? config["text_config"] : config;
  text["num_hidden_layers"] = layers;
  text["layer_types"].get_ref<json::array_t&>().resize(static_cast<size_t>(layers));
  if (layers < 2) text.erase("ple_layer_ids");
  return checkpoint.family->load(config, *checkpoint.store, backend, kMostRows);
}

TEST(FlashNext, StreamsLayerByLayer) {
  const auto path = testing::shared_path("golden/qwen4_exp/hf");
  if (!path) GTEST_SKIP() << "no shared folder with golden/qwen4_exp/hf";
  const Checkpoint checkpoint = open_checkpoint(*path);
  const auto backend = backend::make_cpu_backend(0);
  for (int layer = 0; layer < 4; ++layer) {
    const auto model = load_first_layers(checkpoint, layer + 1, *backend);
    SequenceRunner runner(*backend, *model, kMostRows);
    runner.feed(golden().ids("hf.1.input_ids"));
    const Rows expected = golden().rows("hf.1.hidden." + std::to_string(layer));
    double squares = 0.0;
    for (const float value : expected.values) squares += static_cast<double>(value) * static_cast<double>(value);
    const double deviation = std::sqrt(squares / static_cast<double>(expected.values.size()));
    EXPECT_LT(largest_difference(runner.read_hidden().values, expected.values), 5e-4 * deviation) << layer;
  }
}

TEST(FlashNext, NgramsDoNotReachOverAnEndToken) {
  const auto path = testing::shared_path("golden/qwen4_exp/hf");
  if (!path) GTEST_SKIP() << "no shared folder with golden/qwen4_exp/hf";
  const auto backend = backend::make_cpu_backend(0);
  const auto model = load_model(*path, *backend, kMostRows).model;
  const std::vector<int32_t> ids = golden().ids("hf.eos.input_ids");
  const Rows expected = golden().rows("hf.eos.logits");
  SequenceRunner whole(*backend, *model, kMostRows);
  EXPECT_LT(largest_difference(whole.feed(ids).values, expected.values), 1e-3);
  // A chunk may begin anywhere around one: what lies before it comes from the sequence's history.
  SequenceRunner pieces(*backend, *model, kMostRows);
  std::vector<float> logits;
  for (size_t done = 0; done < ids.size();) {
    const size_t count = std::min<size_t>(1 + done % 3, ids.size() - done);
    const Rows part = pieces.feed(std::span(ids).subspan(done, count));
    logits.insert(logits.end(), part.values.begin(), part.values.end());
    done += count;
  }
  EXPECT_LT(largest_difference(logits, expected.values), 1e-3);
}

/// A checkpoint of which one tensor's values are others.
class ChangedStore : public format::TensorStore {
 public:
  ChangedStore(const format::TensorStore& store, std::string name) : store_(store), name_(std::move(name)) {}
  [[nodiscard]] const format::TensorInfo* find(std::string_view name) const override { return store_.find(name); }
  [[nodiscard]] std::vector<std::string> names() const override { return store_.names(); }
  void read(const format::TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const override {
    store_.read(tensor, offset, out);
    if (tensor.name == name_ && !out.empty()) out.front() ^= std::byte{2};
  }

 private:
  const format::TensorStore& store_;
  std::string name_;
};

TEST(FlashNext, RefusesHashConstantsThatDoNotFollowFromItsConfig) {
  const Checkpoint checkpoint = open_checkpoint(project_path("tests/golden/qwen4_exp/mlx4"));
  const auto backend = backend::make_cpu_backend(1);
  for (const char* name : {"layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"}) {
    const std::string full = std::string("language_model.model.layers.1.ple.ple_embedding.") + name;
    const ChangedStore changed(*checkpoint.store, full);
    EXPECT_TRUE(contains(
        problem_of([&] { checkpoint.family->load(checkpoint.config.json, changed, *backend, kMostRows); }), full));
  }
}

// ---- The published checkpoint ----

json published_config(bool packed) {
  json text = json::parse(R"({
    "model_type": "qwen4_exp_text", "dtype": "bfloat16", "hidden_size": 2560, "num_hidden_layers": 48,
    "full_attention_interval": 4, "vocab_size": 248320, "tie_word_embeddings": false, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "attention_bias": false, "attention_dropout": 0.0, "use_cache": true,
    "max_position_embeddings": 262144, "num_attention_heads": 24, "num_key_value_heads": 2, "head_dim": 256,
    "partial_rotary_factor": 0.25, "rope_parameters": {"rope_type": "default", "rope_theta": 10000000,
      "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10], "mrope_interleaved": true},
    "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048,
    "indexer_compress_ratio": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "output_gate_type": "sigmoid", "mamba_ssm_dtype": "float32", "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640, "norm_topk_prob": true, "hc_count": 4,
    "hc_lowrank": 320, "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4, "ngram_size": 3,
    "heads_per_ngram": 8, "ngram_vocab_size_base": 20000000, "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 128, "eos_token_id": 248044, "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": false, "mtp": {"hybrid": true, "layer_types": ["full_attention"],
      "num_hidden_layers": 1, "rope_theta": 10000000, "mtp_use_hidden_state_from_layer": null}
  })");
  for (int layer = 0; layer < 48; ++layer)
    text["layer_types"].push_back(layer % 4 == 3 ? "full_attention" : "linear_attention");
  json config = {{"architectures", {"Qwen4ExpForConditionalGeneration"}},
                 {"model_type", "qwen4_exp"},
                 {"language_model_only", false},
                 {"vision_config", {{"model_type", "qwen4_exp_vision"}, {"depth", 27}, {"hidden_size", 1152}}},
                 {"text_config", text}};
  if (packed) config["quantization"] = {{"group_size", 32}, {"bits", 4}, {"mode", "affine"}};
  return config;
}

/// Headers of one layout; `packed`: the MLX conversion, else the original.
struct PublishedHeaders {
  explicit PublishedHeaders(bool is_packed) : packed(is_packed) {}

  void matrix(const std::string& module, std::vector<int64_t> shape) {
    packed ? store.packed(module, std::move(shape), 4, 32) : store.bf16(module + ".weight", std::move(shape));
  }
  void vectors(const std::string& prefix, std::initializer_list<const char*> names, int64_t width) {
    for (const char* name : names) store.bf16(prefix + name + ".weight", {width});
  }
  void convolution(const std::string& name, int64_t channels) {
    store.bf16(name, packed ? std::vector<int64_t>{channels, 4, 1} : std::vector<int64_t>{channels, 1, 4});
  }
  void connection(const std::string& module, bool injects) {
    store.bf16(module + ".hc_norm.weight", {10240});
    matrix(module + ".input_mix_weight_down", {320, 10240});
    matrix(module + ".input_mix_weight_up", {10240, 320});
    if (injects) matrix(module + ".block_inject_weight", {4, 10240});
  }
  void attention(const std::string& prefix) {
    matrix(prefix + "q_proj", {12288, 2560});
    matrix(prefix + "k_proj", {512, 2560});
    matrix(prefix + "v_proj", {512, 2560});
    matrix(prefix + "o_proj", {2560, 6144});
    matrix(prefix + "indexer.index_qk_proj", {640, 2560});
    vectors(prefix, {"q_norm", "k_norm"}, 256);
    vectors(prefix, {"indexer.q_layernorm", "indexer.k_layernorm"}, 128);
  }
  void delta(const std::string& prefix) {
    matrix(prefix + "in_proj_qkv", {10240, 2560});
    matrix(prefix + "in_proj_z", {6144, 2560});
    matrix(prefix + "in_proj_b", {48, 2560});
    matrix(prefix + "in_proj_a", {48, 2560});
    matrix(prefix + "out_proj", {2560, 6144});
    store.bf16(prefix + "A_log", {48});
    store.bf16(prefix + "dt_bias", {48});
    convolution(prefix + "conv1d.weight", 10240);
    vectors(prefix, {"norm"}, 128);
  }
  void experts(const std::string& prefix) {
    store.bf16(prefix + "gate.weight", {512, 2560});
    if (packed) {
      matrix(prefix + "switch_mlp.gate_proj", {512, 640, 2560});
      matrix(prefix + "switch_mlp.up_proj", {512, 640, 2560});
      matrix(prefix + "switch_mlp.down_proj", {512, 2560, 640});
    } else {
      store.bf16(prefix + "experts.gate_up_proj", {512, 1280, 2560});
      store.bf16(prefix + "experts.down_proj", {512, 2560, 640});
    }
    matrix(prefix + "shared_expert.gate_proj", {640, 2560});
    matrix(prefix + "shared_expert.up_proj", {640, 2560});
    matrix(prefix + "shared_expert.down_proj", {2560, 640});
    matrix(prefix + "shared_expert_gate", {1, 2560});
  }
  void layer(const std::string& prefix, bool attends) {
    connection(prefix + "attn_hyper_connection", true);
    connection(prefix + "mlp_hyper_connection", true);
    attends ? attention(prefix + "self_attn.") : delta(prefix + "linear_attn.");
    experts(prefix + "mlp.");
  }
  void ngrams(const std::string& prefix) {
    matrix(prefix + "key_proj", {10240, 2560});
    matrix(prefix + "value_proj", {2560, 2560});
    vectors(prefix, {"norm_key", "norm_query", "norm_conv"}, 10240);
    convolution(prefix + "conv1d.weight", 10240);
    for (int shard = 0; shard < 128; ++shard)
      matrix(prefix + "ple_embedding.ngram_embedding.shard_" + std::to_string(shard), {2500012, 160});
    store.add(prefix + "ple_embedding.layer_multipliers", format::DataType::i64, {3});
    store.add(prefix + "ple_embedding.ngram_heads_vocab_sizes", format::DataType::i64, {16});
    store.add(prefix + "ple_embedding.ngram_heads_offsets", format::DataType::i64, {16});
  }
  void model() {
    const std::string root = packed ? "language_model.model." : "model.language_model.";
    matrix(root + "embed_tokens", {248320, 2560});
    matrix(packed ? "language_model.lm_head" : "lm_head", {248320, 2560});
    connection(root + "hyper_connection_mixer", false);
    for (int i = 0; i < 48; ++i) layer(root + "layers." + std::to_string(i) + ".", i % 4 == 3);
    ngrams(root + "layers.1.ple.");
  }
  void mtp() {
    const std::string prefix = packed ? "language_model.mtp." : "mtp.";
    vectors(prefix, {"pre_fc_norm_embedding"}, 2560);
    vectors(prefix, {"pre_fc_norm_hidden"}, 10240);
    matrix(prefix + "fc_embedding", {2560, 2560});
    matrix(prefix + "fc_hidden", {2560, 2560});
    connection(prefix + "hyper_connection_mixer", false);
    layer(prefix + "layers.0.", true);
  }

  HeaderStore store;
  bool packed;
};

std::vector<std::string> check_headers(const json& config, const HeaderStore& store) {
  const Family& family = require_family(config);
  return check_inventory(family.inventory(config, store.names()), family.skipped, store,
                         format::Quantization::parse(config));
}

TEST(FlashNextInventory, PackedInFourBits) {
  const json config = published_config(true);
  PublishedHeaders headers(true);
  headers.model();
  EXPECT_EQ(problem_of([&] { check_headers(config, headers.store); }), "");
  headers.mtp();
  EXPECT_EQ(problem_of([&] { check_headers(config, headers.store); }), "");
  const auto counted =
      count_bytes(require_family(config).inventory(config, headers.store.names()), format::Quantization::parse(config));
  EXPECT_EQ(counted.total, headers.store.bytes());
  headers.store.bf16("vision_tower.blocks.0.attn.qkv.weight", {3456, 1152});
  const std::vector<std::string> notes = check_headers(config, headers.store);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_TRUE(contains(notes.front(), "vision tower"));
  // The published repository takes 105.4 GiB with 0.898 GB of vision tower.
  EXPECT_NEAR((static_cast<double>(counted.total) + 0.898e9) / 1073741824.0, 105.4, 0.1);
}

TEST(FlashNextInventory, SizesFromItsConfigAlone) {
  const json config = published_config(true);
  const Family& family = require_family(config);
  const ModelInfo info = family.describe(config);
  EXPECT_EQ(info.layers, 48);
  EXPECT_TRUE(info.draft_head);
  EXPECT_EQ(info.hidden_width(), 10240);
  // What the reference measured that a token reads: 4.26 GB.
  EXPECT_NEAR(static_cast<double>(info.decode_bytes), 4.26e9, 0.02e9);
  ASSERT_EQ(info.notes.size(), 1U);
  EXPECT_TRUE(contains(info.notes.front(), "n-gram table (32.000 GB)")) << info.notes.front();
  const backend::CacheLayout layout = family.cache_layout(config);
  // Keys, values and index keys of 12 layers; the pooled key of a block stands in its last index key's place.
  EXPECT_EQ(paged_values(layout), 12 * (1024 + 128));
  EXPECT_EQ(state_values(layout), 36 * (48LL * 128 * 128 + 3 * 10240) + 9 * 10240);
}

TEST(FlashNextInventory, Original) {
  const json config = published_config(false);
  PublishedHeaders headers(false);
  headers.model();
  headers.mtp();
  EXPECT_EQ(problem_of([&] { check_headers(config, headers.store); }), "");
  // 359,999,963,128 bytes are published, 897,899,504 of them the vision tower: equal to 1e-7.
  EXPECT_NEAR(static_cast<double>(headers.store.bytes()), 359'999'963'128.0 - 897'899'504.0, 4e4);
}

TEST(FlashNextInventory, NamesWhatIsWrong) {
  const json config = published_config(true);
  PublishedHeaders headers(true);
  headers.model();
  headers.store.remove("language_model.model.layers.5.attn_hyper_connection.hc_norm.weight");
  headers.store.remove("language_model.model.layers.1.ple.ple_embedding.ngram_embedding.shard_127.scales");
  headers.matrix("language_model.model.layers.3.self_attn.q_proj", {6144, 2560});
  headers.store.bf16("language_model.model.norm.weight", {2560});
  const std::string problems = problem_of([&] { check_headers(config, headers.store); });
  for (const char* part : {"layers.5.attn_hyper_connection.hc_norm.weight is missing", "shard_127",
                           "layers.3.self_attn.q_proj", "language_model.model.norm.weight"})
    EXPECT_TRUE(contains(problems, part)) << problems;
}

TEST(FlashNextInventory, RefusesWhatItDoesNotServe) {
  json config = published_config(true);
  config["text_config"]["indexer_kv_heads"] = 2;
  config["text_config"]["ple_layer_ids"] = {2, 5};
  config["text_config"]["layer_types"][3] = "sliding_attention";
  config["text_config"]["output_gate_type"] = "tanh";
  const std::string problems = problem_of([&] { require_family(config).describe(config); });
  for (const char* field : {"indexer_kv_heads", "ple_layer_ids", "sliding_attention", "output_gate_type"})
    EXPECT_TRUE(contains(problems, field)) << problems;
}

TEST(FlashNextNgrams, RowsOfThePublishedCheckpoint) {
  const qwen4_exp::Config config = qwen4_exp::parse_config(published_config(true));
  const backend::NgramHashing hashing = qwen4_exp::derive_hashing(*config.ngram, config.vocabulary);
  EXPECT_EQ(hashing.multipliers, (std::vector<int64_t>{23703573157769, 20109073645365, 8052911324071}));
  EXPECT_EQ(hashing.sizes.back(), 20000171);
  EXPECT_EQ(hashing.offsets.back(), 300001275);
  EXPECT_EQ(qwen4_exp::shard_rows(*config.ngram), std::vector<int64_t>(128, 2500012));
  backend::Plan plan;
  plan.begin_sequence(0, 0, {}, true);
  plan.add_row(248045, 0, -1, false);
  plan.add_row(846, 1, 0, false);
  std::vector<int64_t> rows(16);
  hash_ngrams(hashing, plan, 0, rows);
  EXPECT_EQ(rows, (std::vector<int64_t>{13981229, 30076798, 49239434, 61315716, 98540601, 111186732, 120378863,
                                        146384625, 173637879, 184336749, 217808755, 222173721, 249579227, 277180543,
                                        299757935, 312970430}));
  hash_ngrams(hashing, plan, 1, rows);
  EXPECT_EQ(rows, (std::vector<int64_t>{4908448, 36872991, 46611251, 64451521, 83649409, 110850044, 122402102,
                                        159207155, 170314019, 195445770, 214314282, 239389039, 254862662, 271565595,
                                        284073139, 308659387}));
}

}  // namespace
}  // namespace tensorfold::families
