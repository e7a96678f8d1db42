#include "format/synthetic_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "format/floats.h"

namespace tensorfold::format {
namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits that looks random, so value `i` of a
/// tensor can be made without the values before it.
uint64_t mix(uint64_t state) {
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ULL;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBULL;
  return state ^ (state >> 31);
}

constexpr uint64_t kStep = 0x9E3779B97F4A7C15ULL;

uint64_t random_bits(uint64_t key, uint64_t index) { return mix(key + (index + 1) * kStep); }

/// Uniform in [-1, 1).
float random_unit(uint64_t key, uint64_t index) {
  return static_cast<float>(static_cast<int64_t>(random_bits(key, index)) >> 40) * 0x1p-23F;
}

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
    add({{module + ".weight", DataType::bf16, std::move(shape)}, Content::uniform, key, 0.0F, deviation * 1.7320508F});
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
  add({{module + ".weight", DataType::u32, std::move(packed)}, Content::words, mix(key), 0.0F, 0.0F});
  add({{module + ".scales", DataType::bf16, groups}, Content::scales, key, scale, 0.0F});
  add({{module + ".biases", DataType::bf16, groups}, Content::biases, key, scale, (levels - 1.0F) / 2.0F});
}

void SyntheticStore::add_vector(const std::string& name, std::vector<int64_t> shape, float center, float spread) {
  add({{name, DataType::bf16, std::move(shape)}, Content::uniform, key_of(seed_, name), center, spread});
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

uint16_t SyntheticStore::value_of(const Recipe& recipe, uint64_t index) {
  const float unit = random_unit(recipe.key, index);
  if (recipe.content == Content::uniform) return float_to_bf16(recipe.center + recipe.spread * unit);
  const float sign = (random_bits(recipe.key, index) & 1U) != 0 ? 1.0F : -1.0F;
  const uint16_t scale = float_to_bf16(sign * recipe.center * (1.0F + 0.25F * unit));
  // The bias centres the codes on the scale as it was rounded, so that a group's mean is near zero.
  return recipe.content == Content::scales ? scale : float_to_bf16(-bf16_to_float(scale) * recipe.spread);
}

void SyntheticStore::read(const TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const {
  const auto found = recipes_.find(tensor.name);
  check(found != recipes_.end(), "a tensor is read from its own store");
  make_bytes(found->second, offset, out);
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
  const auto found = recipes_.find(tensor.name);
  check(found != recipes_.end(), "a tensor is read from its own store");
  return std::make_shared<Made>(found->second);
}

void SyntheticStore::make_bytes(const Recipe& recipe, uint64_t offset, std::span<std::byte> out) {
  check(offset <= recipe.info.bytes && out.size() <= recipe.info.bytes - offset, "a read stays inside its tensor");
  // Bytes are made in blocks of 8 at absolute offsets, so that pieces agree with the whole.
  for (size_t done = 0; done < out.size();) {
    const uint64_t block = (offset + done) / 8;
    const uint64_t inside = (offset + done) % 8;
    uint64_t bits = 0;
    if (recipe.content == Content::words) {
      bits = random_bits(recipe.key, block);
    } else {
      for (uint64_t i = 0; i < 4; ++i) bits |= static_cast<uint64_t>(value_of(recipe, block * 4 + i)) << (16 * i);
    }
    const size_t count = std::min<size_t>(8 - inside, out.size() - done);
    std::memcpy(out.data() + done, reinterpret_cast<const std::byte*>(&bits) + inside, count);
    done += count;
  }
}

}  // namespace tensorfold::format
