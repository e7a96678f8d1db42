#include "backend/cpu/packed_matrix.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <vector>

#include "base/error.h"
#include "format/floats.h"

namespace tensorfold::backend::cpu {
namespace {

using format::DataType;

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

/// Bytes of one row of a matrix on disk.
int64_t row_bytes(const format::Linear& linear) {
  if (linear.affine) return linear.inputs * linear.affine->bits / 8;
  return linear.inputs * format::size_of(linear.weight->type);
}

/// Reads rows of a tensor [.., rows, row_bytes] into `out`.
void read_rows_of(const format::Linear& linear, const format::TensorInfo& tensor, int64_t bytes_a_row, int64_t row,
                  int64_t count, std::vector<std::byte>& out) {
  out.resize(static_cast<size_t>(count * bytes_a_row));
  linear.store->read(tensor, static_cast<uint64_t>(row * bytes_a_row), out);
}

/// One tile's rows as read, and where they go.
class TilePacker {
 public:
  TilePacker(const format::Linear& linear, int64_t member, PackedMatrix& matrix)
      : linear_(linear), first_row_(member * linear.outputs), matrix_(matrix) {
    const auto padded = static_cast<size_t>(matrix.padded_inputs);
    codes_.resize(padded);
    values_.resize(padded);
    if (linear.affine) {
      const auto groups = static_cast<size_t>(matrix.padded_inputs / matrix.group);
      scales_.resize(groups);
      biases_.resize(groups);
    }
  }

  void pack(int64_t tile) {
    const int64_t row = tile * kTileOutputs;
    const int64_t count = std::min(kTileOutputs, matrix_.outputs - row);
    std::byte* to = matrix_.memory.data() + tile * matrix_.tile_bytes;
    std::memset(to, 0, static_cast<size_t>(matrix_.tile_bytes));
    read_rows_of(linear_, *linear_.weight, row_bytes(linear_), first_row_ + row, count, weight_);
    if (linear_.affine) read_pairs(row, count);
    for (int64_t i = 0; i < count; ++i) {
      unpack_row(i);
      int64_t offset = 0;
      for (int64_t slice = 0; slice < matrix_.slices(); ++slice) {
        const int64_t inputs = matrix_.slice_inputs(slice);
        if (linear_.affine) put_pairs(to + offset, i, slice * kSliceInputs, inputs);
        offset += matrix_.pair_bytes(inputs);
        put_codes(to + offset, i, slice * kSliceInputs, inputs);
        offset += matrix_.code_bytes(inputs);
      }
    }
  }

 private:
  void read_pairs(int64_t row, int64_t count) {
    const int64_t bytes = linear_.inputs / matrix_.group * format::size_of(linear_.scales->type);
    read_rows_of(linear_, *linear_.scales, bytes, first_row_ + row, count, scale_bytes_);
    read_rows_of(linear_, *linear_.biases, bytes, first_row_ + row, count, bias_bytes_);
  }

  void unpack_row(int64_t i) {
    const auto bytes = static_cast<size_t>(row_bytes(linear_));
    const std::span<const std::byte> row{weight_.data() + static_cast<size_t>(i) * bytes, bytes};
    if (!linear_.affine) {
      format::widen(linear_.weight->type, row, std::span(values_).first(static_cast<size_t>(linear_.inputs)));
      return;
    }
    unpack_affine_codes(row, linear_.affine->bits, std::span(codes_).first(static_cast<size_t>(linear_.inputs)));
    const auto groups = static_cast<size_t>(linear_.inputs / matrix_.group);
    const size_t pair_bytes = groups * static_cast<size_t>(format::size_of(linear_.scales->type));
    const size_t offset = static_cast<size_t>(i) * pair_bytes;
    format::widen(linear_.scales->type, {scale_bytes_.data() + offset, pair_bytes}, std::span(scales_).first(groups));
    format::widen(linear_.biases->type, {bias_bytes_.data() + offset, pair_bytes}, std::span(biases_).first(groups));
  }

