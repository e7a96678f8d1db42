// Any template over a small conversation: it renders or ends in one Error, within its limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "text/jinja/json_value.h"
#include "text/jinja/template.h"

using tensorfold::text::jinja::RenderOptions;
using tensorfold::text::jinja::Template;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto variables =
      tensorfold::text::jinja::parse_json(R"({"messages": [{"role": "user", "content": "hé <b>"},
      {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]}],
      "tools": null, "n": 3, "text": "one two"})");
  RenderOptions options;
  options.limits.steps = 100'000;
  options.limits.memory = std::size_t{8} << 20U;
  options.limits.text = std::size_t{1} << 20U;
  try {
    static_cast<void>(Template({reinterpret_cast<const char*>(data), size}).render(variables, options));
  } catch (const tensorfold::Error& error) {
    if (error.kind() == tensorfold::ErrorKind::internal) throw;
  }
  return 0;
}
