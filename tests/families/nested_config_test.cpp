// An optional object of config.json that is something else must not count as absent: its defaults would apply unseen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint_files.h"
#include "families/checkpoint.h"
#include "shared_data.h"

namespace tensorfold::families {
namespace {

using nlohmann::json;

struct NestedObject {
  const char* family;
  const char* name;
};

class NestedObjects : public ::testing::TestWithParam<NestedObject> {};

TEST_P(NestedObjects, AreObjectsOrARefusal) {
  const auto path = testing::project_path(std::string("tests/golden/") + GetParam().family + "/mlx4/config.json");
  json config = json::parse(testing::read_file(path));
  ASSERT_NO_THROW(require_family(config).describe(config));
  json& text = config.contains("text_config") ? config["text_config"] : config;
  for (const json& wrong : {json("x"), json(3), json::array({1}), json(true)}) {
    text[GetParam().name] = wrong;
    try {
      require_family(config).describe(config);
      ADD_FAILURE() << wrong.dump() << " passed";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(std::string(GetParam().name) + " is "));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("not an object"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, NestedObjects,
                         ::testing::Values(NestedObject{"qwen3_5", "rope_parameters"},
                                           NestedObject{"qwen3_5", "rope_scaling"},
                                           NestedObject{"qwen4_exp", "rope_parameters"},
                                           NestedObject{"qwen4_exp", "mtp"}, NestedObject{"gemma4", "rope_parameters"},
                                           NestedObject{"gemma4", "per_layer_config"},
                                           NestedObject{"glm5_next", "linear_attn_config"}),
                         [](const auto& one) { return std::string(one.param.family) + "_" + one.param.name; });

TEST(NestedObjects, OneKindOfGemmasRotaryParametersIsAnObjectToo) {
  json config = json::parse(testing::read_file(testing::project_path("tests/golden/gemma4/mlx4/config.json")));
  json& text = config.contains("text_config") ? config["text_config"] : config;
  text["rope_parameters"] = {{"full_attention", "default"}};
  EXPECT_THROW(require_family(config).describe(config), Error);
}

}  // namespace
}  // namespace tensorfold::families
