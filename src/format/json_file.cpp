#include "format/json_file.h"

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace tensorfold::format {

using nlohmann::json;

json read_json_object(const std::filesystem::path& path, uint64_t most_bytes, ProblemList& problems) {
  constexpr int kDeepest = 64;
  const std::string name = printable(path.filename().string());
  const auto bound_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth > kDeepest) fail(ErrorKind::corrupt_file, "it is nested more than {} deep", kDeepest);
    return true;
  };
  try {
    json value = json::parse(read_text_file(path, most_bytes), bound_depth);
    if (value.is_object()) return value;
    problems.add("{} is not a JSON object", name);
  } catch (const json::parse_error& error) {
    problems.add("{} is not valid JSON at byte {}", name, error.byte);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::corrupt_file) throw;
    problems.add("{}: {}", name, error.what());
  }
  return json::object();
}

}  // namespace tensorfold::format
