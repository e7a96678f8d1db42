// The one line a family adds outside its own folder is in all_families.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "families/gemma4/model.h"
#include "families/glm5_next/model.h"
#include "families/model.h"
#include "families/nemotron_h/model.h"
#include "families/qwen3_5/model.h"
#include "families/qwen4_exp/model.h"
#include "format/config.h"

namespace tensorfold::families {

std::span<const Family> all_families() {
  static const std::vector<Family> families = {qwen3_5::family(), nemotron_h::family(), gemma4::family(),
                                               qwen4_exp::family(), glm5_next::family()};
  return families;
}

const Family* find_family(const nlohmann::json& config) {
  for (const nlohmann::json* object : {&config, &format::text_config(config)}) {
    const auto type = object->find("model_type");
    if (type == object->end() || !type->is_string()) continue;
    for (const Family& family : all_families()) {
      const auto& aliases = family.aliases;
      if (*type == family.model_type) return &family;
      if (std::find(aliases.begin(), aliases.end(), type->get<std::string>()) != aliases.end()) return &family;
    }
  }
  return nullptr;
}

}  // namespace tensorfold::families
