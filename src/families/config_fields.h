// Reads a family's fields from config.json and gathers everything that is missing, malformed or not served.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "format/problem_list.h"

namespace tensorfold::families {

class ConfigFields {
 public:
  explicit ConfigFields(const nlohmann::json& object) : object_(object) {}

  /// An integer in [least, most]; without it `fallback`, and without that a problem. Null counts as absent.
  int32_t integer(const char* name, int32_t least, int32_t most, std::optional<int32_t> fallback = {});
  /// A finite number in [least, most].
  double number(const char* name, double least, double most, std::optional<double> fallback = {});
  bool boolean(const char* name, bool fallback);
  std::string text(const char* name, const std::string& fallback);
  /// A list of strings; empty where it is absent.
  std::vector<std::string> texts(const char* name);
  /// A nested object; null where it is absent, and a problem too where it is anything else.
  [[nodiscard]] const nlohmann::json* object(const char* name);
  /// A problem unless `served`: the field has a value that this family's forward does not cover.
  void serve(const char* name, bool served);

  [[nodiscard]] format::ProblemList& problems() { return problems_; }
  /// Throws Error(unsupported) "config.json: ..." with everything found.
  void finish() const { problems_.throw_if_any(ErrorKind::unsupported, "config.json"); }

 private:
  [[nodiscard]] const nlohmann::json* find(const char* name) const;
  void refuse(const char* name, const char* wanted);

  const nlohmann::json& object_;
  format::ProblemList problems_;
};

}  // namespace tensorfold::families
