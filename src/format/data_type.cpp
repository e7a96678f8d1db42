#include <array>

#include "base/error.h"
#include "format/tensor_store.h"

namespace tensorfold::format {
namespace {

struct DataTypeRow {
  DataType type;
  std::string_view name;  // as safetensors headers spell it
  int64_t bytes;
};

constexpr std::array<DataTypeRow, 14> kDataTypes = {{{DataType::f32, "F32", 4},
                                                     {DataType::f16, "F16", 2},
                                                     {DataType::bf16, "BF16", 2},
                                                     {DataType::f8_e4m3, "F8_E4M3", 1},
                                                     {DataType::f8_e8m0, "F8_E8M0", 1},
                                                     {DataType::i8, "I8", 1},
                                                     {DataType::u8, "U8", 1},
                                                     {DataType::i16, "I16", 2},
                                                     {DataType::u16, "U16", 2},
                                                     {DataType::i32, "I32", 4},
                                                     {DataType::u32, "U32", 4},
                                                     {DataType::i64, "I64", 8},
                                                     {DataType::u64, "U64", 8},
                                                     {DataType::boolean, "BOOL", 1}}};

const DataTypeRow& row_of(DataType type) {
  for (const DataTypeRow& row : kDataTypes) {
    if (row.type == type) return row;
  }
  fail(ErrorKind::internal, "internal error: unknown data type");
}

}  // namespace

int64_t size_of(DataType type) { return row_of(type).bytes; }

std::string_view to_string(DataType type) { return row_of(type).name; }

std::optional<DataType> parse_data_type(std::string_view name) {
  for (const DataTypeRow& row : kDataTypes) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

uint64_t Linear::bytes_read() const {
  const auto n = static_cast<uint64_t>(outputs);
  const auto k = static_cast<uint64_t>(inputs);
  if (!affine) return n * k * static_cast<uint64_t>(size_of(weight->type));
  const uint64_t words = k * static_cast<uint64_t>(affine->bits) / 32;
  const uint64_t groups = k / static_cast<uint64_t>(affine->group_size);
  return n * (words * 4 + groups * 2 * static_cast<uint64_t>(size_of(scales->type)));
}

}  // namespace tensorfold::format
