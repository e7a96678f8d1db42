#include "text/template_traits.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/error.h"
#include "text/jinja/json_value.h"

namespace tensorfold::text {

namespace {

constexpr std::array<std::string_view, 6> effort_words = {"minimal", "low", "medium", "high", "xhigh", "max"};

constexpr std::string_view dummy_tools = R"([{"type": "function", "function": {"name": "zzdummy", "description": "",
    "parameters": {"type": "object", "properties": {}}}}])";

std::optional<std::string> try_render(const TrialRender& render, std::string_view messages,
                                      std::string_view tools = "null") {
  try {
    return render(jinja::parse_json(messages, false), jinja::parse_json(tools, false));
  } catch (const Error&) {
    return std::nullopt;  // a template may refuse any conversation; the traits say what it does accept
  }
}

bool find_late_system(const TrialRender& render) {
  const auto text = try_render(render, R"([{"role": "system", "content": "a"}, {"role": "user", "content": "b"},
      {"role": "assistant", "content": "c"}, {"role": "system", "content": "ZZPROBE"}, {"role": "user", "content": "d"}])");
  return text && text->find("ZZPROBE") != std::string::npos;
}

std::string call_conversation(std::string_view arguments) {
  return R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "call00001",
      "type": "function", "function": {"name": "zzdummy", "arguments": )" +
         std::string(arguments) + R"(}}]}])";
}

bool find_arguments_as_text(const TrialRender& render) {
  return !try_render(render, call_conversation(R"({"zzkey": "zzvalue"})"), dummy_tools) &&
         try_render(render, call_conversation(R"("{\"zzkey\": \"zzvalue\"}")"), dummy_tools);
}

std::optional<CallFormat> find_call_format(const TrialRender& render) {
  const auto text = try_render(render, call_conversation("{}"), dummy_tools);
  // The last mention: the list of tools comes before it.
  const std::size_t name = text ? text->rfind("zzdummy") : std::string::npos;
  if (name == std::string::npos) return std::nullopt;
  std::size_t position = std::string::npos;
  std::string opener;
  for (const std::string_view candidate : {"<tool_call>", "<|tool_call>"}) {
    const std::size_t found = text->rfind(candidate, name);
    if (found == std::string::npos || (position != std::string::npos && found < position)) continue;
    position = found;
    opener = candidate;
  }
  if (position == std::string::npos) return std::nullopt;
  const std::size_t lead = position + opener.size();
  constexpr std::size_t name_size = 7;
  return CallFormat{opener, text->substr(lead, name - lead), text->substr(name + name_size, 1)};
}

std::vector<std::string> find_effort_levels(std::string_view source) {
  std::vector<std::string> levels;
  for (const std::string_view word : effort_words) {
    for (const char quote : {'"', '\''}) {
      const std::string quoted = quote + std::string(word) + quote;
      if (source.find(quoted) == std::string_view::npos) continue;
      levels.emplace_back(word);
      break;
    }
  }
  return levels;
}

std::ptrdiff_t effort_rank(std::string_view word) {
  return std::find(effort_words.begin(), effort_words.end(), word) - effort_words.begin();
}

}  // namespace

TemplateTraits find_template_traits(std::string_view source, const TrialRender& render) {
  TemplateTraits traits;
  traits.renders_late_system = find_late_system(render);
  traits.arguments_as_text = find_arguments_as_text(render);
  traits.call_format = find_call_format(render);
  traits.effort_levels = find_effort_levels(source);
  return traits;
}

std::string effort_for_template(const TemplateTraits& traits, std::string_view asked) {
  const std::ptrdiff_t rank = effort_rank(asked);
  if (rank == static_cast<std::ptrdiff_t>(effort_words.size())) {
    fail(ErrorKind::invalid_request,
         "reasoning_effort must be none, minimal, low, medium, high, xhigh or max, not '{}'", asked);
  }
  if (traits.effort_levels.empty()) return asked == "max" ? "xhigh" : std::string(asked);
  const auto distance = [&](const std::string& level) { return std::abs(effort_rank(level) - rank); };
  std::string nearest = traits.effort_levels.front();
  for (const std::string& level : traits.effort_levels) {
    if (distance(level) <= distance(nearest)) nearest = level;
  }
  return nearest;
}

}  // namespace tensorfold::text
