// Norm and rotation of the heads of queries and keys.
#pragma once

#include <cstdint>

#include "backend/cpu/kernels.h"
#include "backend/operations/rotary.h"

namespace tensorfold::backend::cpu {

/// Values that a position's rotation takes: cosines, then sines; 0 without frequencies.
int64_t rotation_width(const Rotary& rotary);
/// A position's rotation: angle = fp32 position * fp32 frequency, rounded to fp32.
void fill_rotation(const Rotary& rotary, int32_t position, float* to);
/// Turns a head in place; `rotation` may be null where there is none.
void rotate(const Rotary& rotary, const float* rotation, float* head);

/// to = the head's RMSNorm (weight null: as it is), then rotated.
struct HeadPreparation {
  const Vector* norm = nullptr;
  float epsilon = 0.0F;
  int64_t dim = 0;
  Rotary rotary = {};
};
void prepare_head(const KernelTable& kernels, const HeadPreparation& how, const float* rotation, const float* from,
                  float* to);

}  // namespace tensorfold::backend::cpu
