// A blocking socket for tests that care about the bytes on the wire.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tensorfold::server {

/// One reply as it came: status, raw head, body with chunked framing removed.
struct RawReply {
  int status = 0;
  std::string head;
  std::string body;
};

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer = 0) {
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    timeval patience{300, 0};  // beside a sanitizer and other work a reply can take minutes
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      throw std::runtime_error("cannot connect");
    }
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

  /// False when the other side no longer takes bytes.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  /// Reads until `buffer_` holds at least one more byte; false at the end of input.
  bool fill() {
    char piece[16384];
    const ssize_t count = ::recv(socket_, piece, sizeof(piece), 0);
    if (count <= 0) return false;
    buffer_.append(piece, static_cast<size_t>(count));
    return true;
  }

  std::string read_until(std::string_view mark) {
    size_t at = 0;
    while ((at = buffer_.find(mark)) == std::string::npos) {
      if (!fill()) return std::exchange(buffer_, {});
    }
    std::string taken = buffer_.substr(0, at + mark.size());
    buffer_.erase(0, at + mark.size());
    return taken;
  }

  std::string read_exactly(size_t count) {
    while (buffer_.size() < count && fill()) {
    }
    std::string taken = buffer_.substr(0, count);
    buffer_.erase(0, taken.size());
    return taken;
  }

  std::string read_all() {
    while (fill()) {
    }
    return std::exchange(buffer_, {});
  }

  RawReply read_reply() {
    RawReply reply;
    reply.head = read_until("\r\n\r\n");
    if (reply.head.size() < 12) return reply;
    reply.status = std::atoi(reply.head.c_str() + 9);
    if (const size_t at = reply.head.find("Content-Length: "); at != std::string::npos) {
      reply.body = read_exactly(static_cast<size_t>(std::atoll(reply.head.c_str() + at + 16)));
    } else if (reply.head.find("Transfer-Encoding: chunked") != std::string::npos) {
      for (;;) {
        const std::string line = read_until("\r\n");
        const size_t size = std::strtoull(line.c_str(), nullptr, 16);
        if (line.empty()) break;  // broken off
        const std::string piece = read_exactly(size + 2);
        if (size == 0) break;
        reply.body.append(piece, 0, size);
      }
    } else if (reply.status >= 200) {
      reply.body = read_all();
    }
    return reply;
  }

 private:
  int socket_ = -1;
  std::string buffer_;
};

/// A POST with a Content-Length.
inline std::string post(const std::string& path, const std::string& body, const std::string& more_headers = "") {
  return "POST " + path +
         " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n" + more_headers + "\r\n" + body;
}

inline std::string get(const std::string& path, const std::string& more_headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: x\r\n" + more_headers + "\r\n";
}

}  // namespace tensorfold::server
