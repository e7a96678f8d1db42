// Rotary fields of the Qwen3.5 architecture and its relatives in config.json.
#pragma once

#include <cstdint>
#include <vector>

#include "families/config_fields.h"

namespace tensorfold::families {

struct RotaryFields {
  double theta = 0.0;
  int32_t width = 0;  ///< values of a head that are rotated; even
  /// theta^(-2d / width), in fp64, rounded to fp32.
  [[nodiscard]] std::vector<float> frequencies() const;
};

/// rope_parameters first, then the flat names, then the architecture's defaults (theta 10^7, a quarter of the head).
/// Sections for images are ignored: text rows have one position for all of them. Problems go to `fields`.
RotaryFields read_rotary(ConfigFields& fields, int32_t head_dim);

}  // namespace tensorfold::families
