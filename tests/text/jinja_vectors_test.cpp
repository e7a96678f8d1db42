// Our template engine against the answers that Jinja2 with Hugging Face's settings gave.
#include <fstream>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "shared_data.h"
#include "text/jinja/json_value.h"
#include "text/jinja/template.h"

namespace tensorfold::text::jinja {
namespace {

using nlohmann::ordered_json;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

/// The clock that the recorded answers were made with: 2026-11-30 13:08:24, a Monday.
std::tm recorded_clock() {
  std::tm time{};
  time.tm_year = 126;
  time.tm_mon = 10;
  time.tm_mday = 30;
  time.tm_hour = 13;
  time.tm_min = 8;
  time.tm_sec = 24;
  time.tm_wday = 1;
  time.tm_yday = 333;
  return time;
}

const Value* find(const Value& mapping, std::string_view key) { return mapping.dict().find(key); }
const Value& field(const Value& mapping, std::string_view key) { return *find(mapping, key); }
std::string text_field(const Value& mapping, std::string_view key) { return field(mapping, key).text().str(); }

struct Outcome {
  std::string text;
  std::string error;
};

Outcome render(const std::string& source, const Value& variables) {
  try {
    return {Template(source).render(variables, {recorded_clock, {}}).str(), ""};
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_request);
    return {"", error.what()};
  }
}

/// Says how an outcome differs from the recorded one; empty if it does not.
std::string difference(const Outcome& outcome, const ordered_json& recorded) {
  if (recorded.contains("out")) {
    const auto expected = recorded["out"].get<std::string>();
    if (!outcome.error.empty()) return "failed: " + outcome.error;
    return outcome.text == expected ? "" : fmt::format("gave   {}\nwanted {}", outcome.text, expected);
  }
  if (outcome.error.empty()) return "gave " + outcome.text + "\nwanted the error " + recorded["error"].dump();
  if (recorded["error"]["kind"] == "raise" && outcome.error != recorded["error"]["message"]) {
    return "raised " + outcome.error + "\nwanted " + recorded["error"]["message"].dump();
  }
  return "";
}

TEST(JinjaVectors, EverySnippetRendersAsJinja2Does) {
  const auto path = testing::shared_path("golden/text/jinja_snippets.json");
  if (!path) GTEST_SKIP() << "no shared folder with reference vectors";
  const Value document = parse_json(read_file(*path));
  std::size_t checked = 0;
  for (const Value& test_case : field(document, "cases").sequence().items) {
    const std::string name = text_field(test_case, "name");
    ordered_json recorded;
    if (const Value* out = find(test_case, "out")) recorded["out"] = out->text().str();
    if (const Value* error = find(test_case, "error"))
      recorded["error"] = ordered_json::parse(dump_json(*error).view());
    const Outcome outcome = render(text_field(test_case, "src"), field(test_case, "ctx"));
    EXPECT_EQ(difference(outcome, recorded), "") << name << ": " << text_field(test_case, "src");
    ++checked;
  }
  EXPECT_EQ(checked, 318U);
}

/// The recorded template's variables with the context of a case over them.
Value merged(const Value& variables, const Value& context) {
  auto entries = variables.dict().entries();
  for (const auto& entry : context.dict().entries()) entries.push_back(entry);
  return Value::dict(std::move(entries));
}

class TemplateVectors : public ::testing::TestWithParam<std::string> {};

TEST_P(TemplateVectors, EveryConversationRendersAsJinja2Does) {
  const auto directory = testing::shared_path("golden/text");
  if (!directory) GTEST_SKIP() << "no shared folder with reference vectors";
  const Value inputs = parse_json(read_file(*directory / "chat/inputs.json"));
  const ordered_json recorded = ordered_json::parse(read_file(*directory / "chat" / (GetParam() + ".json")));
  const std::string source = read_file(*directory / "templates" / (GetParam() + ".jinja"));
  const Value variables = from_json(recorded["vars"], false);
  std::size_t checked = 0;
  for (const Value& input : field(inputs, "cases").sequence().items) {
    const std::string name = text_field(input, "name");
    if (!recorded["cases"].contains(name)) continue;
    const Outcome outcome = render(source, merged(variables, field(input, "context")));
    EXPECT_EQ(difference(outcome, recorded["cases"][name]), "") << name;
    ++checked;
  }
  EXPECT_EQ(checked, recorded["cases"].size());
  EXPECT_GT(checked, 100U);
}

INSTANTIATE_TEST_SUITE_P(Templates, TemplateVectors,
                         ::testing::Values("deepseek_v3_1", "deepseek_v3_2", "deepseek_v4_flash", "functionary_3_2",
                                           "gemma_3", "gemma_4_31b", "gemma_4_31b_llamacpp", "gemma_4_e2b",
                                           "glm_4_7_flash", "glm_5_2", "glm_5_3_flash", "gpt_oss", "granite_4_1",
                                           "hermes_3_tool_use", "llama_3_3", "minimax_m2", "mistral_nemo",
                                           "nemotron_3_5_lightning", "nemotron_3_nano", "qwen2_5", "qwen3", "qwen3_5",
                                           "qwen3_8", "qwen3_coder"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace tensorfold::text::jinja
