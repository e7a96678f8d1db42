#include "server/api_error.h"

#include "server/json_body.h"

namespace tensorfold::server {
namespace {

int status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_request:
    case ErrorKind::unsupported:
      return 400;
    case ErrorKind::unauthorized:
      return 401;
    case ErrorKind::not_found:
      return 404;
    case ErrorKind::capacity:
    case ErrorKind::cancelled:
      return 503;
    case ErrorKind::corrupt_file:
    case ErrorKind::io:
    case ErrorKind::network:
    case ErrorKind::internal:
      return 500;
  }
  return 500;
}

std::string_view anthropic_type(const ApiError& error) {
  switch (error.status()) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return "overloaded_error";
    default:
      return error.status() < 500 ? "invalid_request_error" : "api_error";
  }
}

/// The JSON library's words without its own name and number in front.
std::string library_message(const std::string& message) {
  const size_t end = message.rfind("[json.exception", 0) == 0 ? message.find("] ") : std::string::npos;
  return end == std::string::npos ? message : message.substr(end + 2);
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

ApiError bad_request(const std::string& message, std::string param) {
  return {400, "invalid_request_error", message, {}, std::move(param)};
}

ApiError to_api_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const ApiError& error) {
    return error;
  } catch (const Error& error) {
    const int status = status_of(error.kind());
    return {status, status < 500 ? "invalid_request_error" : "server_error", error.what()};
  } catch (const Json::exception& error) {
    // A field of a kind that no check expected: the request's fault all the same.
    return bad_request("a field has the wrong type: " + library_message(error.what()));
  } catch (const std::bad_alloc&) {
    return {503, "server_error", "the server is out of memory"};
  } catch (const std::exception& error) {
    return {500, "server_error", std::string("internal error: ") + error.what()};
  }
}

std::string error_body(const ApiError& error, Dialect dialect) {
  Json body;
  if (dialect == Dialect::anthropic) {
    body["type"] = "error";
    // Agents that speak this dialect compact a conversation when they read these words.
    const std::string lead = error.code() == "context_length_exceeded" ? "prompt is too long: " : "";
    body["error"] = {{"type", anthropic_type(error)}, {"message", lead + error.what()}};
  } else {
    body["error"] = {{"message", error.what()},
                     {"type", error.type()},
                     {"param", text_or_null(error.param())},
                     {"code", text_or_null(error.code())}};
  }
  return dump(body);
}

Dialect dialect_of(std::string_view path) {
  return path.find("/messages") != std::string_view::npos ? Dialect::anthropic : Dialect::openai;
}

}  // namespace tensorfold::server
