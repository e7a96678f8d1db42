// Which modules of a checkpoint are packed, and how: the quantisation block of config.json, cross-checked with shapes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "format/problem_list.h"
#include "format/tensor_store.h"

namespace tensorfold::format {

/// Bits of a code and inputs that share a scale, as checkpoints may have them.
inline constexpr std::array<int32_t, 6> kAffineBits = {2, 3, 4, 5, 6, 8};
inline constexpr std::array<int32_t, 3> kAffineGroups = {32, 64, 128};

/// What config.json says of one module.
enum class ModuleRule {
  unsaid,  ///< packed with the checkpoint's format exactly if it has scales
  packed,  ///< must be packed, in the given format
  plain,   ///< must not be packed
};

struct ModuleQuantization {
  ModuleRule rule = ModuleRule::unsaid;
  std::optional<AffineFormat> format;  ///< what the packing must be; nothing: the checkpoint has no packed modules
};

/// The block `quantization` (or `quantization_config`, at the top or in text_config) of config.json.
class Quantization {
 public:
  /// Throws Error(unsupported) that names a foreign format (gptq, awq, mxfp4, ...), and Error(corrupt_file) that lists
  /// everything malformed. A config without the block describes a checkpoint without packed modules.
  static Quantization parse(const nlohmann::json& config);
  /// Every module in one format, or (nothing) none: for synthetic weights.
  static Quantization uniform(std::optional<AffineFormat> format);

  /// The rule for a module path in any of its spellings (language_model.model.x, model.language_model.x, model.x).
  [[nodiscard]] ModuleQuantization of(std::string_view module) const;
  [[nodiscard]] std::optional<AffineFormat> global() const { return global_; }
  /// For people: "4 bit, groups of 64, 3 modules differ", or "none".
  [[nodiscard]] std::string describe() const;

 private:
  void add_module(const std::string& path, const nlohmann::json& value, ProblemList& problems);

  std::optional<AffineFormat> global_;
  std::map<std::string, ModuleQuantization, std::less<>> modules_;  ///< by canonical path
};

/// One spelling for a module whatever prefix its layout uses: "layers.3.mlp.up_proj", "lm_head", "mtp.fc".
std::string canonical_module(std::string_view module);

/// The matrices of `module` ("<module>.weight" and, packed, ".scales" and ".biases"; or a bare "<module>", as Hugging
/// Face names stacked experts), of logical shape
/// [outputs, inputs] or [stack, outputs, inputs]. Bits and group size come from the shapes and must agree with
/// `quantization`. What is missing or wrong goes to `problems`; the result is then unusable.
Linear resolve_linear(const TensorStore& store, const Quantization& quantization, std::string_view module,
                      std::span<const int64_t> shape, ProblemList& problems);

}  // namespace tensorfold::format
