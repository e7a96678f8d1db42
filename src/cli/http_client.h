// A small HTTP/1.1 client for measuring servers: one request a connection, the body handed over as it arrives.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tensorfold::cli {

/// http://host[:port][/prefix], taken apart. Throws Error(invalid_request) for anything else.
struct ServerUrl {
  std::string host;
  std::string port;
  std::string prefix;  ///< path before the API's own, without a slash at its end and without "/v1"
  static ServerUrl parse(std::string_view url);
};

struct HttpAnswer {
  int status = 0;
  std::string content_type;
  std::string body;  ///< empty when a receiver took it
};

/// Called with each server-sent event's data as it arrives.
using EventReceiver = std::function<void(std::string_view data)>;

/// GET with an empty body, else POST. `timeout_seconds` without a byte is an Error(network), as is everything else that
/// keeps the answer from arriving.
HttpAnswer exchange(const ServerUrl& url, const std::string& path, const std::string& key, const std::string& body,
                    int timeout_seconds, const EventReceiver& on_event = {});

}  // namespace tensorfold::cli
