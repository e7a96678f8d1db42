// HTTP/1.1 as the rest of the server sees it: requests come in whole, replies go out whole or as a stream. Sockets are
// asynchronous, so a stalled client costs memory up to a bound and no thread. The library behind it stays in the
// source.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tensorfold::server {

struct HttpRequest {
  std::string method;                                        ///< upper case
  std::string path;                                          ///< of the target, still percent-encoded
  std::string query;                                         ///< after the '?', without it
  std::vector<std::pair<std::string, std::string>> headers;  ///< names in lower case
  std::string body;
  std::string peer;  ///< address of the client

  /// The first header of this lower-case name.
  [[nodiscard]] std::optional<std::string_view> header(std::string_view name) const;
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  bool close = false;  ///< end the connection after this reply
};

/// One request and the way to answer it. All functions may be called from any thread. Dropping the last pointer without
/// an answer sends a 500, or breaks the stream off.
class Exchange {
 public:
  virtual ~Exchange() = default;
  [[nodiscard]] virtual const HttpRequest& request() const = 0;
  /// Answers with a whole reply. At most one of reply() and begin_stream(), once.
  virtual void reply(HttpReply reply) = 0;
  /// Sends the head of a streamed reply; the body follows through write(). `ping` goes out whenever nothing was written
  /// for `ping_after`; empty: never.
  virtual void begin_stream(HttpReply head, std::string ping, std::chrono::seconds ping_after) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void end_stream() = 0;
  /// Bytes that wait for the client to read them.
  [[nodiscard]] virtual size_t unsent() const = 0;
  /// True when the client has closed the connection.
  [[nodiscard]] virtual bool gone() const = 0;
  /// Calls `left` once, on the server's thread, as soon as the client is known to be gone; at once when it already is.
  virtual void on_gone(std::function<void()> left) = 0;
  /// Calls `drained` on the server's thread each time that everything written has been handed to the system.
  virtual void on_drained(std::function<void()> drained) = 0;
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  ///< 0: any free port
  size_t body_limit = size_t{32} << 20;
  size_t header_limit = size_t{64} << 10;
  std::chrono::seconds header_timeout{20};  ///< from a request's first byte to the end of its header
  std::chrono::seconds body_timeout{30};    ///< without a byte of the body
  std::chrono::seconds idle_timeout{120};   ///< between requests
  std::chrono::seconds write_timeout{120};  ///< without the client taking a byte
  size_t max_connections = 8192;
  std::string server_name = "tensorfold";
};

/// Listens from construction on (Error(io) names the address when that fails) and answers from start() on, on one
/// thread of its own.
class HttpServer {
 public:
  /// Called on the server's thread with a complete request; must return at once.
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;
  /// Called on the server's thread before the body is read; a reply refuses the request and closes the connection.
  using Screen = std::function<std::optional<HttpReply>(const HttpRequest&)>;
  /// The JSON (or other) body of an error that the HTTP layer itself finds.
  using ErrorBody = std::function<std::string(int status, const std::string& message, const HttpRequest*)>;

  HttpServer(HttpServerOptions options, Handler handler, Screen screen = {}, ErrorBody error_body = {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  void start();
  [[nodiscard]] uint16_t port() const;
  [[nodiscard]] size_t connections() const;
  /// Stops accepting, waits until open exchanges have ended (at most `patience`), then closes everything.
  void stop(std::chrono::milliseconds patience = std::chrono::seconds(10));

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tensorfold::server
