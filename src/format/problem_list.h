// Collects everything that is wrong with a file or a checkpoint, so that the user reads it once, in one line.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/error.h"

namespace tensorfold::format {

/// A name from a file as it may stand in a message: control characters and invalid UTF-8 escaped, length bounded.
std::string printable(std::string_view name);
/// A JSON value as it may stand in a message: a plain value as JSON, "a list" or "an object" otherwise.
std::string printable_json(const nlohmann::json& value);
/// "[2, 3]".
std::string to_string(std::span<const int64_t> shape);

class ProblemList {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  [[nodiscard]] bool empty() const { return problems_.empty(); }
  [[nodiscard]] const std::vector<std::string>& all() const { return problems_; }
  /// Throws Error(kind) "subject: problem; problem; ..." unless the list is empty.
  void throw_if_any(ErrorKind kind, std::string_view subject) const;

 private:
  std::vector<std::string> problems_;
};

}  // namespace tensorfold::format
