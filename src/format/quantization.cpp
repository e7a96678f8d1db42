#include "format/quantization.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "format/floats.h"

namespace tensorfold::format {
namespace {

using nlohmann::json;

bool contains(std::span<const int32_t> values, int64_t value) {
  return std::any_of(values.begin(), values.end(), [value](int32_t known) { return known == value; });
}

const json* member(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

/// The block, wherever the config keeps it.
const json* find_block(const json& config) {
  if (const json* block = member(config, "quantization")) return block;
  if (const json* block = member(config, "quantization_config")) return block;
  const json* text = member(config, "text_config");
  if (text == nullptr) return nullptr;
  if (const json* block = member(*text, "quantization")) return block;
  return member(*text, "quantization_config");
}

/// bits, group_size and mode of the block or of one module, with the affine mode's own defaults.
AffineFormat parse_format(const json& object, std::string_view owner, ProblemList& problems) {
  AffineFormat format;
  const std::string mode = object.contains("mode") ? printable_json(object["mode"]) : "\"affine\"";
  if (mode != "\"affine\"") problems.add("{} has the quantisation mode {}, only affine is read", owner, mode);
  const auto read = [&](const char* name, int32_t& value, std::span<const int32_t> allowed) {
    const json* given = member(object, name);
    if (given == nullptr) return;
    if (given->is_number_integer() && contains(allowed, given->get<int64_t>())) {
      value = given->get<int32_t>();
    } else {
      problems.add("{} has {} {}, which must be one of {}", owner, name, printable_json(*given),
                   fmt::join(allowed, ", "));
    }
  };
  read("bits", format.bits, kAffineBits);
  read("group_size", format.group_size, kAffineGroups);
  return format;
}

void refuse_foreign(const json& block) {
  const json* method = member(block, "quant_method");
  if (method == nullptr) method = member(block, "quant_algo");
  if (method != nullptr && *method != "affine") {
    fail(ErrorKind::unsupported,
         "the checkpoint is quantised with {}, which is not read here; use an MLX affine or a bf16 checkpoint",
         printable_json(*method));
  }
  const json* mode = member(block, "mode");
  if (mode != nullptr && mode->is_string() && *mode != "affine") {
    fail(ErrorKind::unsupported,
         "the checkpoint is quantised in the mode {}, which is not read here; use an MLX affine or a bf16 checkpoint",
         printable_json(*mode));
  }
}

bool is_global_key(std::string_view key) {
  return key == "bits" || key == "group_size" || key == "mode" || key == "quant_method";
}

}  // namespace

std::string canonical_module(std::string_view module) {
  for (const std::string_view prefix : {"language_model.", "model.language_model.", "model."}) {
    if (module.starts_with(prefix)) {
      module.remove_prefix(prefix.size());
      if (prefix == "language_model." && module.starts_with("model.")) module.remove_prefix(6);
      break;
    }
  }
  return std::string(module);
}

Quantization Quantization::parse(const json& config) {
  Quantization quantization;
  const json* block = find_block(config);
  if (block == nullptr) return quantization;
  ProblemList problems;
  if (!block->is_object()) {
    problems.add("the quantisation block is not an object");
  } else {
    refuse_foreign(*block);
    quantization.global_ = parse_format(*block, "the quantisation block", problems);
    for (const auto& [key, value] : block->items()) {
      if (!is_global_key(key)) quantization.add_module(key, value, problems);
    }
  }
  problems.throw_if_any(ErrorKind::corrupt_file, "config.json");
  return quantization;
}

Quantization Quantization::uniform(std::optional<AffineFormat> format) {
  Quantization quantization;
  quantization.global_ = format;
  return quantization;
}

void Quantization::add_module(const std::string& path, const json& value, ProblemList& problems) {
  ModuleQuantization entry;
  const std::string owner = "module " + printable(path);
  if (value.is_object() && !value.empty()) {
    entry = {ModuleRule::packed, parse_format(value, owner, problems)};
  } else if (value == true) {
    entry = {ModuleRule::packed, global_};
  } else if (value == false || (value.is_object() && value.empty())) {
    entry = {ModuleRule::plain, std::nullopt};
  } else if (path.find('.') == std::string::npos) {
    return;  // a global setting we do not know, e.g. a writer's version
  } else {
    problems.add("{} has the quantisation {}, which must be an object, true or false", owner, printable_json(value));
    return;
  }
  const auto [known, fresh] = modules_.try_emplace(canonical_module(path), entry);
  if (!fresh && (known->second.rule != entry.rule || known->second.format != entry.format)) {
    problems.add("{} and another spelling of it disagree", owner);
  }
}

ModuleQuantization Quantization::of(std::string_view module) const {
  const auto found = modules_.find(canonical_module(module));
  return found == modules_.end() ? ModuleQuantization{ModuleRule::unsaid, global_} : found->second;
}

std::string Quantization::describe() const {
  if (!global_) return "none";
  std::string text = fmt::format("affine {} bit, groups of {}", global_->bits, global_->group_size);
  const auto differing = std::count_if(modules_.begin(), modules_.end(), [this](const auto& entry) {
    return entry.second.rule == ModuleRule::plain || entry.second.format != global_;
  });
  if (differing > 0) text += fmt::format(", {} modules differ", differing);
  return text;
}

namespace {

/// The tensor of this name if it is there with this dtype and shape; otherwise a problem and null.
const TensorInfo* expect(const TensorStore& store, const std::string& name, std::span<const int64_t> shape,
                         ProblemList& problems) {
  const TensorInfo* tensor = store.find(name);
  if (tensor == nullptr) {
    problems.add("{} is missing", name);
  } else if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) {
    problems.add("{} has the shape {} instead of {}", name, to_string(tensor->shape), to_string(shape));
    tensor = nullptr;
  }
  return tensor;
}

/// Bits and group size that the last dimensions say, both checked against what exists and divides.
std::optional<AffineFormat> format_of_shapes(int64_t inputs, int64_t words, int64_t groups) {
  if (words <= 0 || groups <= 0 || (words * 32) % inputs != 0 || inputs % groups != 0) return std::nullopt;
  const int64_t bits = words * 32 / inputs;
  const int64_t group_size = inputs / groups;
  if (!contains(kAffineBits, bits) || !contains(kAffineGroups, group_size)) return std::nullopt;
  return AffineFormat{static_cast<int32_t>(bits), static_cast<int32_t>(group_size)};
}

bool same_leading(std::span<const int64_t> a, std::span<const int64_t> b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end() - 1, b.begin());
}

void resolve_packed(const TensorStore& store, const ModuleQuantization& rule, const std::string& module,
                    std::span<const int64_t> shape, Linear& linear, ProblemList& problems) {
  const TensorInfo& weight = *linear.weight;
  const TensorInfo& scales = *linear.scales;
  if (weight.type != DataType::u32 && weight.type != DataType::i32) {
    problems.add("{}.weight has scales but the dtype {} instead of U32", module, to_string(weight.type));
    return;
  }
  if (!is_float(scales.type)) problems.add("{}.scales has the dtype {}, not a float", module, to_string(scales.type));
  if (!same_leading(weight.shape, shape) || !same_leading(scales.shape, shape)) {
    problems.add("{} has packed shapes {} and {} that do not fit {}", module, to_string(weight.shape),
                 to_string(scales.shape), to_string(shape));
    return;
  }
  linear.biases = expect(store, module + ".biases", scales.shape, problems);
  if (linear.biases != nullptr && linear.biases->type != scales.type) {
    problems.add("{}.biases has the dtype {}, its scales {}", module, to_string(linear.biases->type),
                 to_string(scales.type));
  }
  linear.affine = format_of_shapes(linear.inputs, weight.shape.back(), scales.shape.back());
  if (!linear.affine) {
    problems.add("{} has packed shapes {} and {}, no bits and group size that exist for {} inputs", module,
                 to_string(weight.shape), to_string(scales.shape), linear.inputs);
  } else if (rule.rule == ModuleRule::plain || !rule.format) {
    problems.add("{} is packed but config.json says that it is not", module);
  } else if (*linear.affine != *rule.format) {
    problems.add("{} is packed in {} bit and groups of {}, config.json says {} and {}", module, linear.affine->bits,
                 linear.affine->group_size, rule.format->bits, rule.format->group_size);
  }
}

}  // namespace

