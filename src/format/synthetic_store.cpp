#include "format/synthetic_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "format/floats.h"

namespace tensorfold::format {
namespace {

using synthetic::kStep;
using synthetic::mix;

uint64_t key_of(uint64_t seed, std::string_view name) {
  uint64_t key = mix(seed + kStep);
  for (const char character : name) key = mix((key ^ static_cast<unsigned char>(character)) + kStep);
  return key;
}

uint64_t elements(const std::vector<int64_t>& shape) {
  uint64_t count = 1;
  for (const int64_t size : shape) count *= static_cast<uint64_t>(size);
  return count;
}

}  // namespace

void SyntheticStore::add(Recipe recipe) {
  recipe.info.bytes = elements(recipe.info.shape) * static_cast<uint64_t>(size_of(recipe.info.type));
  const std::string name = recipe.info.name;
  recipes_.insert_or_assign(name, std::move(recipe));
}

void SyntheticStore::add_linear(const std::string& module, std::vector<int64_t> shape,
                                std::optional<AffineFormat> affine) {
  check(shape.size() >= 2, "a matrix has two dimensions or more");
  const int64_t inputs = shape.back();
  const uint64_t key = key_of(seed_, module);
  const float deviation = 1.0F / std::sqrt(static_cast<float>(inputs));
  if (!affine) {
    // A uniform value of spread s has deviation s / sqrt(3).
    add({{module + ".weight", DataType::bf16, std::move(shape)},
         {Content::uniform, key, 0.0F, deviation * 1.7320508F}});
    return;
  }
  check(inputs % affine->group_size == 0, "inputs are whole groups");
  const auto levels = static_cast<float>(1 << affine->bits);
  // Codes are uniform over `levels` values: deviation sqrt((levels^2 - 1) / 12).
  const float scale = deviation / std::sqrt((levels * levels - 1.0F) / 12.0F);
  std::vector<int64_t> packed = shape;
  packed.back() = inputs * affine->bits / 32;
  std::vector<int64_t> groups = std::move(shape);
  groups.back() = inputs / affine->group_size;
  add({{module + ".weight", DataType::u32, std::move(packed)}, {Content::words, mix(key), 0.0F, 0.0F}});
  add({{module + ".scales", DataType::bf16, groups}, {Content::scales, key, scale, 0.0F}});
  add({{module + ".biases", DataType::bf16, groups}, {Content::biases, key, scale, (levels - 1.0F) / 2.0F}});
}

void SyntheticStore::add_vector(const std::string& name, std::vector<int64_t> shape, float center, float spread) {
  add({{name, DataType::bf16, std::move(shape)}, {Content::uniform, key_of(seed_, name), center, spread}});
}

const TensorInfo* SyntheticStore::find(std::string_view name) const {
  const auto found = recipes_.find(name);
  return found == recipes_.end() ? nullptr : &found->second.info;
}

std::vector<std::string> SyntheticStore::names() const {
  std::vector<std::string> names;
  for (const auto& [name, recipe] : recipes_) names.push_back(name);
  return names;
}

const SyntheticStore::Recipe& SyntheticStore::recipe_of(const TensorInfo& tensor) const {
  const auto found = recipes_.find(tensor.name);
  check(found != recipes_.end(), "a tensor is read from its own store");
  return found->second;
}

const SyntheticTensor* SyntheticStore::recipe(const TensorInfo& tensor) const { return &recipe_of(tensor).values; }

void SyntheticStore::read(const TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const {
  make_bytes(recipe_of(tensor), offset, out);
}

/// A recipe that outlives its store.
class SyntheticStore::Made final : public TensorBytes {
 public:
  explicit Made(Recipe recipe) : recipe_(std::move(recipe)) {}
  void read(uint64_t offset, std::span<std::byte> out) const override { make_bytes(recipe_, offset, out); }

 private:
  Recipe recipe_;
};

std::shared_ptr<const TensorBytes> SyntheticStore::keep_open(const TensorInfo& tensor) const {
  return std::make_shared<Made>(recipe_of(tensor));
}

void SyntheticStore::make_bytes(const Recipe& recipe, uint64_t offset, std::span<std::byte> out) {
  check(offset <= recipe.info.bytes && out.size() <= recipe.info.bytes - offset, "a read stays inside its tensor");
  // Bytes are made in blocks of 8 at absolute offsets, so that pieces agree with the whole.
  for (size_t done = 0; done < out.size();) {
    const uint64_t block = (offset + done) / 8;
    const uint64_t inside = (offset + done) % 8;
    const uint64_t bits = synthetic::block_of(recipe.values, block);
    const size_t count = std::min<size_t>(8 - inside, out.size() - done);
    std::memcpy(out.data() + done, reinterpret_cast<const std::byte*>(&bits) + inside, count);
    done += count;
  }
}

}  // namespace tensorfold::format
