// One client's connection: the state machine that reads requests and writes replies. Internal to the HTTP server; the
// only headers beside it that know the socket library.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "server/http_server.h"

namespace tensorfold::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::beast::flat_buffer;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

class Connection;

/// What every connection of a server shares. Used on the server's thread only, but for `io`.
struct ConnectionHost {
  HttpServerOptions options;
  HttpServer::Handler handler;
  HttpServer::Screen screen;
  HttpServer::ErrorBody error_body;
  asio::io_context io{1};
  bool stopping = false;
  std::function<void(const std::shared_ptr<Connection>&)> closed;
};

/// What the connection and the exchange's holders share; locked, since they live on different threads.
struct Outgoing {
  std::mutex mutex;
  std::string pending;     // not yet taken by the connection
  size_t in_flight = 0;    // taken, not yet given to the system
  bool scheduled = false;  // the connection knows that there is something
  bool answered = false;   // reply() or begin_stream() was called
  bool streaming = false;  // begun and not ended
  bool chunked = false;
  bool complete = false;  // nothing more will be written
  bool gone = false;
  bool close = false;
  std::string ping;
  std::chrono::seconds ping_after{0};
  Clock::time_point last_write;
  std::function<void()> left;
  std::function<void()> drained;
  int socket = -1;  // valid while not `gone`

  /// Hands the system as much of `bytes` as it takes at once when nothing is queued before them; the rest is queued.
  /// With the mutex held. True when there is something for the connection to do.
  bool send_or_queue(std::string_view bytes);
};

/// One client. Every member function but wake() runs on the server's thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ConnectionHost& host, tcp::socket socket);
  void start();
  void sweep(Clock::time_point now);
  void close();
  /// True while a request is being answered.
  [[nodiscard]] bool answering() const { return state_ == State::answering; }
  /// From any thread: there is something to write, or the exchange has ended.
  void wake(const std::shared_ptr<Outgoing>& outgoing);

 private:
  enum class State { idle, header, body, answering, lingering, closed };

  void read();
  void on_read(error_code error, size_t count);
  void advance();
  bool parse_header();
  bool parse_body();
  bool header_done();
  void body_done();
  void refuse(int status, const std::string& message);
  void send_and_close(HttpReply reply);
  void pump();
  void write_some();
  void on_written(error_code error, size_t count);
  void exchange_done();
  void client_left();
  void enter(State state, std::chrono::seconds patience);
  HttpRequest head() const;

  ConnectionHost& host_;
  tcp::socket socket_;
  std::string peer_;
  State state_ = State::idle;
  Clock::time_point deadline_ = Clock::time_point::max();
  flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  bool header_complete_ = false;
  bool reading_ = false;
  bool keep_alive_ = true;
  bool head_only_ = false;
  bool http_1_0_ = false;
  size_t lingered_ = 0;
  std::shared_ptr<Outgoing> outgoing_;
  std::string writing_;
  size_t written_ = 0;
  bool write_active_ = false;
};

}  // namespace tensorfold::server
