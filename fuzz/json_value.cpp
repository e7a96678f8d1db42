// Any bytes as JSON: refused with one Error, or written and read again to the same text.
#include "text/jinja/json_value.h"

#include <cstddef>
#include <cstdint>

#include "base/error.h"

using tensorfold::text::jinja::dump_json;
using tensorfold::text::jinja::parse_json;
using tensorfold::text::jinja::Value;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Value value;
  try {
    value = parse_json({reinterpret_cast<const char*>(data), size});
  } catch (const tensorfold::Error&) {
    return 0;
  }
  const auto written = dump_json(value);
  tensorfold::check(dump_json(parse_json(written.view())).view() == written.view(),
                    "JSON text changes when read again");
  return 0;
}