  void put_pairs(std::byte* to, int64_t i, int64_t first, int64_t inputs) const {
    const int64_t groups = inputs / matrix_.group;
    for (int64_t g = 0; g < groups; ++g) {
      const auto source = static_cast<size_t>(first / matrix_.group + g);
      put_pair_value(to, i * groups + g, scales_[source]);
      put_pair_value(to, (kTileOutputs + i) * groups + g, biases_[source]);
    }
  }
  void put_pair_value(std::byte* to, int64_t index, float value) const {
    if (matrix_.wide_pairs) {
      std::memcpy(to + index * 4, &value, 4);
    } else {
      const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      std::memcpy(to + index * 2, &half, 2);
    }
  }

  /// Where the element of input k (within the slice) starts: its 64-byte word, its lane, its place in the lane.
  void put_codes(std::byte* to, int64_t i, int64_t first, int64_t inputs) const {
    for (int64_t k = 0; k < inputs; ++k) {
      const auto source = static_cast<size_t>(first + k);
      const int64_t lane = k % 16;
      switch (matrix_.kind) {
        case CodeKind::nibble: {
          const int64_t place = k % 128 / 16;
          std::byte& byte = to[((k / 128) * kTileOutputs + i) * 64 + lane * 4 + place / 2];
          byte |= static_cast<std::byte>(codes_[source] << (place % 2 * 4));
          break;
        }
        case CodeKind::byte:
          to[((k / 64) * kTileOutputs + i) * 64 + lane * 4 + k % 64 / 16] = static_cast<std::byte>(codes_[source]);
          break;
        case CodeKind::bf16: {
          const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(values_[source]) >> 16);
          std::memcpy(to + ((k / 32) * kTileOutputs + i) * 64 + lane * 4 + k % 32 / 16 * 2, &half, 2);
          break;
        }
        case CodeKind::f32:
          std::memcpy(to + ((k / 16) * kTileOutputs + i) * 64 + lane * 4, &values_[source], 4);
          break;
      }
    }
  }

  const format::Linear& linear_;
  int64_t first_row_;
  PackedMatrix& matrix_;
  std::vector<std::byte> weight_, scale_bytes_, bias_bytes_;
  std::vector<uint8_t> codes_;
  std::vector<float> values_, scales_, biases_;
};

CodeKind kind_of(const format::Linear& linear) {
  if (linear.affine) return linear.affine->bits <= 4 ? CodeKind::nibble : CodeKind::byte;
  return linear.weight->type == DataType::bf16 ? CodeKind::bf16 : CodeKind::f32;
}

}  // namespace

AlignedBytes::AlignedBytes(size_t bytes, const char* what) : size_(bytes) {
  constexpr size_t huge_page = size_t{2} << 20;
  const size_t alignment = bytes >= 2 * huge_page ? huge_page : 64;
  const size_t room = std::max(alignment, (bytes + alignment - 1) / alignment * alignment);
  void* memory = std::aligned_alloc(alignment, room);
  if (memory == nullptr) fail(ErrorKind::capacity, "out of memory: {} needs {} MB", what, bytes >> 20);
#if defined(__linux__)
  // A refusal (no such pages on this system) costs speed only.
  if (alignment == huge_page) static_cast<void>(madvise(memory, room, MADV_HUGEPAGE));
#endif
  memory_ = {static_cast<std::byte*>(memory), [](std::byte* pointer) { std::free(pointer); }};
}

AlignedBytes WeightMemory::take(size_t bytes) {
  const size_t room = (bytes + 63) / 64 * 64;
  if (used_ + room > block_.size()) {
    block_ = AlignedBytes(std::max(room, kBlockBytes), "the weights");
    used_ = 0;
  }
  AlignedBytes result;
  result.memory_ = {block_.memory_, block_.data() + used_};
  result.size_ = bytes;
  used_ += room;
  return result;
}

int64_t PackedMatrix::pair_bytes(int64_t count) const {
  if (group == 0) return 0;
  return round_up(2 * kTileOutputs * (count / group) * (wide_pairs ? 4 : 2), 64);
}

