// Converting each golden original gives the golden MLX checkpoint, bit for bit in every packed tensor.
#include "families/conversion.h"

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint_files.h"
#include "families/checkpoint.h"
#include "families/conversion_recipe.h"
#include "families/edited_store.h"
#include "families/golden_file.h"
#include "format/floats.h"
#include "shared_data.h"

namespace tensorfold::families {
namespace {

using nlohmann::json;
using testing::GoldenFile;
using testing::TemporaryDirectory;

json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

std::vector<std::byte> bytes_of(const format::TensorStore& store, const format::TensorInfo& tensor) {
  std::vector<std::byte> bytes(tensor.bytes);
  store.read(tensor, 0, bytes);
  return bytes;
}

std::vector<float> values_of(const format::TensorStore& store, const format::TensorInfo& tensor) {
  std::vector<float> values(tensor.bytes / static_cast<uint64_t>(format::size_of(tensor.type)));
  format::widen(tensor.type, bytes_of(store, tensor), values);
  return values;
}

class Conversion : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const auto original = testing::shared_path("golden/" + GetParam() + "/hf");
    if (!original) GTEST_SKIP() << "no shared folder with golden/" << GetParam() << "/hf";
    original_ = *original;
  }
  /// Converts with the golden checkpoint's own block; small shards, so that there are several.
  void convert(const json& quantization) {
    config_ = read_json(original_ / "config.json");
    config_["quantization"] = quantization;
    const auto store = format::SafetensorsStore::open_directory(original_);
    const auto tensors =
        plan_conversion(require_family(config_), config_, *store, format::Quantization::parse(config_));
    result_ = write_conversion(tensors, *store, directory_.path(), 200'000, {});
    std::ofstream(directory_.path() / "config.json") << config_;
  }
  [[nodiscard]] std::filesystem::path golden() const {
    return testing::project_path("tests/golden/" + GetParam() + "/mlx4");
  }

  std::filesystem::path original_;
  TemporaryDirectory directory_;
  json config_;
  ConversionResult result_;
};

TEST_P(Conversion, ReproducesTheGoldenCheckpoint) {
  convert(read_json(golden() / "config.json")["quantization"]);
  EXPECT_GT(result_.shards, 2);
  const auto expected = format::SafetensorsStore::open_directory(golden());
  const auto actual = format::SafetensorsStore::open_directory(directory_.path());
  EXPECT_EQ(actual->names(), expected->names());
  int64_t packed = 0;
  for (const std::string& name : expected->names()) {
    const format::TensorInfo& wanted = *expected->find(name);
    const format::TensorInfo* made = actual->find(name);
    ASSERT_NE(made, nullptr) << name;
    EXPECT_EQ(made->shape, wanted.shape) << name;
    const bool of_module =
        name.ends_with(".scales") || name.ends_with(".biases") || wanted.type == format::DataType::u32;
    if (of_module) {
      ++packed;
      EXPECT_EQ(made->type, wanted.type) << name;
      EXPECT_TRUE(bytes_of(*actual, *made) == bytes_of(*expected, wanted)) << name;
    } else if (format::is_float(wanted.type)) {
      EXPECT_EQ(values_of(*actual, *made), values_of(*expected, wanted)) << name;
    }
  }
  EXPECT_EQ(packed, 3 * result_.packed);
}

TEST_P(Conversion, TheResultLoadsAndGivesTheGoldenLogits) {
  convert(read_json(golden() / "config.json")["quantization"]);
  const auto backend = backend::make_cpu_backend(0);
  const auto model = load_model(directory_.path(), *backend, 256).model;
  const GoldenFile file(testing::project_path("tests/golden/" + GetParam() + "/golden.safetensors"));
  testing::SequenceRunner runner(*backend, *model, 256);
  const testing::Rows logits = runner.feed(file.ids("hf.1.input_ids"));
  const testing::Rows expected = file.rows("mlx4.1.logits");
  for (size_t i = 0; i < expected.values.size(); ++i) ASSERT_NEAR(logits.values[i], expected.values[i], 2e-3) << i;
}

TEST_P(Conversion, AMixedRecipePacksSomeModulesWiderAndLoads) {
  const json plain = read_json(original_ / "config.json");
  const json block = make_quantization(require_family(plain), plain, 4, 32, "mixed_3_6");
  EXPECT_EQ(block["bits"], 3);
  convert(block);
  const auto backend = backend::make_cpu_backend(0);
  EXPECT_NO_THROW(load_model(directory_.path(), *backend, 32));
  EXPECT_THROW(make_quantization(require_family(plain), plain, 4, 64, "mixed_1_9"), Error);
}

INSTANTIATE_TEST_SUITE_P(Families, Conversion,
                         ::testing::Values("qwen3_5", "nemotron_h", "gemma4", "qwen4_exp", "glm5_next"),
                         [](const auto& family) { return family.param; });

TEST(ConversionPlan, NamesWhatHasNoSource) {
  const auto directory = testing::project_path("tests/golden/glm5_next/mlx4");
  const json config = format::load_config(directory).json;
  testing::EditedStore store;
  const float one = 1.0F;
  std::vector<std::byte> bytes(4);
  std::memcpy(bytes.data(), &one, 4);
  store.put("model.language_model.embed_tokens.weight", format::DataType::f32, {1, 1}, bytes);
  try {
    plan_conversion(require_family(config), config, store, format::Quantization::parse(config));
    FAIL() << "planned";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("layers.3.self_attn.kv_b_proj has no source"), std::string::npos) << text;
    EXPECT_NE(text.find("embed_tokens.weight does not have the shape"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tensorfold::families
