// Weights that no file holds: random values of given shapes, made on demand. Speed measurements, fuzzing of real widths
// and tests need no checkpoint then. The same seed gives the same bytes, whatever is read in which order or pieces.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "format/synthetic_values.h"
#include "format/tensor_store.h"

namespace tensorfold::format {

class SyntheticStore : public TensorStore {
 public:
  explicit SyntheticStore(uint64_t seed) : seed_(seed) {}

  /// "<module>.weight" as bf16, or with `affine` the packed triple with bf16 scales and biases. Weights are uniform
  /// with mean 0 and variance 1/inputs, so that a product keeps the magnitude of its input. Scales of a matrix differ
  /// by up to a quarter either way, some negative, as encoders write them. `inputs` must be a multiple of the group
  /// size.
  void add_linear(const std::string& module, std::vector<int64_t> shape, std::optional<AffineFormat> affine);
  /// A small bf16 tensor of values uniform in [center - spread, center + spread].
  void add_vector(const std::string& name, std::vector<int64_t> shape, float center, float spread);

  [[nodiscard]] const TensorInfo* find(std::string_view name) const override;
  [[nodiscard]] std::vector<std::string> names() const override;
  /// Makes the bytes when they are read.
  [[nodiscard]] std::shared_ptr<const TensorBytes> keep_open(const TensorInfo& tensor) const override;
  void read(const TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const override;
  [[nodiscard]] const SyntheticTensor* recipe(const TensorInfo& tensor) const override;

 private:
  using Content = SyntheticTensor::Content;
  struct Recipe {
    TensorInfo info;
    SyntheticTensor values;
  };
  class Made;
  void add(Recipe recipe);
  static void make_bytes(const Recipe& recipe, uint64_t offset, std::span<std::byte> out);
  [[nodiscard]] const Recipe& recipe_of(const TensorInfo& tensor) const;

  uint64_t seed_;
  std::map<std::string, Recipe, std::less<>> recipes_;
};

}  // namespace tensorfold::format
