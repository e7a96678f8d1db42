// A connection has one outstanding read at all times: while a reply is being made it is how a vanished client is
// noticed, and what arrives meanwhile (a pipelined request) waits in the buffer up to a bound.
#include "server/http_connection.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <sys/socket.h>

#include "base/error.h"

namespace tensorfold::server {
namespace {

constexpr size_t read_piece = size_t{64} << 10;       // bytes asked of the socket at a time
constexpr size_t pipelined_limit = size_t{64} << 10;  // bytes of later requests kept while one is being answered
// A chunk's size with its extensions, or everything behind the last chunk. The parser takes either as a whole, so this
// is also what a client can make us hold beside the body.
constexpr size_t chunk_line_limit = size_t{8} << 10;
constexpr size_t linger_limit = size_t{64} << 20;  // bytes of a refused body read before the connection is cut
constexpr std::chrono::seconds linger_time{5};

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return result;
}

std::string_view reason_phrase(int status) {
  const auto phrase = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  return {phrase.data(), phrase.size()};
}

/// A header value must not open another header.
std::string one_line(std::string value) {
  value.erase(std::remove_if(value.begin(), value.end(), [](char c) { return c == '\r' || c == '\n'; }), value.end());
  return value;
}

/// A header's value without blanks at its ends; with several headers of this name, none of them.
std::string header_value(const http::request<http::string_body>& message, http::field field) {
  if (message.count(field) != 1) return {};
  const auto value = message[field];
  return std::string(value.data(), value.size());
}

/// The absolute form of a target, as proxies are sent it, begins with a scheme and a host.
std::string without_authority(std::string target) {
  if (target.empty() || target.front() == '/') return target;
  const size_t scheme = target.find("://");
  if (scheme == std::string::npos) return target;
  const size_t path = target.find_first_of("/?", scheme + 3);
  if (path == std::string::npos) return "/";
  return target[path] == '?' ? "/" + target.substr(path) : target.substr(path);
}

std::string chunk(std::string_view bytes) { return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes); }

/// Status line and headers. `streamed`: the length is not known.
std::string reply_head(const HttpReply& reply, bool streamed, bool keep_alive, bool http_1_0,
                       const std::string& server_name) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nServer: {}\r\nContent-Type: {}\r\n", reply.status,
                                 reason_phrase(reply.status), server_name, reply.content_type);
  for (const auto& [name, value] : reply.headers) head += fmt::format("{}: {}\r\n", one_line(name), one_line(value));
  if (!streamed) {
    head += fmt::format("Content-Length: {}\r\n", reply.body.size());
  } else if (!http_1_0) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  const bool stays = keep_alive && !reply.close && !(streamed && http_1_0);
  head += stays ? (http_1_0 ? "Connection: keep-alive\r\n\r\n" : "\r\n") : "Connection: close\r\n\r\n";
  return head;
}

/// The holder's side of an exchange.
class ExchangeOnConnection final : public Exchange {
 public:
  ExchangeOnConnection(std::shared_ptr<Connection> connection, std::shared_ptr<Outgoing> outgoing, HttpRequest request,
                       std::function<std::string(const HttpReply&, bool)> head)
      : connection_(std::move(connection)),
        outgoing_(std::move(outgoing)),
        request_(std::move(request)),
        head_(std::move(head)) {}

  ~ExchangeOnConnection() override {
    bool answered = false;
    {
      const std::lock_guard lock(outgoing_->mutex);
      answered = outgoing_->answered;
      if (answered && outgoing_->streaming) {  // broken off: the missing last chunk tells the client
        outgoing_->streaming = false;
        outgoing_->close = true;
        outgoing_->complete = true;
      }
    }
    if (answered) {
      connection_->wake(outgoing_);
    } else {
      HttpReply failure;
      failure.status = 500;
      failure.body = R"({"error":{"message":"the request was dropped","type":"server_error"}})";
      reply(std::move(failure));
    }
  }

  const HttpRequest& request() const override { return request_; }

  void reply(HttpReply reply) override {
    std::string bytes = head_(reply, false);
    if (request_.method != "HEAD") bytes += reply.body;
    {
      const std::lock_guard lock(outgoing_->mutex);
      check(!outgoing_->answered, "an exchange was answered twice");
      outgoing_->answered = true;
      outgoing_->complete = true;
      outgoing_->close = outgoing_->close || reply.close;
      outgoing_->pending += bytes;
    }
    connection_->wake(outgoing_);
  }

  void begin_stream(HttpReply head, std::string ping, std::chrono::seconds ping_after) override {
    const std::string bytes = head_(head, true);
    {
      const std::lock_guard lock(outgoing_->mutex);
      check(!outgoing_->answered, "an exchange was answered twice");
      outgoing_->answered = true;
      outgoing_->streaming = true;
      outgoing_->close = outgoing_->close || head.close || !outgoing_->chunked;
      outgoing_->pending += bytes;
      outgoing_->ping = std::move(ping);
      outgoing_->ping_after = ping_after;
      outgoing_->last_write = Clock::now();
    }
    connection_->wake(outgoing_);
  }

