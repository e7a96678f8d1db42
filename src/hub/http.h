// One HTTP exchange at a time over a kept connection (libcurl), without following redirects: who follows one decides
// what may be sent to the next host.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tensorfold::hub {

/// Time limits and certificates of a session.
struct HttpOptions {
  std::chrono::milliseconds connect_timeout{15'000};
  std::chrono::seconds stall_timeout{30};  ///< a transfer slower than `stall_bytes` a second this long has failed
  long stall_bytes = 1024;
  std::optional<std::filesystem::path> certificates;
  std::string user_agent = "tensorfold";
  const std::atomic<bool>* cancel = nullptr;  ///< set: the exchange in progress ends as `stopped`
};

struct HttpRequest {
  std::string url;
  std::vector<std::string> headers;  ///< "Name: value"
  bool head = false;
  std::optional<uint64_t> range_begin;
  std::optional<uint64_t> range_end;  ///< exclusive
};

/// Status and headers (names in lower case) of the final response of an exchange; 1xx are skipped.
struct HttpHead {
  int status = 0;
  std::map<std::string, std::string> headers;
  [[nodiscard]] std::optional<std::string> header(const std::string& name) const;
};

/// How an exchange ended.
struct HttpResult {
  enum class End {
    complete,  ///< the whole body arrived
    stopped,   ///< a callback or the cancel flag ended it
    failed,    ///< the network did; `failure` says how
  };
  End end = End::failed;
  HttpHead head;
  std::string failure;
  bool may_retry = true;  ///< false: trying again cannot help (a certificate, an unknown scheme)
};

/// A connection and its settings; one thread at a time.
class HttpSession {
 public:
  using OnHead = std::function<bool(const HttpHead&)>;             ///< false: stop before the body
  using OnBody = std::function<bool(std::span<const std::byte>)>;  ///< false: stop

  explicit HttpSession(HttpOptions options);
  ~HttpSession();
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  /// Sends `request`; never throws for what the network does. Exceptions of the callbacks come out of this call.
  HttpResult send(const HttpRequest& request, const OnHead& on_head, const OnBody& on_body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// `scheme://host:port` in lower case with the default port written out; empty for text that is no http(s) URL.
std::string origin_of(const std::string& url);

/// `reference` resolved against `base`, as a redirect's Location is; nothing if it is not an http(s) URL.
std::optional<std::string> resolved_url(const std::string& base, const std::string& reference);

}  // namespace tensorfold::hub
