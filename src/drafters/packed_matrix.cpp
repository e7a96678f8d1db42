#include "drafters/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <thread>

#include "base/error.h"
#include "format/floats.h"

namespace tensorfold::drafters {
namespace {

constexpr int64_t kGroup = 64;

// Packs one group of 64 values; codes go to bits [i * bits, (i + 1) * bits) of `words`.
void pack_group(std::span<const float> values, int32_t bits, std::span<uint32_t> words, uint16_t& scale,
                uint16_t& bias) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const auto most = static_cast<float>((1 << bits) - 1);
  scale = format::float_to_bf16(std::max((*high - *low) / most, 1e-8F));
  bias = format::float_to_bf16(*low);
  const float step = format::bf16_to_float(scale);
  const float base = format::bf16_to_float(bias);
  const int32_t a_word = 32 / bits;
  std::fill(words.begin(), words.end(), 0U);
  for (size_t i = 0; i < values.size(); ++i) {
    const float code = std::clamp(std::nearbyint((values[i] - base) / step), 0.0F, most);
    words[i / static_cast<size_t>(a_word)] |= static_cast<uint32_t>(code)
                                              << (bits * static_cast<int32_t>(i % static_cast<size_t>(a_word)));
  }
}

}  // namespace

PackedMatrix::PackedMatrix(const format::Linear& source, int32_t bits) {
  check(!source.affine && source.stack == 1 && source.inputs % kGroup == 0, "only a plain float matrix can be packed");
  check(bits == 4 || bits == 8, "a drafter is packed to 4 or 8 bits");
  const int64_t groups = source.inputs / kGroup;
  const int64_t words = source.inputs * bits / 32;
  parts_.resize(3);
  const auto describe = [&](size_t index, const char* name, format::DataType type, int64_t width) {
    part(index).info = {
        name, type, {source.outputs, width}, static_cast<uint64_t>(source.outputs * width * format::size_of(type))};
    part(index).bytes.resize(part(index).info.bytes);
  };
  describe(0, "weight", format::DataType::u32, words);
  describe(1, "scales", format::DataType::bf16, groups);
  describe(2, "biases", format::DataType::bf16, groups);

  pack_rows(source, bits);
  linear_ = {this,
             1,
             source.outputs,
             source.inputs,
             format::AffineFormat{bits, kGroup},
             &parts_[0].info,
             &parts_[1].info,
             &parts_[2].info};
}

/// Rows are dealt to one thread a core: a drafter of two billion weights is packed at every start.
void PackedMatrix::pack_rows(const format::Linear& source, int32_t bits) {
  const int64_t threads = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, source.outputs);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(threads));
  {
    std::vector<std::jthread> workers;
    for (int64_t i = 0; i < threads; ++i) {
      workers.emplace_back([&, i] {
        try {
          pack_some(source, bits, source.outputs * i / threads, source.outputs * (i + 1) / threads);
        } catch (...) {
          errors[static_cast<size_t>(i)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

void PackedMatrix::pack_some(const format::Linear& source, int32_t bits, int64_t first, int64_t end) {
  const auto row_bytes = static_cast<size_t>(source.inputs * format::size_of(source.weight->type));
  const auto groups = static_cast<size_t>(source.inputs / kGroup);
  const auto group_words = static_cast<size_t>(kGroup * bits / 32);
  std::vector<std::byte> raw(row_bytes);
  std::vector<float> row(static_cast<size_t>(source.inputs));
  std::vector<uint32_t> packed(groups * group_words);
  std::vector<uint16_t> scales(groups);
  std::vector<uint16_t> biases(groups);
  for (int64_t r = first; r < end; ++r) {
    source.store->read(*source.weight, static_cast<uint64_t>(r) * row_bytes, raw);
    format::widen(source.weight->type, raw, row);
    for (size_t g = 0; g < groups; ++g) {
      pack_group(std::span(row).subspan(g * kGroup, kGroup), bits,
                 std::span(packed).subspan(g * group_words, group_words), scales[g], biases[g]);
    }
    const auto place = [&](size_t index, const auto& values) {
      const size_t bytes = values.size() * sizeof(values[0]);
      std::memcpy(part(index).bytes.data() + static_cast<size_t>(r) * bytes, values.data(), bytes);
    };
    place(0, packed);
    place(1, scales);
    place(2, biases);
  }
}

format::Linear PackedMatrix::linear() const { return linear_; }

const format::TensorInfo* PackedMatrix::find(std::string_view name) const {
  const auto found = std::find_if(parts_.begin(), parts_.end(), [name](const Part& p) { return p.info.name == name; });
  return found == parts_.end() ? nullptr : &found->info;
}

std::vector<std::string> PackedMatrix::names() const { return {"biases", "scales", "weight"}; }

void PackedMatrix::read(const format::TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const {
  const auto found =
      std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.info.name == tensor.name; });
  check(found != parts_.end() && offset + out.size() <= found->bytes.size(),
        "a packed matrix was read outside its bytes");
  std::memcpy(out.data(), found->bytes.data() + offset, out.size());
}

}  // namespace tensorfold::drafters