  void write(std::string bytes) override {
    if (bytes.empty()) return;
    bool queued = false;
    {
      const std::lock_guard lock(outgoing_->mutex);
      if (!outgoing_->streaming || outgoing_->gone) return;
      queued = outgoing_->send_or_queue(outgoing_->chunked ? chunk(bytes) : bytes);
      outgoing_->last_write = Clock::now();
    }
    if (queued) connection_->wake(outgoing_);
  }

  void end_stream() override {
    {
      const std::lock_guard lock(outgoing_->mutex);
      if (!outgoing_->streaming) return;
      outgoing_->streaming = false;
      outgoing_->complete = true;
      if (outgoing_->chunked) outgoing_->pending += "0\r\n\r\n";
    }
    connection_->wake(outgoing_);
  }

  size_t unsent() const override {
    const std::lock_guard lock(outgoing_->mutex);
    return outgoing_->gone ? 0 : outgoing_->pending.size() + outgoing_->in_flight;
  }

  bool gone() const override {
    const std::lock_guard lock(outgoing_->mutex);
    return outgoing_->gone;
  }

  void on_gone(std::function<void()> left) override {
    {
      const std::lock_guard lock(outgoing_->mutex);
      if (!outgoing_->gone) {
        outgoing_->left = std::move(left);
        return;
      }
    }
    left();
  }

  void on_drained(std::function<void()> drained) override {
    const std::lock_guard lock(outgoing_->mutex);
    outgoing_->drained = std::move(drained);
  }

 private:
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Outgoing> outgoing_;
  HttpRequest request_;
  std::function<std::string(const HttpReply&, bool)> head_;
};

}  // namespace

bool Outgoing::send_or_queue(std::string_view bytes) {
  // Most pieces of a stream fit the socket's buffer: sent from here they save a change of threads.
  if (pending.empty() && in_flight == 0 && socket >= 0) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
  }
  pending += bytes;
  return !bytes.empty();
}

Connection::Connection(ConnectionHost& host, tcp::socket socket) : host_(host), socket_(std::move(socket)) {
  error_code ignored;
  const auto endpoint = socket_.remote_endpoint(ignored);
  if (!ignored) peer_ = endpoint.address().to_string(ignored);
}

void Connection::start() {
  enter(State::idle, host_.options.idle_timeout);
  read();
}

void Connection::enter(State state, std::chrono::seconds patience) {
  state_ = state;
  deadline_ = patience.count() == 0 ? Clock::time_point::max() : Clock::now() + patience;
}

void Connection::sweep(Clock::time_point now) {
  if (state_ == State::closed) return;
  if (now >= deadline_) {
    if (state_ == State::header || state_ == State::body) {
      refuse(408, "the request did not arrive in time");
    } else {
      close();
    }
    return;
  }
  if (state_ != State::answering || !outgoing_) return;
  bool ping = false;
  {
    const std::lock_guard lock(outgoing_->mutex);
    ping = outgoing_->streaming && !outgoing_->ping.empty() && outgoing_->ping_after.count() > 0 &&
           outgoing_->pending.empty() && outgoing_->in_flight == 0 &&
           now - outgoing_->last_write >= outgoing_->ping_after;
    if (ping) {
      outgoing_->pending += outgoing_->chunked ? chunk(outgoing_->ping) : outgoing_->ping;
      outgoing_->last_write = now;
    }
  }
  if (ping) pump();
}

void Connection::close() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  client_left();  // first: from here on nobody else writes to the socket
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  host_.closed(shared_from_this());
}

void Connection::client_left() {
  if (!outgoing_) return;
  std::function<void()> left;
  {
    const std::lock_guard lock(outgoing_->mutex);
    if (outgoing_->gone) return;
    outgoing_->gone = true;
    outgoing_->pending.clear();
    outgoing_->pending.shrink_to_fit();
    left = std::move(outgoing_->left);
    outgoing_->left = nullptr;
    outgoing_->drained = nullptr;
  }
  if (left) left();
  outgoing_.reset();
}

void Connection::read() {
  if (reading_ || state_ == State::closed) return;
  if (state_ == State::answering && buffer_.size() >= pipelined_limit) return;  // resumes with the next request
  reading_ = true;
  socket_.async_read_some(buffer_.prepare(read_piece), [self = shared_from_this()](error_code error, size_t count) {
    self->reading_ = false;
    self->on_read(error, count);
  });
}

