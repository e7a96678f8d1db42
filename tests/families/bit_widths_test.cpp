// Every packed width that conversions use goes through every family's forward as the same weights in fp32 do: the
// golden checkpoints' configs with other widths, random weights, and a plain unpacker of bits as the reference.
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "families/checkpoint.h"
#include "families/sequence_runner.h"
#include "format/floats.h"
#include "shared_data.h"

namespace tensorfold::families {
namespace {

using nlohmann::json;
using testing::SequenceRunner;

constexpr int32_t kMostRows = 64;

/// A packed checkpoint's modules as fp32 matrices, scale * code + bias; everything else as it is.
class UnpackedStore : public format::TensorStore {
 public:
  UnpackedStore(const format::TensorStore& packed, const std::vector<TensorSpec>& inventory) : packed_(packed) {
    for (const TensorSpec& spec : inventory) {
      if (packed.find(spec.module + ".scales") != nullptr) unpack(spec);
    }
  }
  [[nodiscard]] size_t unpacked() const { return matrices_.size(); }

  [[nodiscard]] const format::TensorInfo* find(std::string_view name) const override {
    const auto matrix = matrices_.find(name);
    if (matrix != matrices_.end()) return &matrix->second.info;
    return name.ends_with(".scales") || name.ends_with(".biases") ? nullptr : packed_.find(name);
  }
  [[nodiscard]] std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const std::string& name : packed_.names()) {
      if (find(name) != nullptr) names.push_back(name);
    }
    return names;
  }
  void read(const format::TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const override {
    const auto matrix = matrices_.find(tensor.name);
    if (matrix == matrices_.end()) return packed_.read(tensor, offset, out);
    std::memcpy(out.data(), reinterpret_cast<const std::byte*>(matrix->second.values.data()) + offset, out.size());
  }

 private:
  struct Matrix {
    format::TensorInfo info;
    std::vector<float> values;
  };

  [[nodiscard]] std::vector<std::byte> bytes_of(const std::string& name) const {
    const format::TensorInfo* tensor = packed_.find(name);
    std::vector<std::byte> bytes(tensor->bytes);
    packed_.read(*tensor, 0, bytes);
    return bytes;
  }
  [[nodiscard]] std::vector<float> floats_of(const std::string& name) const {
    const std::vector<std::byte> bytes = bytes_of(name);
    std::vector<float> values(bytes.size() / 2);
    format::widen(format::DataType::bf16, bytes, values);
    return values;
  }

  /// Bit i of code k of a row is bit k * bits + i of the row's little-endian words.
  void unpack(const TensorSpec& spec) {
    const std::vector<float> scales = floats_of(spec.module + ".scales");
    const std::vector<float> biases = floats_of(spec.module + ".biases");
    const std::vector<std::byte> words = bytes_of(spec.module + ".weight");
    const auto inputs = static_cast<size_t>(spec.shape.back());
    const auto groups = static_cast<size_t>(packed_.find(spec.module + ".scales")->shape.back());
    const size_t rows = scales.size() / groups;
    const size_t bits = words.size() * 8 / (rows * inputs);
    Matrix matrix;
    for (size_t row = 0; row < rows; ++row) {
      for (size_t k = 0; k < inputs; ++k) {
        uint32_t code = 0;
        for (size_t bit = 0; bit < bits; ++bit) {
          const size_t place = (row * inputs + k) * bits + bit;
          code |= (std::to_integer<uint32_t>(words[place / 8]) >> place % 8 & 1U) << bit;
        }
        const size_t pair = row * groups + k * groups / inputs;
        matrix.values.push_back(static_cast<float>(code) * scales[pair] + biases[pair]);
      }
    }
    const std::string name = spec.module + ".weight";
    matrix.info = {name, format::DataType::f32, spec.shape, matrix.values.size() * sizeof(float), -1, 0};
    matrices_[name] = std::move(matrix);
  }

  const format::TensorStore& packed_;
  std::map<std::string, Matrix, std::less<>> matrices_;
};

/// How a checkpoint is packed; `mixed`: two modules of the inventory differ, one of them not packed at all.
struct Packing {
  int bits = 4;
  int group = 64;
  bool mixed = false;
};

json config_of(const std::string& family, const std::optional<Packing>& packing) {
  std::ifstream file(testing::project_path("tests/golden/" + family + "/mlx4/config.json"));
  json config = json::parse(file);
  config.erase("quantization");
  config.erase("quantization_config");
  if (!packing) return config;
  config["quantization"] = {{"bits", packing->bits}, {"group_size", packing->group}};
  if (!packing->mixed) return config;
  std::vector<std::string> modules;
  for (const TensorSpec& spec : require_family(config).inventory(config, {})) {
    if (spec.role == TensorRole::linear && !spec.never_packed && spec.shape.back() % 32 == 0)
      modules.push_back(spec.module);
  }
  config["quantization"][modules.at(0)] = {{"bits", 8}, {"group_size", 32}};
  config["quantization"][modules.at(1)] = false;
  return config;
}

std::vector<float> logits_of(const json& config, const format::TensorStore& store, backend::Backend& backend) {
  const auto model = require_family(config).load(config, store, backend, kMostRows);
  SequenceRunner runner(backend, *model, kMostRows);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 40; ++i) tokens.push_back((11 + 37 * i * i) % 500);
  return runner.feed(tokens).values;
}

class BitWidths : public ::testing::TestWithParam<const char*> {};

TEST_P(BitWidths, GiveTheLogitsOfTheSameWeightsUnpacked) {
  const std::string family = GetParam();
  const auto backend = backend::make_cpu_backend(0);
  for (const Packing& packing : {Packing{2, 64}, Packing{3, 32}, Packing{4, 128}, Packing{5, 64}, Packing{6, 32},
                                 Packing{8, 128}, Packing{4, 64, true}}) {
    SCOPED_TRACE(std::to_string(packing.bits) + " bits in groups of " + std::to_string(packing.group));
    const json config = config_of(family, packing);
    const format::Quantization quantization = format::Quantization::parse(config);
    const std::vector<TensorSpec> inventory = require_family(config).inventory(config, {});
    const auto packed = make_synthetic_store(inventory, quantization, 7);
    check_inventory(inventory, require_family(config).skipped, *packed, quantization);
    const UnpackedStore plain(*packed, inventory);
    ASSERT_GT(plain.unpacked(), 8U);
    const std::vector<float> logits = logits_of(config, *packed, *backend);
    const std::vector<float> expected = logits_of(config_of(family, {}), plain, *backend);
    double squares = 0.0;
    double largest = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double difference = std::abs(static_cast<double>(logits.at(i)) - static_cast<double>(expected[i]));
      if (!(difference <= largest)) largest = difference;
      squares += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    }
    EXPECT_LT(largest, 1e-3 * std::sqrt(squares / static_cast<double>(expected.size())));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, BitWidths,
                         ::testing::Values("qwen3_5", "nemotron_h", "gemma4", "qwen4_exp", "glm5_next"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace tensorfold::families
