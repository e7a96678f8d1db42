#include "families/conversion_recipe.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tensorfold::families {
namespace {

struct Recipe {
  const char* name;
  int32_t low;
  int32_t high;
};

constexpr Recipe kRecipes[] = {{"mixed_2_6", 2, 6}, {"mixed_3_4", 3, 4}, {"mixed_3_5", 3, 5}, {"mixed_3_6", 3, 6},
                               {"mixed_3_8", 3, 8}, {"mixed_4_6", 4, 6}, {"mixed_4_8", 4, 8}};

/// The number behind ".layers." in a module's name.
std::optional<int32_t> layer_of(const std::string& module) {
  constexpr std::string_view mark = "layers.";
  const size_t at = module.find(mark);
  if (at == std::string::npos) return std::nullopt;
  int32_t layer = 0;
  const char* first = module.data() + at + mark.size();
  const auto parsed = std::from_chars(first, module.data() + module.size(), layer);
  return parsed.ec == std::errc() ? std::optional(layer) : std::nullopt;
}

bool gets_more(const TensorSpec& spec, int32_t layers) {
  if (spec.module.ends_with("lm_head")) return true;
  if (!spec.module.ends_with("v_proj") && !spec.module.ends_with("down_proj")) return false;
  const std::optional<int32_t> layer = spec.draft_head ? std::nullopt : layer_of(spec.module);
  if (!layer) return false;
  const int32_t eighth = layers / 8;
  return *layer < eighth || *layer >= 7 * layers / 8 || (*layer - eighth) % 3 == 2;
}

}  // namespace

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const Recipe& recipe : kRecipes) names.emplace_back(recipe.name);
  return names;
}

nlohmann::json make_quantization(const Family& family, const nlohmann::json& config, int32_t bits, int32_t group,
                                 const std::string& recipe) {
  if (recipe.empty()) return {{"bits", bits}, {"group_size", group}, {"mode", "affine"}};
  const auto* known =
      std::find_if(std::begin(kRecipes), std::end(kRecipes), [&](const Recipe& each) { return recipe == each.name; });
  if (known == std::end(kRecipes))
    fail(ErrorKind::invalid_request, "no recipe {} (there are {})", recipe, fmt::join(recipe_names(), ", "));
  nlohmann::json block = {{"bits", known->low}, {"group_size", group}, {"mode", "affine"}};
  const int32_t layers = family.describe(config).layers;
  for (const TensorSpec& spec : family.inventory(config, {})) {
    if (spec.role == TensorRole::linear && !spec.never_packed && spec.shape.back() % group == 0 &&
        gets_more(spec, layers)) {
      block[spec.module] = {{"bits", known->high}, {"group_size", group}};
    }
  }
  return block;
}

}  // namespace tensorfold::families
