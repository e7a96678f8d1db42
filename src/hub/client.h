// The hub's HTTP interface: what a repository holds, and a file's bytes with redirects followed safely.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hub/digest.h"
#include "hub/http.h"
#include "hub/names.h"
#include "hub/settings.h"

namespace tensorfold::hub {

/// How often and how patiently a request is repeated after the network or a busy server let it down.
struct RetryPolicy {
  int attempts = 6;                            ///< tries in a row without progress
  std::chrono::milliseconds first_delay{500};  ///< doubles with each try
  std::chrono::milliseconds longest_delay{30'000};
  std::chrono::milliseconds longest_retry_after{300'000};  ///< the most a server's Retry-After is obeyed
};

/// One file of a repository at one commit.
struct RemoteFile {
  std::string name;
  uint64_t size = 0;
  std::string etag;  ///< the blob's name in the cache: SHA-256 for large files, git's blob id for the others
  DigestKind digest = DigestKind::none;  ///< what `etag` is of the content
};

/// What the hub says about a repository at a revision.
struct ModelInfo {
  std::string commit;
  std::string license;  ///< as the model card names it; may be empty
  std::vector<RemoteFile> files;
};

/// The hub behind one endpoint. Copyable; sessions belong to the caller, one a thread.
class Client {
 public:
  /// `cancel`, when given, ends waits and transfers with Error(cancelled).
  explicit Client(Settings settings, RetryPolicy retry = {}, HttpOptions http = {});

  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] const RetryPolicy& retry() const { return retry_; }
  [[nodiscard]] const HttpOptions& http() const { return http_; }

  /// The commit, the licence and every file with its size and checksum. Names are checked: a list with one unsafe name
  /// is refused whole. Throws not_found, unauthorized, network, corrupt_file, cancelled; invalid_request when offline.
  [[nodiscard]] ModelInfo model_info(HttpSession& session, const RepoId& repo) const;

  /// The URL of a file's content at a commit.
  [[nodiscard]] std::string file_url(const RepoId& repo, const std::string& commit, const std::string& name) const;

  /// A small document, redirects followed, tries repeated; at most `limit` bytes. Throws as model_info does; `what`
  /// names the document in messages.
  [[nodiscard]] std::string fetch(HttpSession& session, const RepoId& repo, const std::string& url,
                                  const std::string& what, uint64_t limit) const;

  /// The final response of a request that may be redirected.
  struct Reply {
    HttpResult result;
    std::string url;    ///< what answered last
    HttpHead hub_head;  ///< the endpoint's own last answer: X-Repo-Commit, X-Linked-Etag, X-Linked-Size, Link
  };

  /// Sees the final response's head; `reply` has its url and hub_head by then.
  using OnReply = std::function<bool(const HttpHead& head, const Reply& reply)>;

  /// One try: follows up to ten redirects to http(s) URLs, never from https to http; the token goes to the endpoint's
  /// own origin only. The callbacks see the final response.
  Reply send(HttpSession& session, HttpRequest request, const OnReply& on_reply,
             const HttpSession::OnBody& on_body) const;

  /// The same client, which says a wait that the hub asks for to `say`, once however many connections wait.
  [[nodiscard]] Client with_notes(std::function<void(const std::string& line)> say) const;

  /// The same client, cancelled by another flag.
  [[nodiscard]] Client with_cancel(const std::atomic<bool>* cancel) const;

  /// Throws the Error that explains a status other than success for `what` of `repo`.
  [[noreturn]] void refuse(const HttpHead& head, const RepoId& repo, const std::string& what) const;

  /// Waits before try number `attempt` (from 1) again; a Retry-After in `head` is obeyed. Throws cancelled.
  void wait_before_retry(int attempt, const HttpHead& head) const;
  void throw_if_cancelled() const;

  /// Whether a status is worth another try: 408, 425, 429 and 5xx.
  static bool is_transient(int status);

 private:
  void complete_files(HttpSession& session, const RepoId& repo, ModelInfo& info) const;
  void read_tree(HttpSession& session, const RepoId& repo, ModelInfo& info) const;
  void read_file_head(HttpSession& session, const RepoId& repo, const std::string& commit, RemoteFile& file) const;
  HttpHead fetch_document(HttpSession& session, const RepoId& repo, const std::string& url, const std::string& what,
                          uint64_t limit, std::string& body) const;

  void tell_of_wait(std::chrono::milliseconds delay) const;

  /// Who is told of waits, and until when one was told of; shared by the copies for several threads.
  struct Notes {
    std::function<void(const std::string&)> say;
    std::mutex mutex;
    std::chrono::steady_clock::time_point told_until{};
  };

  Settings settings_;
  RetryPolicy retry_;
  HttpOptions http_;
  std::shared_ptr<Notes> notes_;
};

/// An etag without W/ and quotes.
std::string plain_etag(std::string_view etag);

}  // namespace tensorfold::hub
