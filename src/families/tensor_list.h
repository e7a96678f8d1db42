// Gathers the tensors that a family expects, under one prefix of names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "families/model.h"

namespace tensorfold::families {

/// The note about an output head that a checkpoint holds beside tied embeddings.
inline constexpr const char* kUnusedHead = "the checkpoint's lm_head is not used: its config ties it to the embedding";

class TensorList {
 public:
  /// `norm_center`: what norm weights lie around in synthetic checkpoints, 1, or 0 where files hold w of 1 + w.
  TensorList(std::vector<TensorSpec>& specs, std::string prefix, float norm_center = 1.0F)
      : specs_(specs), prefix_(std::move(prefix)), norm_center_(norm_center) {}

  void linear(const std::string& module, int64_t outputs, int64_t inputs) {
    specs_.push_back({prefix_ + module, TensorRole::linear, {outputs, inputs}});
  }
  /// A matrix that converters do not pack.
  void router(const std::string& module, int64_t outputs, int64_t inputs) {
    linear(module, outputs, inputs);
    specs_.back().never_packed = true;
  }
  /// `count` matrices in one tensor, of which a row reads `chosen`.
  void experts(const std::string& module, int64_t count, int64_t chosen, int64_t outputs, int64_t inputs) {
    specs_.push_back({prefix_ + module, TensorRole::linear, {count, outputs, inputs}});
    specs_.back().read_share = static_cast<double>(chosen) / static_cast<double>(count);
  }
  /// One of `count` matrices that a row reads `chosen` of.
  void expert(const std::string& module, int64_t count, int64_t chosen, int64_t outputs, int64_t inputs) {
    linear(module, outputs, inputs);
    specs_.back().read_share = static_cast<double>(chosen) / static_cast<double>(count);
  }
  void vector(const std::string& name, std::vector<int64_t> shape, float center, float spread) {
    specs_.push_back({prefix_ + name, TensorRole::vector, std::move(shape), false, center, spread});
  }
  void norm(const std::string& module, int64_t width) { vector(module + ".weight", {width}, norm_center_, 0.1F); }

 private:
  std::vector<TensorSpec>& specs_;
  std::string prefix_;
  float norm_center_;
};

}  // namespace tensorfold::families
