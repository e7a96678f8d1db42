#include "cli/known_models.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/quantization.h"

namespace tensorfold::cli {
namespace {

constexpr std::array kModels = {
    KnownModel{"TensorFold/Qwen3.8-27B-MLX-4bit", "qwen3_5", 5120, 64, "16.1 GB", "", "Vontra/Qwen3.8-27B-MLX-4bit"},
    KnownModel{"prism-ml/Ternary-Bonsai-2-27B-mlx-2bit", "qwen3_5", 5120, 64, "", "", ""},
    KnownModel{"TensorFold/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-MLX-4bit", "nemotron_h", 2688, 52, "18.6 GB",
               "mtp-4bit.safetensors", "Vontra/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-MLX-4bit"},
    KnownModel{"mlx-community/gemma-4-26b-a4b-it-4bit", "gemma4", 2816, 30, "15 GB", "", ""},
    KnownModel{"TensorFold/Qwen3.8-Flash-Next-MLX-4bit-MTP", "qwen4_exp", 2560, 48, "113 GB", "",
               "Vontra/Qwen3.8-Flash-Next-MLX-4bit-MTP"},
    KnownModel{"TensorFold/GLM-5.3-Flash-MLX-4bit-MTP", "glm5_next", 4096, 45, "182 GB", "",
               "Vontra/GLM-5.3-Flash-MLX-4bit-MTP"},
};

constexpr std::array kDrafters = {
    KnownDrafter{"z-lab/Qwen3.8-27B-DFlash2", "qwen3_5", 5120, 64, "3.8 GB"},
    KnownDrafter{"z-lab/gemma-4-26B-A4B-it-DFlash", "gemma4", 2816, 30, "0.9 GB"},
    KnownDrafter{"incoai/GLM-5.3-Flash-DFlash2", "glm5_next", 4096, 45, "2.3 GB"},
};

template <typename Known>
bool has_sizes_of(const Known& known, const families::ModelInfo& info) {
  return known.family == info.model_type && known.hidden_size == info.hidden_size && known.layers == info.layers;
}

template <typename Known, typename Test>
const Known* first_of(std::span<const Known> all, Test test) {
  const auto found = std::find_if(all.begin(), all.end(), test);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

std::span<const KnownModel> known_models() { return kModels; }
std::span<const KnownDrafter> known_drafters() { return kDrafters; }

const KnownModel* known_model(std::string_view name) {
  name = name.substr(0, name.find('@'));
  return first_of(known_models(),
                  [&](const KnownModel& known) { return known.repo == name || known.former_repo == name; });
}

const KnownModel* model_with_head_file(const families::CheckpointReport& report) {
  if (report.quantization == format::Quantization().describe()) return nullptr;
  return first_of(known_models(), [&](const KnownModel& known) {
    return !known.head_file.empty() && has_sizes_of(known, report.info);
  });
}

const KnownDrafter* known_drafter(const families::ModelInfo& info) {
  return first_of(known_drafters(), [&](const KnownDrafter& known) { return has_sizes_of(known, info); });
}

std::string untested_note(const std::string& model, std::string_view family) {
  std::error_code ignored;
  const bool is_repository =
      std::count(model.begin(), model.end(), '/') == 1 && !std::filesystem::exists(model, ignored);
  if (!is_repository || known_model(model) != nullptr) return "";
  std::vector<std::string_view> known;
  for (const KnownModel& one : known_models())
    if (one.family == family) known.push_back(one.repo);
  if (known.empty()) return "";
  return fmt::format(
      "an untested conversion: this family was written for {}. It runs if its format matches, exact as ever; its speed "
      "and quality are unmeasured",
      fmt::join(known, " and "));
}

}  // namespace tensorfold::cli
