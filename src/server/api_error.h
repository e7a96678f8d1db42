// A refused or failed request as clients see it, in OpenAI's and in Anthropic's shape.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace tensorfold::server {

/// An error with everything a client's library looks at.
class ApiError : public Error {
 public:
  ApiError(int status, std::string type, const std::string& message, std::string code = {}, std::string param = {})
      : Error(status < 500 ? ErrorKind::invalid_request : ErrorKind::internal, message),
        status_(status),
        type_(std::move(type)),
        code_(std::move(code)),
        param_(std::move(param)) {}
  [[nodiscard]] int status() const { return status_; }
  [[nodiscard]] const std::string& type() const { return type_; }
  [[nodiscard]] const std::string& code() const { return code_; }
  [[nodiscard]] const std::string& param() const { return param_; }

 private:
  int status_;
  std::string type_;
  std::string code_;
  std::string param_;
};

/// 400 invalid_request_error about `param` (may be empty).
ApiError bad_request(const std::string& message, std::string param = {});

/// Any failure as an ApiError: kinds of Error become statuses, everything else a 500.
ApiError to_api_error(const std::exception_ptr& failure);

/// Which client library reads the error.
enum class Dialect { openai, anthropic };

/// The error's body: {"error":{…}} or {"type":"error","error":{…}}.
std::string error_body(const ApiError& error, Dialect dialect);

/// The dialect of a route.
Dialect dialect_of(std::string_view path);

}  // namespace tensorfold::server