void Connection::on_read(error_code error, size_t count) {
  if (state_ == State::closed) return;
  if (error) {
    // An end of input before a reply has gone out means that nobody waits for it.
    close();
    return;
  }
  if (state_ == State::lingering) {
    lingered_ += count;
    if (lingered_ > linger_limit) {
      close();
    } else {
      read();
    }
    return;
  }
  buffer_.commit(count);
  if (state_ == State::body) deadline_ = Clock::now() + host_.options.body_timeout;
  if (state_ != State::answering) advance();
  read();
}

/// Parses as much of the buffer as there is, up to a complete request.
void Connection::advance() {
  if (state_ == State::idle) {
    // Blank lines between requests are tolerated, as RFC 9112 2.2 asks.
    while (buffer_.size() > 0) {
      const char first = *static_cast<const char*>(buffer_.data().data());
      if (first != '\r' && first != '\n') break;
      buffer_.consume(1);
    }
    if (buffer_.size() == 0) return;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(host_.options.header_limit));
    parser_->body_limit(host_.options.body_limit);
    header_complete_ = false;
    enter(State::header, host_.options.header_timeout);
  }
  if (state_ == State::header && !parse_header()) return;
  if (state_ == State::body && !parse_body()) return;
  body_done();
}

/// True when the header is complete and wanted.
bool Connection::parse_header() {
  error_code error;
  const size_t used = parser_->put(buffer_.data(), error);
  buffer_.consume(used);
  if (error == http::error::need_more) {
    if (buffer_.size() > host_.options.header_limit) refuse(431, "the header is too long");
    return false;
  }
  if (error == http::error::header_limit) {
    refuse(431, "the header is too long");
    return false;
  }
  if (error == http::error::body_limit) {
    refuse(413, fmt::format("the body exceeds the {} MiB limit", host_.options.body_limit >> 20));
    return false;
  }
  if (error) {
    refuse(400, fmt::format("this is not HTTP/1.1: {}", error.message()));
    return false;
  }
  if (!parser_->is_header_done()) return false;
  return header_done();
}

bool Connection::header_done() {
  const auto& message = parser_->get();
  http_1_0_ = message.version() < 11;
  keep_alive_ = parser_->keep_alive();
  head_only_ = message.method() == http::verb::head;
  const bool has_length = message.find(http::field::content_length) != message.end();
  const bool has_coding = message.find(http::field::transfer_encoding) != message.end();
  if (has_coding && (has_length || lower(header_value(message, http::field::transfer_encoding)) != "chunked")) {
    refuse(400, "Transfer-Encoding must be 'chunked' alone and not beside Content-Length");
    return false;
  }
  const auto length = parser_->content_length();
  if (length && *length > host_.options.body_limit) {
    refuse(413, fmt::format("the body exceeds the {} MiB limit", host_.options.body_limit >> 20));
    return false;
  }
  if (!http_1_0_ && message.find(http::field::host) == message.end()) {
    refuse(400, "a request of HTTP/1.1 needs a Host header");
    return false;
  }
  if (host_.screen) {
    if (auto refusal = host_.screen(head())) {
      send_and_close(std::move(*refusal));
      return false;
    }
  }
  if (!parser_->is_done()) {
    const auto expect = message.find(http::field::expect);
    if (expect != message.end() && lower({expect->value().data(), expect->value().size()}) == "100-continue" &&
        buffer_.size() == 0) {
      // Small enough to fit any socket buffer, and nothing else can be under way.
      error_code ignored;
      socket_.non_blocking(true, ignored);
      socket_.write_some(asio::buffer(std::string_view("HTTP/1.1 100 Continue\r\n\r\n")), ignored);
    }
  }
  parser_->eager(true);
  enter(State::body, host_.options.body_timeout);
  return true;
}

/// True when the body is complete.
bool Connection::parse_body() {
  while (!parser_->is_done()) {
    if (buffer_.size() == 0) return false;
    error_code error;
    const size_t used = parser_->put(buffer_.data(), error);
    buffer_.consume(used);
    if (error == http::error::need_more) {
      if (buffer_.size() > chunk_line_limit) refuse(431, "a chunk's extensions or the trailers are too long");
      return false;
    }
    if (error == http::error::body_limit) {
      refuse(413, fmt::format("the body exceeds the {} MiB limit", host_.options.body_limit >> 20));
      return false;
    }
    if (error) {
      refuse(400, fmt::format("the body's framing is broken: {}", error.message()));
      return false;
    }
    if (used == 0) return false;
  }
  return true;
}

HttpRequest Connection::head() const {
  const auto& message = parser_->get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target = without_authority(std::string(message.target()));
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != std::string::npos) request.query = target.substr(question + 1);
  for (const auto& field : message) {
    request.headers.emplace_back(lower({field.name_string().data(), field.name_string().size()}),
                                 std::string(field.value()));
  }
  request.peer = peer_;
  return request;
}

