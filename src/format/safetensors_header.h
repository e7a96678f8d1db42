// The header of one safetensors file: JSON in front of the tensors' bytes. Nothing in it is believed before it is
// checked. Format: the safetensors project's description; MLX writes it without padding, so offsets may be odd.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "format/problem_list.h"
#include "format/tensor_store.h"

namespace tensorfold::format {

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  ///< in header order, `offset` counted from the start of the file
  std::map<std::string, std::string> metadata;
};

/// Reads and checks a file's header: its length, JSON, types, shapes, and that every tensor's bytes lie inside the file
/// and apart from the others'. What is wrong goes to `problems`; what comes back then is only good for finding more.
SafetensorsHeader read_safetensors_header(const File& file, ProblemList& problems);

/// The same for header text in memory: data starts at `data_start` of a file of `file_bytes`.
SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_start, uint64_t file_bytes,
                                           std::string_view file_name, ProblemList& problems);

}  // namespace tensorfold::format
