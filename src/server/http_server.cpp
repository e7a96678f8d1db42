// One thread runs every socket; connections are in http_connection.cpp.
#include "server/http_server.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/resource.h>

#include "base/error.h"
#include "server/http_connection.h"

namespace tensorfold::server {

std::optional<std::string_view> HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return std::nullopt;
}

class HttpServer::Implementation {
 public:
  Implementation(HttpServerOptions options, Handler handler, Screen screen, ErrorBody error_body)
      : acceptor_(host_.io), sweep_timer_(host_.io), retry_timer_(host_.io) {
    host_.options = std::move(options);
    host_.handler = std::move(handler);
    host_.screen = std::move(screen);
    host_.error_body = std::move(error_body);
    host_.closed = [this](const std::shared_ptr<Connection>& connection) { remove(connection); };
    listen();
    accept();
    schedule_sweep();
  }

  void start() {
    thread_ = std::thread([this] { host_.io.run(); });
  }

  ~Implementation() { stop(std::chrono::milliseconds(0)); }

  void stop(std::chrono::milliseconds patience) {
    if (!thread_.joinable()) return;
    asio::post(host_.io, [this] {
      host_.stopping = true;
      error_code ignored;
      acceptor_.close(ignored);
      const std::vector<std::shared_ptr<Connection>> open(connections_.begin(), connections_.end());
      for (const auto& connection : open) {
        if (!connection->answering()) connection->close();
      }
      note_idle();
    });
    {
      std::unique_lock lock(idle_mutex_);
      idle_.wait_for(lock, patience, [this] { return all_closed_; });
    }
    asio::post(host_.io, [this] {
      const std::vector<std::shared_ptr<Connection>> open(connections_.begin(), connections_.end());
      for (const auto& connection : open) connection->close();
      sweep_timer_.cancel();
      retry_timer_.cancel();
      host_.io.stop();
    });
    thread_.join();
  }

  [[nodiscard]] uint16_t port() const { return port_; }
  [[nodiscard]] size_t connections() const { return count_; }

 private:
  void add(const std::shared_ptr<Connection>& connection) {
    connections_.insert(connection);
    count_ = connections_.size();
  }
  void remove(const std::shared_ptr<Connection>& connection) {
    connections_.erase(connection);
    count_ = connections_.size();
    note_idle();
  }

  void listen() {
    allow_many_files();
    // A resolver takes no name for every interface, which nobody who leaves a variable empty means.
    if (host_.options.host.empty()) fail(ErrorKind::invalid_request, "the address to listen on is empty");
    try {
      tcp::resolver resolver(host_.io);
      const auto found = resolver.resolve(host_.options.host, std::to_string(host_.options.port),
                                          tcp::resolver::passive | tcp::resolver::numeric_service);
      const tcp::endpoint endpoint = *found.begin();
      acceptor_.open(endpoint.protocol());
      acceptor_.set_option(tcp::acceptor::reuse_address(true));
      acceptor_.bind(endpoint);
      acceptor_.listen(1024);
      port_ = acceptor_.local_endpoint().port();
    } catch (const boost::system::system_error& failure) {
      fail(ErrorKind::io, "cannot listen on {}:{}: {}", host_.options.host, host_.options.port,
           failure.code().message());
    }
  }

  /// One descriptor a connection: raise the soft limit as far as the system lets us, and never accept beyond it.
  void allow_many_files() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    const rlim_t wanted = static_cast<rlim_t>(host_.options.max_connections) + 256;
    if (limit.rlim_cur < wanted) {
      limit.rlim_cur = std::min(limit.rlim_max, wanted);
      setrlimit(RLIMIT_NOFILE, &limit);
      getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur < wanted && limit.rlim_cur > 256) host_.options.max_connections = limit.rlim_cur - 256;
  }

  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (host_.stopping) return;
      if (error) {
        // Out of descriptors, most likely: let some close before trying again.
        retry_timer_.expires_after(std::chrono::milliseconds(50));
        retry_timer_.async_wait([this](error_code cancelled) {
          if (!cancelled && !host_.stopping) accept();
        });
        return;
      }
      if (connections_.size() < host_.options.max_connections) {
        error_code ignored;
        socket.set_option(tcp::no_delay(true), ignored);
        const auto connection = std::make_shared<Connection>(host_, std::move(socket));
        add(connection);
        connection->start();
      }
      accept();
    });
  }

  void schedule_sweep() {
    sweep_timer_.expires_after(std::chrono::milliseconds(250));
    sweep_timer_.async_wait([this](error_code error) {
      if (error) return;
      const auto now = Clock::now();
      const std::vector<std::shared_ptr<Connection>> open(connections_.begin(), connections_.end());
      for (const auto& connection : open) connection->sweep(now);
      schedule_sweep();
    });
  }

  void note_idle() {
    if (!host_.stopping || !connections_.empty()) return;
    {
      const std::lock_guard lock(idle_mutex_);
      all_closed_ = true;
    }
    idle_.notify_all();
  }

  ConnectionHost host_;
  tcp::acceptor acceptor_;
  asio::steady_timer sweep_timer_;
  asio::steady_timer retry_timer_;
  std::set<std::shared_ptr<Connection>> connections_;
  std::atomic<size_t> count_{0};
  uint16_t port_ = 0;
  std::mutex idle_mutex_;
  std::condition_variable idle_;
  bool all_closed_ = false;
  std::thread thread_;
};

HttpServer::HttpServer(HttpServerOptions options, Handler handler, Screen screen, ErrorBody error_body)
    : implementation_(std::make_unique<Implementation>(std::move(options), std::move(handler), std::move(screen),
                                                       std::move(error_body))) {}
HttpServer::~HttpServer() = default;
void HttpServer::start() { implementation_->start(); }
uint16_t HttpServer::port() const { return implementation_->port(); }
size_t HttpServer::connections() const { return implementation_->connections(); }
void HttpServer::stop(std::chrono::milliseconds patience) { implementation_->stop(patience); }

}  // namespace tensorfold::server
