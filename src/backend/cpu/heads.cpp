#include "backend/cpu/heads.h"

#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/scalar_math.h"

namespace tensorfold::backend::cpu {

int64_t rotation_width(const Rotary& rotary) {
  return rotary.frequencies != nullptr ? 2 * rotary.frequencies->size() : 0;
}

void fill_rotation(const Rotary& rotary, int32_t position, float* to) {
  if (rotary.frequencies == nullptr) return;
  const auto& frequencies = static_cast<const CpuVector*>(rotary.frequencies)->values;
  const size_t n = frequencies.size();
  for (size_t d = 0; d < n; ++d) {
    const SineCosine value = portable_sine_cosine(static_cast<float>(position) * frequencies[d]);
    to[d] = value.cosine;
    to[n + d] = value.sine;
  }
}

void rotate(const Rotary& rotary, const float* rotation, float* head) {
  if (rotary.frequencies == nullptr) return;
  const int64_t n = rotary.frequencies->size();
  for (int64_t d = 0; d < n; ++d) {
    float& a = head[rotary.interleaved ? 2 * d : d];
    float& b = head[rotary.interleaved ? 2 * d + 1 : d + n];
    const float x = a;
    const float y = b;
    a = x * rotation[d] - y * rotation[n + d];
    b = y * rotation[d] + x * rotation[n + d];
  }
}

void prepare_head(const KernelTable& kernels, const HeadPreparation& how, const float* rotation, const float* from,
                  float* to) {
  if (how.norm != nullptr) {
    kernels.rms_norm(from, static_cast<const CpuVector*>(how.norm)->values.data(), how.dim, how.epsilon, to);
  } else {
    std::memcpy(to, from, static_cast<size_t>(how.dim) * sizeof(float));
  }
  rotate(how.rotary, rotation, to);
}

}  // namespace tensorfold::backend::cpu
