#include "families/conversion.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "families/inventory.h"
#include "format/floats.h"

namespace tensorfold::families {
namespace {

/// What stands in front of a decoder's names in the layouts there are; longer ones first.
constexpr std::string_view kRoots[] = {"model.language_model.",
                                       "language_model.model.",
                                       "language_model.backbone.",
                                       "language_model.",
                                       "backbone.",
                                       "model.",
                                       ""};

/// Where stacked experts stand in MLX's names, and what their parts are called in the originals.
constexpr std::string_view kStacks[] = {"experts.switch_glu.", "switch_mlp."};

/// One tensor of its own name, which is copied.
bool is_bare(const TensorSpec& spec) { return spec.role == TensorRole::vector || spec.role == TensorRole::integers; }

class SourceFinder {
 public:
  explicit SourceFinder(const format::TensorStore& store) : store_(store) {}

  /// The rows that make up a spec, or nothing.
  [[nodiscard]] std::vector<SourceRows> find(const TensorSpec& spec) const {
    if (is_bare(spec)) return whole(find_named(spec.module, spec.draft_head));
    for (const char* ending : {".weight", ""}) {
      if (const auto* tensor = find_named(spec.module + ending, spec.draft_head)) return whole(tensor);
    }
    return spec.shape.size() == 3 ? find_stacked(spec) : std::vector<SourceRows>{};
  }

 private:
  /// The original's tensor of this name under any root; a draft head's stands under "mtp.".
  [[nodiscard]] const format::TensorInfo* find_named(const std::string& name, bool draft_head) const {
    if (const auto* exact = draft_head && name.starts_with("layers.") ? nullptr : store_.find(name)) return exact;
    std::string_view bare = name;
    for (const std::string_view root : kRoots) {
      if (!bare.starts_with(root)) continue;
      bare.remove_prefix(root.size());
      break;
    }
    std::string stem(bare);
    if (draft_head && !bare.starts_with("mtp.")) stem = "mtp." + stem;
    for (const std::string_view root : kRoots) {
      if (const auto* tensor = store_.find(std::string(root) + stem)) return tensor;
    }
    return nullptr;
  }

  static int64_t rows_of(const format::TensorInfo& tensor) {
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
    return rows;
  }
  static std::vector<SourceRows> whole(const format::TensorInfo* tensor) {
    if (tensor == nullptr) return {};
    return {{tensor, 0, rows_of(*tensor)}};
  }

  /// A stack of experts from one tensor an expert, or from one that holds gates over ups.
  [[nodiscard]] std::vector<SourceRows> find_stacked(const TensorSpec& spec) const {
    for (const std::string_view stack : kStacks) {
      const size_t at = spec.module.find(stack);
      if (at == std::string::npos) continue;
      const std::string stem = spec.module.substr(0, at) + "experts.";
      std::string part = spec.module.substr(at + stack.size());
      if (part == "fc1") part = "up_proj";
      if (part == "fc2") part = "down_proj";
      std::vector<SourceRows> rows;
      for (int64_t expert = 0; expert < spec.shape[0]; ++expert) {
        const auto* tensor = find_named(fmt::format("{}{}.{}.weight", stem, expert, part), spec.draft_head);
        if (tensor == nullptr) break;
        rows.push_back({tensor, 0, rows_of(*tensor)});
      }
      if (static_cast<int64_t>(rows.size()) == spec.shape[0]) return rows;
      if (const auto* tensor = find_named(stem + part, spec.draft_head)) return whole(tensor);
      const auto* joined = find_named(stem + "gate_up_proj", spec.draft_head);
      if (joined == nullptr || part == "down_proj") continue;
      rows.clear();
      for (int64_t expert = 0; expert < spec.shape[0]; ++expert)
        rows.push_back({joined, (2 * expert + (part == "up_proj" ? 1 : 0)) * spec.shape[1], spec.shape[1]});
      return rows;
    }
    return {};
  }

  const format::TensorStore& store_;
};

int64_t value_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

/// Whether the sources hold the shape's values in rows that stay whole.
bool fits(const ConvertedTensor& tensor, const TensorSpec& spec) {
  int64_t values = 0;
  for (const SourceRows& source : tensor.sources) {
    const int64_t width = source.tensor->shape.empty() ? 1 : source.tensor->shape.back();
    if (!is_bare(spec) && width != spec.shape.back()) return false;
    values += source.count * width;
  }
  return values == value_count(spec.shape);
}

/// A module keeps the bare name of a parameter that is not packed.
std::string plain_name(const TensorSpec& spec, const std::vector<SourceRows>& sources) {
  if (is_bare(spec)) return spec.module;
  const bool bare = sources.size() == 1 && spec.shape.size() == 2 && !sources.front().tensor->name.ends_with(".weight");
  return bare ? spec.module : spec.module + ".weight";
}

}  // namespace

std::vector<ConvertedTensor> plan_conversion(const Family& family, const nlohmann::json& config,
                                             const format::TensorStore& store,
                                             const format::Quantization& quantization) {
  const SourceFinder finder(store);
  std::vector<ConvertedTensor> tensors;
  format::ProblemList problems;
  bool whole_head = true;
  for (const TensorSpec& spec : family.inventory(config, {})) {
    ConvertedTensor tensor;
    tensor.sources = finder.find(spec);
    tensor.draft_head = spec.draft_head;
    if (tensor.sources.empty()) {
      if (spec.draft_head) {
        whole_head = false;
      } else if (!spec.optional) {
        problems.add("{} has no source", spec.module);
      }
      continue;
    }
    tensor.packing = is_bare(spec) ? std::nullopt : packing_of(spec, quantization);
    tensor.name = tensor.packing ? spec.module : plain_name(spec, tensor.sources);
    tensor.shape = spec.shape;
    if (family.conversion_shift != nullptr && spec.role == TensorRole::vector)
      tensor.shift = family.conversion_shift(config, store, spec.module);
    if (!fits(tensor, spec))
      problems.add("{} does not have the shape {}", tensor.sources.front().tensor->name, format::to_string(spec.shape));
    for (const SourceRows& source : tensor.sources) {
      if (spec.role != TensorRole::integers && !format::is_float(source.tensor->type))
        problems.add("{} has the dtype {}", source.tensor->name, format::to_string(source.tensor->type));
    }
    tensors.push_back(std::move(tensor));
  }
  problems.throw_if_any(ErrorKind::corrupt_file, "the checkpoint cannot be converted");
  if (!whole_head) std::erase_if(tensors, [](const ConvertedTensor& tensor) { return tensor.draft_head; });
  return tensors;
}

}  // namespace tensorfold::families