int64_t PackedMatrix::code_bytes(int64_t count) const {
  switch (kind) {
    case CodeKind::nibble:
      return count * kTileOutputs / 2;
    case CodeKind::byte:
      return count * kTileOutputs;
    case CodeKind::bf16:
      return count * kTileOutputs * 2;
    case CodeKind::f32:
      return count * kTileOutputs * 4;
  }
  return 0;
}

void unpack_affine_codes(std::span<const std::byte> row, int32_t bits, std::span<uint8_t> codes) {
  const auto width = static_cast<uint32_t>(bits);
  const uint32_t mask = (1U << width) - 1U;
  uint32_t held = 0;  // the stream's next bits, low first
  uint32_t count = 0;
  size_t next = 0;
  for (uint8_t& code : codes) {
    while (count < width) {
      held |= std::to_integer<uint32_t>(row[next++]) << count;
      count += 8;
    }
    code = static_cast<uint8_t>(held & mask);
    held >>= width;
    count -= width;
  }
}

void check_linear(const format::Linear& linear) {
  check(linear.store != nullptr && linear.weight != nullptr, "a matrix without its tensor");
  const int64_t rows = linear.stack * linear.outputs;
  const auto expect = [](const format::TensorInfo& tensor, int64_t bytes) {
    if (tensor.bytes != static_cast<uint64_t>(bytes))
      fail(ErrorKind::corrupt_file, "{}: {} bytes, expected {}", tensor.name, tensor.bytes, bytes);
  };
  if (!linear.affine) {
    if (!format::is_float(linear.weight->type)) {
      fail(ErrorKind::unsupported, "{}: weights of type {} are not supported", linear.weight->name,
           format::to_string(linear.weight->type));
    }
    expect(*linear.weight, rows * row_bytes(linear));
    return;
  }
  const format::AffineFormat& affine = *linear.affine;
  const bool known_bits = affine.bits >= 2 && affine.bits <= 8 && affine.bits != 7;
  const bool known_group = affine.group_size == 32 || affine.group_size == 64 || affine.group_size == 128;
  if (!known_bits || !known_group || linear.inputs % affine.group_size != 0) {
    fail(ErrorKind::unsupported, "{}: {} bits in groups of {} over {} inputs are not supported", linear.weight->name,
         affine.bits, affine.group_size, linear.inputs);
  }
  check(linear.scales != nullptr && linear.biases != nullptr, "a quantised matrix without scales");
  if (!format::is_float(linear.scales->type) || linear.scales->type != linear.biases->type)
    fail(ErrorKind::unsupported, "{}: scales must be bf16, f16 or f32, and biases alike", linear.scales->name);
  expect(*linear.weight, rows * row_bytes(linear));
  const int64_t pairs = rows * (linear.inputs / affine.group_size) * format::size_of(linear.scales->type);
  expect(*linear.scales, pairs);
  expect(*linear.biases, pairs);
}

PackedMatrix pack_matrix(const format::Linear& linear, int64_t member, ThreadPool& threads, WeightMemory& memory) {
  check_linear(linear);
  PackedMatrix matrix;
  matrix.kind = kind_of(linear);
  matrix.group = linear.affine ? linear.affine->group_size : 0;
  matrix.wide_pairs = linear.affine && linear.scales->type != DataType::bf16;
  matrix.outputs = linear.outputs;
  matrix.inputs = linear.inputs;
  matrix.padded_inputs = round_up(linear.inputs, kInputPadding);
  matrix.tiles = (linear.outputs + kTileOutputs - 1) / kTileOutputs;
  for (int64_t slice = 0; slice < matrix.slices(); ++slice) {
    const int64_t inputs = matrix.slice_inputs(slice);
    matrix.tile_bytes += matrix.pair_bytes(inputs) + matrix.code_bytes(inputs);
  }
  matrix.memory = memory.take(static_cast<size_t>(matrix.tiles * matrix.tile_bytes));
  std::mutex mutex;
  std::exception_ptr failure;
  threads.run(matrix.tiles, [&](int64_t begin, int64_t end, int) {
    try {
      TilePacker packer(linear, member, matrix);
      for (int64_t tile = begin; tile < end; ++tile) packer.pack(tile);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
  return matrix;
}

}  // namespace tensorfold::backend::cpu
