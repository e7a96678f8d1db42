// The HTTP API over one service: routes, keys, CORS, errors, start and orderly end.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/api_keys.h"
#include "server/http_server.h"
#include "server/service.h"

namespace tensorfold::server {

struct ServerOptions {
  HttpServerOptions http;
  ServiceOptions service;
  std::vector<std::string> keys;
  std::string key_environment;  ///< comma-separated keys
  std::string key_file;
  bool metrics_open = false;      ///< metrics without a key
  std::vector<std::string> cors;  ///< allowed origins; "*" allows all; empty: CORS is off
  /// /health says "stalled" when there is work and nothing moved for so long; a long prompt's chunk on a small machine
  /// takes its time.
  std::chrono::milliseconds stall_patience = std::chrono::minutes(5);
};

class Server {
 public:
  /// Listens from here on. Throws Error for an address or a key file that cannot be used.
  Server(ServedModel model, ServerOptions options);
  /// Ends it: new requests are refused, running replies are cut by stopping the engine, replies are flushed.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] uint16_t port() const;
  [[nodiscard]] size_t connections() const;
  void reload_keys();
  RequestLog& log();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tensorfold::server
