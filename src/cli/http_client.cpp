#include "cli/http_client.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/streamed_body.h"

namespace tensorfold::cli {
namespace {

class Socket {
 public:
  Socket(const ServerUrl& url, int timeout_seconds) : name_(url.host + ":" + url.port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error = ::getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found); error != 0) {
      fail(ErrorKind::network, "{}: {}", name_, ::gai_strerror(error));
    }
    for (const addrinfo* one = found; one != nullptr && descriptor_ < 0; one = one->ai_next) {
      descriptor_ = ::socket(one->ai_family, one->ai_socktype, one->ai_protocol);
      if (descriptor_ >= 0 && ::connect(descriptor_, one->ai_addr, one->ai_addrlen) != 0) close();
    }
    ::freeaddrinfo(found);
    if (descriptor_ < 0) fail(ErrorKind::network, "cannot connect to {}: {}", name_, std::strerror(errno));
    const timeval patience{timeout_seconds, 0};
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    const int on = 1;
    setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  ~Socket() { close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) fail(ErrorKind::network, "{}: {}", name_, std::strerror(errno));
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  /// Appends what has arrived; false at the end of input.
  bool receive(std::string& buffer) {
    char piece[16384];
    const ssize_t count = ::recv(descriptor_, piece, sizeof(piece), 0);
    if (count < 0) fail(ErrorKind::network, "{}: {}", name_, std::strerror(errno));
    buffer.append(piece, static_cast<size_t>(count));
    return count > 0;
  }

 private:
  void close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }
  std::string name_;
  int descriptor_ = -1;
};

/// The value of a header in a raw head, or empty.
std::string header(const std::string& head, const std::string& name) {
  std::string lowered = head;
  std::transform(lowered.begin(), lowered.end(), lowered.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const size_t at = lowered.find("\r\n" + name + ":");
  if (at == std::string::npos) return {};
  const size_t start = head.find_first_not_of(' ', at + name.size() + 3);
  return head.substr(start, head.find("\r\n", start) - start);
}

}  // namespace

ServerUrl ServerUrl::parse(std::string_view url) {
  constexpr std::string_view scheme = "http://";
  if (url.substr(0, scheme.size()) != scheme) {
    fail(ErrorKind::invalid_request, "'{}' is not an http:// address", url);
  }
  std::string rest(url.substr(scheme.size()));
  while (!rest.empty() && rest.back() == '/') rest.pop_back();
  if (rest.size() >= 3 && rest.compare(rest.size() - 3, 3, "/v1") == 0) rest.resize(rest.size() - 3);
  ServerUrl parsed;
  const size_t slash = rest.find('/');
  if (slash != std::string::npos) parsed.prefix = rest.substr(slash);
  const std::string authority = rest.substr(0, slash);
  const size_t colon = authority.rfind(':');
  parsed.host = authority.substr(0, colon);
  parsed.port = colon == std::string::npos ? "80" : authority.substr(colon + 1);
  if (parsed.host.empty() || parsed.port.empty()) fail(ErrorKind::invalid_request, "'{}' names no server", url);
  return parsed;
}

HttpAnswer exchange(const ServerUrl& url, const std::string& path, const std::string& key, const std::string& body,
                    int timeout_seconds, const EventReceiver& on_event) {
  Socket socket(url, timeout_seconds);
  std::string request = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n",
                                    body.empty() ? "GET" : "POST", url.prefix, path, url.host, url.port);
  if (!key.empty()) request += fmt::format("Authorization: Bearer {}\r\n", key);
  if (!body.empty()) request += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  socket.send(request + "\r\n" + body);
  std::string raw;
  size_t end = std::string::npos;
  while ((end = raw.find("\r\n\r\n")) == std::string::npos) {
    if (!socket.receive(raw)) fail(ErrorKind::network, "{}:{} closed without an answer", url.host, url.port);
  }
  const std::string head = raw.substr(0, end + 2);
  raw.erase(0, end + 4);
  HttpAnswer answer;
  answer.status = head.size() > 12 ? std::atoi(head.c_str() + 9) : 0;
  answer.content_type = header(head, "content-type");
  const EventReceiver none;
  StreamedBody reader(header(head, "transfer-encoding") == "chunked", answer.status == 200 ? on_event : none);
  const std::string length = header(head, "content-length");
  const size_t expected = length.empty() ? std::string::npos : std::strtoull(length.c_str(), nullptr, 10);
  size_t received = raw.size();
  reader.feed(raw);
  while (!reader.done() && received < expected) {
    const size_t before = raw.size();
    if (!socket.receive(raw)) break;
    received += raw.size() - before;
    reader.feed(raw);
  }
  answer.body = reader.take_text();
  return answer;
}

}  // namespace tensorfold::cli
