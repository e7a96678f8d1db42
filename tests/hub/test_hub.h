// A hub of our own for tests: the model hub's HTTP interface on two ports of 127.0.0.1 (the hub and the host it
// redirects large files to), with faults on demand.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace tensorfold::testing {

/// A file of a served repository. Large-file storage gives it a SHA-256 etag and a redirect to the second port.
struct HubFile {
  std::shared_ptr<const std::string> content;
  bool lfs = false;
  std::string etag;
};

HubFile plain_file(std::string content);
HubFile lfs_file(std::string content);

/// A served repository.
struct HubRepo {
  std::map<std::string, std::string> revisions;                   ///< branch or tag to commit
  std::map<std::string, std::map<std::string, HubFile>> commits;  ///< commit to its files
  std::string license = "apache-2.0";
  bool gated = false;                    ///< files need a token with access
  bool hidden = false;                   ///< everything needs a token with access
  bool lists_sizes = true;               ///< false: a mirror whose list has names only
  std::optional<int64_t> false_size;     ///< what the list says of large files' sizes
  bool lists_lfs_sizes = true;           ///< false: large files have checksums only
  bool has_tree = true;                  ///< false: a mirror without the tree interface
  std::vector<std::string> extra_names;  ///< further names in the list, not served
};

/// What goes wrong with a request, `times` times.
struct HubFault {
  enum class Kind {
    status,        ///< `status` with `headers`
    truncate,      ///< the body ends after `bytes` bytes
    corrupt,       ///< the byte at file offset `bytes` is flipped
    wrong_length,  ///< announces `bytes` more bytes than the file has, in Content-Length or Content-Range
    wrong_etag,    ///< X-Linked-Etag of other content
    ignore_range,  ///< answers 200 with the whole file
    extra_bytes,   ///< a 206 that goes on beyond what was asked for
    stall,         ///< sends `bytes` bytes, then nothing
    drop,          ///< closes before answering
    redirect,      ///< to `target`
  };
  Kind kind = Kind::status;
  std::string path;  ///< a part of the request's path
  bool on_second_port = false;
  int times = 1;
  int status = 500;
  uint64_t bytes = 0;
  std::vector<std::string> headers = {};
  std::string target = {};
};

/// A request as it arrived.
struct HubRequest {
  bool second_port = false;
  std::string method;
  std::string path;
  std::map<std::string, std::string> headers;  ///< names in lower case
};

/// The server. Stops when destroyed.
class TestHub {
 public:
  TestHub();
  ~TestHub();
  TestHub(const TestHub&) = delete;
  TestHub& operator=(const TestHub&) = delete;

  [[nodiscard]] std::string endpoint() const;
  [[nodiscard]] std::string second_endpoint() const;

  void set_repo(const std::string& id, HubRepo repo);
  void change_repo(const std::string& id, const std::function<void(HubRepo&)>& change);
  void add_fault(HubFault fault);
  void clear_faults();
  /// The token that opens gated and hidden repositories; others are refused.
  void set_token(const std::string& good);
  /// Both ports together send no more than this; 0: no limit.
  void set_bytes_per_second(uint64_t rate) { bytes_per_second_ = rate; }
  /// Serves `body` at `path` of the first port.
  void set_document(const std::string& path, std::string body);

  [[nodiscard]] std::vector<HubRequest> requests() const;
  void forget_requests();
  [[nodiscard]] uint64_t body_bytes_sent() const { return body_bytes_sent_; }

 private:
  struct Response;
  class Connection;

  int listen_on_loopback(uint16_t& port);
  void accept_loop(int listener, bool second);
  void serve(int socket, bool second);
  bool answer(Connection& connection, const HubRequest& request);
  std::optional<HubFault> take_fault(const HubRequest& request);
  Response route(const HubRequest& request);
  Response route_api(const HubRequest& request, const std::string& rest);
  Response route_file(const HubRequest& request, const std::string& repo, const std::string& rest);
  Response route_blob(const std::string& sha256);
  std::optional<Response> refusal(const HubRepo& repo, const HubRequest& request, bool file) const;
  void pace(size_t bytes);

  mutable std::mutex mutex_;
  std::map<std::string, HubRepo> repos_;
  std::map<std::string, std::shared_ptr<const std::string>> blobs_;
  std::map<std::string, std::string> documents_;
  std::vector<HubFault> faults_;
  std::vector<HubRequest> requests_;
  std::string token_ = "good-token";

  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> bytes_per_second_{0};
  std::atomic<uint64_t> body_bytes_sent_{0};
  std::mutex pace_mutex_;
  std::chrono::steady_clock::time_point pace_next_{};

  uint16_t port_ = 0;
  uint16_t second_port_ = 0;
  int listener_ = -1;
  int second_listener_ = -1;
  std::vector<int> sockets_;
  std::vector<std::thread> connections_;
  std::thread acceptor_;
  std::thread second_acceptor_;
};

/// A 40-digit commit hash made of one digit.
std::string commit_of(char digit);

/// The etag the hub gives content.
std::string etag_of(const std::string& content, bool lfs);

}  // namespace tensorfold::testing