void Connection::body_done() {
  HttpRequest request = head();
  request.body = std::move(parser_->get().body());
  parser_.reset();
  outgoing_ = std::make_shared<Outgoing>();
  outgoing_->chunked = !http_1_0_;
  outgoing_->close = !keep_alive_ || host_.stopping;
  outgoing_->socket = socket_.native_handle();
  enter(State::answering, std::chrono::seconds(0));
  auto make_head = [keep_alive = keep_alive_ && !host_.stopping, http_1_0 = http_1_0_,
                    name = host_.options.server_name](const HttpReply& reply, bool streamed) {
    return reply_head(reply, streamed, keep_alive, http_1_0, name);
  };
  host_.handler(
      std::make_shared<ExchangeOnConnection>(shared_from_this(), outgoing_, std::move(request), std::move(make_head)));
}

/// Answers what is not a request we can read; the connection cannot be used again.
void Connection::refuse(int status, const std::string& message) {
  HttpReply reply;
  reply.status = status;
  const bool has_head = parser_ && parser_->is_header_done();
  if (host_.error_body) {
    const HttpRequest request = has_head ? head() : HttpRequest{};
    reply.body = host_.error_body(status, message, has_head ? &request : nullptr);
  } else {
    reply.content_type = "text/plain";
    reply.body = message + "\n";
  }
  send_and_close(std::move(reply));
}

void Connection::send_and_close(HttpReply reply) {
  reply.close = true;
  parser_.reset();
  buffer_.consume(buffer_.size());
  outgoing_ = std::make_shared<Outgoing>();
  outgoing_->answered = outgoing_->complete = outgoing_->close = true;
  outgoing_->pending = reply_head(reply, false, false, http_1_0_, host_.options.server_name);
  if (!head_only_) outgoing_->pending += reply.body;
  lingered_ = 0;
  enter(State::lingering, linger_time);
  pump();
}

void Connection::wake(const std::shared_ptr<Outgoing>& outgoing) {
  {
    const std::lock_guard lock(outgoing->mutex);
    if (outgoing->scheduled || outgoing->gone) return;
    outgoing->scheduled = true;
  }
  asio::post(host_.io, [self = shared_from_this(), outgoing] {
    {
      const std::lock_guard lock(outgoing->mutex);
      outgoing->scheduled = false;
    }
    if (self->outgoing_ == outgoing) self->pump();
  });
}

/// Starts writing what is pending, or finishes the exchange when all of it is out.
void Connection::pump() {
  if (write_active_ || state_ == State::closed || !outgoing_) return;
  bool complete = false;
  {
    const std::lock_guard lock(outgoing_->mutex);
    writing_ = std::move(outgoing_->pending);
    outgoing_->pending.clear();
    outgoing_->in_flight = writing_.size();
    complete = outgoing_->complete;
  }
  written_ = 0;
  if (!writing_.empty()) {
    write_active_ = true;
    if (state_ == State::answering) deadline_ = Clock::now() + host_.options.write_timeout;
    write_some();
  } else if (complete) {
    exchange_done();
  }
}

void Connection::write_some() {
  socket_.async_write_some(
      asio::buffer(writing_.data() + written_, writing_.size() - written_),
      [self = shared_from_this()](error_code error, size_t count) { self->on_written(error, count); });
}

void Connection::on_written(error_code error, size_t count) {
  if (state_ == State::closed) return;
  if (error) {
    close();
    return;
  }
  written_ += count;
  std::function<void()> drained;
  {
    const std::lock_guard lock(outgoing_->mutex);
    outgoing_->in_flight = writing_.size() - written_;
    if (written_ == writing_.size() && outgoing_->pending.empty()) drained = outgoing_->drained;
  }
  if (written_ < writing_.size()) {
    if (state_ == State::answering) deadline_ = Clock::now() + host_.options.write_timeout;
    write_some();
    return;
  }
  write_active_ = false;
  writing_.clear();
  if (state_ == State::answering) deadline_ = Clock::time_point::max();
  if (drained) drained();
  pump();
}

void Connection::exchange_done() {
  bool close_now = false;
  {
    const std::lock_guard lock(outgoing_->mutex);
    close_now = outgoing_->close;
    outgoing_->left = nullptr;
    outgoing_->drained = nullptr;
  }
  outgoing_.reset();
  if (state_ == State::lingering || close_now || host_.stopping) {
    // Say that nothing more comes, then read what the client still sends: closing at once would reset the connection
    // and could take the reply with it.
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    lingered_ = 0;
    enter(State::lingering, linger_time);
    read();
    return;
  }
  enter(State::idle, host_.options.idle_timeout);
  if (buffer_.size() > 0) advance();
  read();
}

}  // namespace tensorfold::server
