// The gated delta mixer of the Qwen3.5 architecture and its relatives: its config fields, its tensors, and the two
// products around the backend's operation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "families/config_fields.h"
#include "families/inventory.h"
#include "families/tensor_list.h"

namespace tensorfold::families {

struct DeltaWeights {
  std::unique_ptr<backend::Projection> in;  ///< qkv | z | b | a
  std::unique_ptr<backend::Vector> convolution, decay_log, decay_bias, inner_norm;
  std::unique_ptr<backend::Projection> out;
};

/// linear_num_key_heads and its neighbours.
backend::GatedDeltaShape read_delta(ConfigFields& fields);

/// The tensors below "linear_attn." of a layer.
void list_delta(TensorList& list, const backend::GatedDeltaShape& shape, int64_t hidden);
DeltaWeights load_delta(WeightLoader& loader, const std::string& layer_prefix);

/// Outputs of the first product and values before the last.
inline int64_t delta_in_width(const backend::GatedDeltaShape& shape) {
  return shape.channels() + 1LL * shape.value_heads * shape.value_dim + 2LL * shape.value_heads;
}
inline int64_t delta_value_width(const backend::GatedDeltaShape& shape) {
  return 1LL * shape.value_heads * shape.value_dim;
}

/// output (+)= the mixer over rows of `input`, which pass an RMSNorm first where there is a `norm`.
struct DeltaMixer {
  const DeltaWeights& weights;
  const backend::GatedDeltaShape& shape;
  backend::Cache& cache;
  int32_t entry = 0;
  backend::Tensor input;
  const backend::Vector* norm = nullptr;
  float epsilon = 0.0F;
  bool sigmoid_gate = false;
  backend::Tensor projected;  ///< room for delta_in_width values
  backend::Tensor mixed;      ///< room for delta_value_width values
  bool add = false;
  backend::Tensor output;
};
void run_delta(backend::Backend& backend, const backend::Plan& plan, const DeltaMixer& mixer);

}  // namespace tensorfold::families
