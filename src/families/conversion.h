// From a float checkpoint as published to one in MLX's format: which tensors the result has, and from which of the
// original each one is made.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "families/model.h"
#include "format/quantization.h"

namespace tensorfold::families {

/// Rows [first, first + count) of one tensor of the original, its last dimension being a row.
struct SourceRows {
  const format::TensorInfo* tensor = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

/// One module or vector of the result.
struct ConvertedTensor {
  std::string name;            ///< a module where it is packed, else the tensor's whole name
  std::vector<int64_t> shape;  ///< unpacked
  std::optional<format::AffineFormat> packing;
  std::vector<SourceRows> sources;  ///< one after another
  float shift = 0.0F;               ///< added to every value
  bool draft_head = false;
};

/// The result of converting `store` with `quantization`, in the family's own MLX layout; a draft head that the original
/// lacks is left out. Throws Error(corrupt_file or unsupported) that names what is missing or not float.
std::vector<ConvertedTensor> plan_conversion(const Family& family, const nlohmann::json& config,
                                             const format::TensorStore& store,
                                             const format::Quantization& quantization);

/// What a conversion did.
struct ConversionResult {
  uint64_t bytes = 0;  ///< of the tensors written
  int32_t shards = 0;
  int64_t packed = 0;  ///< modules
  int64_t plain = 0;   ///< tensors left as they were
};

/// Reads, packs and writes tensor by tensor, a few thousand rows at a time, into shards of at most `shard_bytes` and
/// their index; `progress` is told the bytes read so far and in all. `directory` exists. Throws Error(io).
ConversionResult write_conversion(const std::vector<ConvertedTensor>& tensors, const format::TensorStore& store,
                                  const std::filesystem::path& directory, uint64_t shard_bytes,
                                  const std::function<void(uint64_t, uint64_t)>& progress);

}  // namespace tensorfold::families
