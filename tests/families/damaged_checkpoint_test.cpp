// A corpus of damaged checkpoints, each a small change to a good one (tests/golden/qwen3_5/mlx4): opening one gives a
// single clear line that names what is wrong, before any tensor is loaded.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint_files.h"
#include "families/checkpoint.h"
#include "shared_data.h"

namespace tensorfold::families {
namespace {

using nlohmann::json;
using ::tensorfold::testing::read_file;
using ::tensorfold::testing::safetensors_bytes;
using ::tensorfold::testing::write_file;
using ::testing::HasSubstr;

/// A checkpoint in memory, easy to damage.
struct Parts {
  json config;
  json index;
  json header;
  std::string data;
  std::string generation;
};

const Parts& good_parts() {
  static const Parts parts = [] {
    const auto source = testing::project_path("tests/golden/qwen3_5/mlx4");
    Parts good;
    good.config = json::parse(read_file(source / "config.json"));
    good.index = json::parse(read_file(source / "model.safetensors.index.json"));
    const std::string file = read_file(source / "model.safetensors");
    size_t length = 0;
    for (size_t i = 0; i < 8; ++i) length |= static_cast<size_t>(static_cast<unsigned char>(file[i])) << (8 * i);
    good.header = json::parse(file.substr(8, length));
    good.data = file.substr(8 + length);
    good.generation = R"({"eos_token_id":[2,0]})";
    return good;
  }();
  return parts;
}

void write_checkpoint(const Parts& parts, const std::filesystem::path& directory) {
  write_file(directory / "config.json", parts.config.dump());
  write_file(directory / "generation_config.json", parts.generation);
  write_file(directory / "model.safetensors.index.json", parts.index.dump());
  write_file(directory / "model.safetensors", safetensors_bytes(parts.header.dump(), parts.data));
}

void rename_tensor(Parts& parts, const std::string& from, const std::string& to) {
  parts.header[to] = parts.header[from];
  parts.header.erase(from);
  parts.index["weight_map"].erase(from);
  parts.index["weight_map"][to] = "model.safetensors";
}

/// Moves the tensors' bytes together: the format leaves none to nobody.
void close_holes(Parts& parts) {
  std::string data;
  for (auto& [name, tensor] : parts.header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = tensor["data_offsets"][0];
    const size_t end = tensor["data_offsets"][1];
    tensor["data_offsets"] = {data.size(), data.size() + end - begin};
    data += parts.data.substr(begin, end - begin);
  }
  parts.data = data;
}

void remove_tensor(Parts& parts, const std::string& name) {
  parts.header.erase(name);
  parts.index["weight_map"].erase(name);
  close_holes(parts);
}

/// Cuts the first dimension, and the tensor's bytes with it.
void shorten(Parts& parts, const std::string& name) {
  json& tensor = parts.header[name];
  const int64_t rows = tensor["shape"][0];
  const int64_t begin = tensor["data_offsets"][0];
  const int64_t end = tensor["data_offsets"][1];
  tensor["shape"][0] = rows - 1;
  tensor["data_offsets"][1] = end - (end - begin) / rows;
  close_holes(parts);
}

struct Damage {
  const char* name;
  std::function<void(Parts&)> apply;
  std::vector<std::string> expected;  ///< parts of the message
  ErrorKind kind = ErrorKind::corrupt_file;
};

void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

const std::string kRoot = "language_model.model.";
const std::string kUp = kRoot + "layers.0.mlp.up_proj";
const std::string kNorm = kRoot + "norm.weight";
const std::string kDelta = kRoot + "layers.0.linear_attn.";

Damage text_field(const char* name, const char* field, json value, const char* expected) {
  return {name,
          [field, value](Parts& p) { p.config["text_config"][field] = value; },
          {field, expected},
          ErrorKind::unsupported};
}

Damage block(const char* name, json value, std::vector<std::string> expected,
             ErrorKind kind = ErrorKind::corrupt_file) {
  return {name, [value](Parts& p) { p.config["quantization"] = value; }, std::move(expected), kind};
}

const std::vector<Damage>& corpus() {
  static const std::vector<Damage> damages = {
      // config.json: the family and its fields.
      {"model_type_absent",
       [](Parts& p) {
         p.config.erase("model_type");
         p.config["text_config"].erase("model_type");
       },
       {"model_type (absent)", "qwen3_5"},
       ErrorKind::unsupported},
      {"model_type_unknown",
       [](Parts& p) {
         p.config["model_type"] = "gpt9";
         p.config["text_config"].erase("model_type");
       },
       {"\"gpt9\""},
       ErrorKind::unsupported},
      {"model_type_number",
       [](Parts& p) {
         p.config["model_type"] = 3;
         p.config["text_config"].erase("model_type");
       },
       {"model_type 3"},
       ErrorKind::unsupported},
      {"several_fields",
       [](Parts& p) {
         p.config["text_config"].erase("hidden_size");
         p.config["text_config"]["head_dim"] = -1;
         p.config["text_config"]["attention_bias"] = true;
       },
       {"hidden_size is missing", "head_dim is -1", "attention_bias true is not served"},
       ErrorKind::unsupported},
      text_field("hidden_size_text", "hidden_size", "128", "\"128\", not an integer"),
      text_field("hidden_size_fraction", "hidden_size", 128.5, "128.5, not an integer"),
      text_field("hidden_size_list", "hidden_size", json::array({1}), "a list, not an integer"),
      text_field("hidden_size_huge", "hidden_size", 9'000'000'000'000'000'000, "not an integer from"),
      text_field("hidden_size_unsigned", "hidden_size", 18446744073709551615U, "not an integer from"),
      text_field("layers_zero", "num_hidden_layers", 0, "0, not an integer from 1"),
      text_field("layers_many", "num_hidden_layers", 1'000'000'000, "not an integer from"),
      text_field("vocabulary_negative", "vocab_size", -5, "-5, not an integer"),
      text_field("heads_odd", "num_key_value_heads", 3, "does not divide the heads"),
      text_field("delta_heads_odd", "linear_num_key_heads", 4, "does not divide linear_num_value_heads"),
      text_field("layer_types_short", "layer_types", json::array({"full_attention"}), "names 1 layers"),
      text_field("layer_types_unknown", "layer_types", json::array({"x", "x", "x", "x"}), "has x"),
      text_field("layer_types_numbers", "layer_types", json::array({1, 2, 3, 4}), "not a list of strings"),
      text_field("activation", "hidden_act", "gelu", "\"gelu\" is not served"),
      text_field("epsilon_text", "rms_norm_eps", "tiny", "not a number"),
      text_field("interval_zero", "full_attention_interval", 0, "0, not an integer"),
      text_field("kernel_one", "linear_conv_kernel_dim", 1, "1, not an integer from 2"),
      text_field("tied_text", "tie_word_embeddings", "no", "not true or false"),
      {"rope_yarn",
       [](Parts& p) { p.config["text_config"]["rope_parameters"]["rope_type"] = "yarn"; },
       {"rope_type \"yarn\" is not served"},
       ErrorKind::unsupported},
      {"rope_factor",
       [](Parts& p) { p.config["text_config"]["rope_parameters"]["partial_rotary_factor"] = 2; },
       {"partial_rotary_factor is 2"},
       ErrorKind::unsupported},
      {"sizes_disagree",
       [](Parts& p) { p.config["text_config"]["intermediate_size"] = 256; },
       {kUp, "down_proj", "gate_proj"}},
      {"more_layers",
       [](Parts& p) {
         p.config["text_config"]["num_hidden_layers"] = 5;
         p.config["text_config"].erase("layer_types");
       },
       {"layers.4.input_layernorm.weight is missing", "layers.4.mlp.up_proj.weight is missing"}},
      {"fewer_layers",
       [](Parts& p) {
         p.config["text_config"]["num_hidden_layers"] = 3;
         p.config["text_config"].erase("layer_types");
       },
       {"unknown tensors", "layers.3.self_attn.q_proj.weight"}},
      {"end_token", [](Parts& p) { p.generation = R"({"eos_token_id":[2,"x"]})"; }, {"eos_token_id \"x\""}},
      {"generation_json", [](Parts& p) { p.generation = "{"; }, {"generation_config.json is not valid JSON"}},

      // The quantisation block.
      block("bits_seven", {{"bits", 7}, {"group_size", 64}}, {"bits 7"}),
      block("bits_text", {{"bits", "4"}}, {"bits \"4\""}),
      block("group_odd", {{"bits", 4}, {"group_size", 48}}, {"group_size 48"}),
      block("bits_disagree", {{"bits", 8}, {"group_size", 64}}, {kUp, "packed in 4 bit", "config.json says 8 and 64"}),
      block("group_disagrees", {{"bits", 4}, {"group_size", 32}}, {kUp, "config.json says 4 and 32"}),
      block("mode_foreign", {{"bits", 4}, {"mode", "mxfp4"}}, {"mxfp4"}, ErrorKind::unsupported),
      block("method_foreign", {{"bits", 4}, {"quant_method", "gptq"}}, {"gptq"}, ErrorKind::unsupported),
      block("block_list", json::array({4}), {"not an object"}),
      block("module_bits", {{"bits", 4}, {"group_size", 64}, {kUp, {{"bits", 8}}}}, {kUp, "config.json says 8 and 64"}),
      block("module_off", {{"bits", 4}, {"group_size", 64}, {kUp, false}}, {kUp, "says that it is not"}),
      block("module_empty", {{"bits", 4}, {"group_size", 64}, {kUp, json::object()}}, {kUp, "says that it is not"}),
      block("module_number", {{"bits", 4}, {"group_size", 64}, {kUp, 4}}, {kUp, "must be an object, true or false"}),
      block("module_alias", {{"bits", 4}, {"group_size", 64}, {kUp, true}, {"model.layers.0.mlp.up_proj", false}},
            {"disagree"}),
      {"block_absent",
       [](Parts& p) {
         p.config.erase("quantization");
         p.config.erase("quantization_config");
       },
       {kUp, "config.json says that it is not"}},

      // Tensors: names, shapes, dtypes.
      {"norm_missing", [](Parts& p) { remove_tensor(p, kNorm); }, {kNorm + " is missing"}},
      {"weight_missing", [](Parts& p) { remove_tensor(p, kUp + ".weight"); }, {kUp + ".weight is missing"}},
      {"scales_missing",
       [](Parts& p) { remove_tensor(p, kUp + ".scales"); },
       {kUp + ".weight has the dtype U32 and no scales"}},
      {"biases_missing", [](Parts& p) { remove_tensor(p, kUp + ".biases"); }, {kUp + ".biases is missing"}},
      {"head_missing",
       [](Parts& p) {
         for (const char* part : {"weight", "scales", "biases"}) {
           remove_tensor(p, std::string("language_model.lm_head.") + part);
         }
       },
       {"language_model.lm_head.weight is missing"}},
      {"two_missing",
       [](Parts& p) {
         remove_tensor(p, kNorm);
         remove_tensor(p, kDelta + "A_log");
       },
       {kNorm + " is missing", kDelta + "A_log is missing"}},
      {"misspelt",
       [](Parts& p) { rename_tensor(p, kNorm, kRoot + "nrom.weight"); },
       {kNorm + " is missing", "unknown tensors " + kRoot + "nrom.weight"}},
      {"unknown_bias", [](Parts& p) { rename_tensor(p, kNorm, kUp + ".bias"); }, {"unknown tensors", kUp + ".bias"}},
      {"control_characters", [](Parts& p) { rename_tensor(p, kNorm, "a\nb\x1b[31m"); }, {"a\\x0ab\\x1b[31m"}},
      {"no_layout",
       [](Parts& p) {
         for (const std::string& name : {kNorm}) rename_tensor(p, name, "norm.weight");
       },
       {kNorm + " is missing"}},
      {"norm_short", [](Parts& p) { shorten(p, kNorm); }, {kNorm + " has the shape [127] instead of [128]"}},
      {"weight_short", [](Parts& p) { shorten(p, kUp + ".weight"); }, {kUp, "do not fit [192, 128]"}},
      {"scales_short", [](Parts& p) { shorten(p, kUp + ".scales"); }, {kUp, "do not fit [192, 128]"}},
      {"biases_short", [](Parts& p) { shorten(p, kUp + ".biases"); }, {kUp + ".biases has the shape [191, 2]"}},
      {"convolution_short", [](Parts& p) { shorten(p, kDelta + "conv1d.weight"); }, {"conv1d.weight has the shape"}},
      {"convolution_turned",
       [](Parts& p) { p.header[kDelta + "conv1d.weight"]["shape"] = {4, 1280, 1}; },
       {"conv1d.weight has the shape [4, 1280, 1] instead of [1280, 4, 1]"}},
      {"weight_reshaped", [](Parts& p) { p.header[kUp + ".weight"]["shape"] = {192 * 16}; }, {kUp, "do not fit"}},
      {"weight_turned", [](Parts& p) { p.header[kUp + ".weight"]["shape"] = {16, 192}; }, {kUp, "do not fit"}},
      {"weight_float",
       [](Parts& p) { p.header[kUp + ".weight"]["dtype"] = "F32"; },
       {kUp + ".weight has scales but the dtype F32"}},
      {"scales_integers",
       [](Parts& p) { p.header[kUp + ".scales"]["dtype"] = "U16"; },
       {kUp + ".scales has the dtype U16"}},
      {"biases_other_float",
       [](Parts& p) { p.header[kUp + ".biases"]["dtype"] = "F16"; },
       {kUp + ".biases has the dtype F16, its scales BF16"}},
      {"norm_integers", [](Parts& p) { p.header[kNorm]["dtype"] = "I16"; }, {kNorm + " has the dtype I16"}},
      {"mtp_incomplete", [](Parts& p) { remove_tensor(p, "mtp.norm.weight"); }, {"mtp.norm.weight is missing"}},

      // Files.
      {"truncated",
       [](Parts& p) { p.data.resize(p.data.size() - 1); },
       {"1 bytes past the end of the file (truncated?)"}},
      {"hole",
       [](Parts& p) { p.header.erase(kNorm), p.index["weight_map"].erase(kNorm); },
       {"model.safetensors: ", "belong to no"}},
      {"many_unknown",
       [](Parts& p) {
         for (int i = 0; i < 1000; ++i)
           p.header["extra" + std::to_string(i)] = {{"dtype", "U8"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
       },
       {"unknown tensors extra", "and 960 more"}},
      {"empty_data", [](Parts& p) { p.data.clear(); }, {"past the end of the file", kNorm}},
      {"overlap",
       [](Parts& p) {
         p.header[kRoot + "layers.1.input_layernorm.weight"]["data_offsets"] = p.header[kNorm]["data_offsets"];
       },
       {"overlap", kNorm}},
      {"dtype_unknown", [](Parts& p) { p.header[kNorm]["dtype"] = "BF17"; }, {"unknown dtype BF17"}},
      {"shard_missing",
       [](Parts& p) { p.index["weight_map"][kNorm] = "model-00002-of-00002.safetensors"; },
       {"model-00002-of-00002.safetensors"}},
      {"index_escapes",
       [](Parts& p) { p.index["weight_map"][kNorm] = "../../etc/x.safetensors"; },
       {"is not the name of a safetensors file"}},
      {"index_empty", [](Parts& p) { p.index = json::object(); }, {"has no weight_map"}},
      {"index_wrong",
       [](Parts& p) { p.index["weight_map"]["ghost"] = "model.safetensors"; },
       {"places tensor ghost in model.safetensors"}},
  };
  return damages;
}

class DamagedCheckpoint : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedCheckpoint, GivesOneClearLine) {
  testing::TemporaryDirectory directory;
  Parts parts = good_parts();
  GetParam().apply(parts);
  write_checkpoint(parts, directory.path());
  try {
    open_checkpoint(directory.path());
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), GetParam().kind) << error.what();
    for (const std::string& expected : GetParam().expected) EXPECT_THAT(error.what(), HasSubstr(expected));
    for (const char character : std::string(error.what())) ASSERT_GE(character, 0x20) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Corpus, DamagedCheckpoint, ::testing::ValuesIn(corpus()),
                         [](const auto& damage) { return std::string(damage.param.name); });

TEST(DamagedCheckpointCorpus, TheUndamagedOneOpens) {
  testing::TemporaryDirectory directory;
  write_checkpoint(good_parts(), directory.path());
  const Checkpoint checkpoint = open_checkpoint(directory.path());
  EXPECT_EQ(checkpoint.family->model_type, "qwen3_5");
  EXPECT_THAT(checkpoint.notes, ::testing::IsEmpty());
  EXPECT_GE(corpus().size(), 60U);
}

}  // namespace
}  // namespace tensorfold::families