Linear resolve_linear(const TensorStore& store, const Quantization& quantization, std::string_view module_view,
                      std::span<const int64_t> shape, ProblemList& problems) {
  check(shape.size() == 2 || shape.size() == 3, "a linear module has two or three dimensions");
  const std::string module(module_view);
  const ModuleQuantization rule = quantization.of(module);
  Linear linear{&store, shape.size() == 3 ? shape[0] : 1, shape[shape.size() - 2], shape.back(), {}, {}, {}, {}};
  linear.weight = store.find(module + ".weight");
  linear.scales = store.find(module + ".scales");
  if (linear.weight == nullptr && linear.scales == nullptr) linear.weight = store.find(module);
  if (linear.weight == nullptr) {
    problems.add("{}.weight is missing", module);
  } else if (linear.scales != nullptr) {
    resolve_packed(store, rule, module, shape, linear, problems);
  } else if (rule.rule == ModuleRule::packed) {
    problems.add("{}.scales is missing, config.json says that the module is packed", module);
  } else if (!is_float(linear.weight->type)) {
    problems.add("{}.weight has the dtype {} and no scales", module, to_string(linear.weight->type));
  } else {
    expect(store, linear.weight->name, shape, problems);
  }
  return linear;
}

}  // namespace tensorfold::format
