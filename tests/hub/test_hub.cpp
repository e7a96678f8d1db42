#include "hub/test_hub.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <stdexcept>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include "hub/digest.h"

namespace tensorfold::testing {

using nlohmann::json;

struct TestHub::Response {
  int status = 200;
  std::vector<std::string> headers;
  std::shared_ptr<const std::string> content;
  bool ranges = false;
};

/// A socket with a read buffer.
class TestHub::Connection {
 public:
  explicit Connection(int socket) : socket_(socket) {}

  /// The next request, or nothing when the peer is gone.
  std::optional<HubRequest> read_request() {
    size_t end = std::string::npos;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      char chunk[4096];
      const ssize_t got = ::recv(socket_, chunk, sizeof chunk, 0);
      if (got <= 0) return std::nullopt;
      buffer_.append(chunk, static_cast<size_t>(got));
    }
    HubRequest request;
    std::string line;
    for (size_t at = 0; at < end;) {
      const size_t stop = std::min(buffer_.find("\r\n", at), end);
      line = buffer_.substr(at, stop - at);
      at = stop + 2;
      if (request.method.empty()) {
        const size_t first = line.find(' ');
        request.method = line.substr(0, first);
        request.path = line.substr(first + 1, line.find(' ', first + 1) - first - 1);
      } else if (const size_t colon = line.find(':'); colon != std::string::npos) {
        std::string name = line.substr(0, colon);
        std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
        request.headers[name] = line.substr(std::min(line.size(), colon + 2));
      }
    }
    buffer_.erase(0, end + 4);
    return request;
  }

  bool send_all(const char* data, size_t size) {
    while (size > 0) {
      const ssize_t sent = ::send(socket_, data, size, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      data += sent;
      size -= static_cast<size_t>(sent);
    }
    return true;
  }

 private:
  int socket_;
  std::string buffer_;
};

namespace {

std::string percent_decoded(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string header_of(const HubRequest& request, const char* name) {
  const auto found = request.headers.find(name);
  return found == request.headers.end() ? "" : found->second;
}

std::shared_ptr<const std::string> shared(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace

HubFile plain_file(std::string content) {
  std::string etag = etag_of(content, false);
  return {shared(std::move(content)), false, std::move(etag)};
}

HubFile lfs_file(std::string content) {
  std::string etag = etag_of(content, true);
  return {shared(std::move(content)), true, std::move(etag)};
}

std::string commit_of(char digit) { return std::string(40, digit); }

std::string etag_of(const std::string& content, bool lfs) {
  hub::Digest digest(lfs ? hub::DigestKind::sha256 : hub::DigestKind::git_sha1, content.size());
  digest.update(std::as_bytes(std::span(content)));
  return digest.finish();
}

TestHub::TestHub() {
  listener_ = listen_on_loopback(port_);
  second_listener_ = listen_on_loopback(second_port_);
  acceptor_ = std::thread([this] { accept_loop(listener_, false); });
  second_acceptor_ = std::thread([this] { accept_loop(second_listener_, true); });
}

TestHub::~TestHub() {
  stopping_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  ::shutdown(second_listener_, SHUT_RDWR);
  acceptor_.join();
  second_acceptor_.join();
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
    threads.swap(connections_);
  }
  for (std::thread& thread : threads) thread.join();
  ::close(listener_);
  ::close(second_listener_);
}

int TestHub::listen_on_loopback(uint16_t& port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (listener < 0 || ::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener, 64) != 0 || ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw std::runtime_error("the test hub cannot listen on 127.0.0.1");
  port = ntohs(address.sin_port);
  return listener;
}

std::string TestHub::endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }
std::string TestHub::second_endpoint() const { return "http://127.0.0.1:" + std::to_string(second_port_); }

void TestHub::set_repo(const std::string& id, HubRepo repo) {
  change_repo(id, [&](HubRepo& target) { target = std::move(repo); });
}

void TestHub::change_repo(const std::string& id, const std::function<void(HubRepo&)>& change) {
  const std::lock_guard lock(mutex_);
  HubRepo& repo = repos_[id];
  change(repo);
  for (const auto& [commit, files] : repo.commits)
    for (const auto& [name, file] : files)
      if (file.lfs) blobs_[file.etag] = file.content;
}

void TestHub::add_fault(HubFault fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(std::move(fault));
}

void TestHub::clear_faults() {
  const std::lock_guard lock(mutex_);
  faults_.clear();
}

void TestHub::set_token(const std::string& good) {
  const std::lock_guard lock(mutex_);
  token_ = good;
}

void TestHub::set_document(const std::string& path, std::string body) {
  const std::lock_guard lock(mutex_);
  documents_[path] = std::move(body);
}

std::vector<HubRequest> TestHub::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void TestHub::forget_requests() {
  const std::lock_guard lock(mutex_);
  requests_.clear();
}

void TestHub::accept_loop(int listener, bool second) {
  while (!stopping_) {
    const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    const int on = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::lock_guard lock(mutex_);
    sockets_.push_back(socket);
    connections_.emplace_back([this, socket, second] { serve(socket, second); });
  }
}

void TestHub::serve(int socket, bool second) {
  Connection connection(socket);
  while (!stopping_) {
    auto request = connection.read_request();
    if (!request) break;
    request->second_port = second;
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(*request);
    }
    if (!answer(connection, *request)) break;
  }
  ::shutdown(socket, SHUT_RDWR);
  const std::lock_guard lock(mutex_);
  std::erase(sockets_, socket);
  ::close(socket);
}

std::optional<HubFault> TestHub::take_fault(const HubRequest& request) {
  const std::lock_guard lock(mutex_);
  for (HubFault& fault : faults_) {
    if (fault.times <= 0 || fault.on_second_port != request.second_port) continue;
    if (percent_decoded(request.path).find(fault.path) == std::string::npos) continue;
    --fault.times;
    return fault;
  }
  return std::nullopt;
}

/// False: the connection is to be closed.
bool TestHub::answer(Connection& connection, const HubRequest& request) {
  const auto fault = take_fault(request);
  const auto is = [&](HubFault::Kind kind) { return fault && fault->kind == kind; };
  if (is(HubFault::Kind::drop)) return false;
  Response response = route(request);
  if (is(HubFault::Kind::status)) {
    response = Response{fault->status, fault->headers, shared("fault"), false};
  } else if (is(HubFault::Kind::redirect)) {
    response = Response{302, {"Location: " + fault->target}, shared(""), false};
  } else if (is(HubFault::Kind::wrong_etag)) {
    for (std::string& header : response.headers)
      if (header.starts_with("X-Linked-Etag")) header = "X-Linked-Etag: \"" + std::string(64, 'e') + "\"";
  }
  const uint64_t size = response.content ? response.content->size() : 0;
  uint64_t begin = 0;
  uint64_t end = size;
  const uint64_t lie = is(HubFault::Kind::wrong_length) ? fault->bytes : 0;
  const std::string range = header_of(request, "range");
  if (response.status == 200 && response.ranges && range.starts_with("bytes=") && !is(HubFault::Kind::ignore_range)) {
    begin = std::stoull(range.substr(6));
    const std::string last = range.substr(range.find('-') + 1);
    if (!last.empty()) end = std::min<uint64_t>(end, std::stoull(last) + 1);
    if (begin >= size) {
      response = Response{416, {"Content-Range: bytes */" + std::to_string(size)}, shared(""), false};
      begin = end = 0;
    } else {
      response.status = 206;
      response.headers.push_back("Content-Range: bytes " + std::to_string(begin) + "-" + std::to_string(end - 1) + "/" +
                                 std::to_string(size + lie));
    }
  }
  uint64_t announced = end - begin + (response.status == 200 ? lie : 0);
  if (is(HubFault::Kind::extra_bytes)) announced = (end = std::min<uint64_t>(size, end + fault->bytes)) - begin;
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " Test\r\n";
  for (const std::string& header : response.headers) head += header + "\r\n";
  head += "Content-Length: " + std::to_string(announced) + "\r\n\r\n";
  if (!connection.send_all(head.data(), head.size())) return false;
  if (request.method == "HEAD") return true;

  std::string damaged;
  const char* data = response.content ? response.content->data() + begin : nullptr;
  if (is(HubFault::Kind::corrupt) && fault->bytes >= begin && fault->bytes < end) {
    damaged = response.content->substr(begin, end - begin);
    damaged[fault->bytes - begin] = static_cast<char>(damaged[fault->bytes - begin] ^ 0x10);
    data = damaged.data();
  }
  uint64_t left = end - begin;
  const bool cut = is(HubFault::Kind::truncate) || is(HubFault::Kind::stall);
  if (cut) left = std::min(left, fault->bytes);
  while (left > 0 && !stopping_) {
    // On a slow link small steps, so that what was sent is what arrived.
    const uint64_t rate = bytes_per_second_;
    const uint64_t step = rate == 0 ? 64u << 10 : std::clamp<uint64_t>(rate / 200, 1u << 10, 256u << 10);
    const size_t now = static_cast<size_t>(std::min(left, step));
    pace(now);
    if (!connection.send_all(data, now)) return false;
    body_bytes_sent_ += now;
    data += now;
    left -= now;
  }
  if (is(HubFault::Kind::stall)) (void)connection.read_request();  // until the client gives up
  return !cut && !stopping_ && lie == 0;
}

void TestHub::pace(size_t bytes) {
  const uint64_t rate = bytes_per_second_;
  if (rate == 0) return;
  using Clock = std::chrono::steady_clock;
  Clock::time_point until;
  {
    const std::lock_guard lock(pace_mutex_);
    // A link that was idle does not send faster later.
    pace_next_ = std::max(pace_next_, Clock::now() - std::chrono::milliseconds(5));
    until = pace_next_;
    pace_next_ += std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(static_cast<double>(bytes) / static_cast<double>(rate)));
  }
  while (Clock::now() < until && !stopping_)
    std::this_thread::sleep_for(std::min<Clock::duration>(until - Clock::now(), std::chrono::milliseconds(50)));
}

TestHub::Response TestHub::route(const HubRequest& request) {
  const std::lock_guard lock(mutex_);
  const std::string path = request.path.substr(0, request.path.find('?'));
  if (request.second_port) return route_blob(path.substr(path.rfind('/') + 1));
  if (const auto document = documents_.find(path); document != documents_.end())
    return {200, {}, shared(document->second), true};
  constexpr std::string_view kApi = "/api/models/";
  if (path.starts_with(kApi)) return route_api(request, path.substr(kApi.size()));
  const size_t resolve = path.find("/resolve/");
  if (resolve == std::string::npos) return {404, {}, shared("no such page"), false};
  return route_file(request, path.substr(1, resolve - 1), path.substr(resolve + 9));
}

std::optional<TestHub::Response> TestHub::refusal(const HubRepo& repo, const HubRequest& request, bool file) const {
  const std::string authorization = header_of(request, "authorization");
  const bool good = authorization == "Bearer " + token_;
  if (!authorization.empty() && !good && authorization != "Bearer no-access")
    return Response{401, {"X-Error-Message: Invalid credentials in Authorization header"}, shared("{}"), false};
  if (good) return std::nullopt;
  if (repo.hidden) return Response{401, {"X-Error-Code: RepoNotFound"}, shared("{}"), false};
  if (repo.gated && file)
    return Response{authorization.empty() ? 401 : 403, {"X-Error-Code: GatedRepo"}, shared("{}"), false};
  return std::nullopt;
}

TestHub::Response TestHub::route_api(const HubRequest& request, const std::string& rest) {
  size_t cut = rest.find("/revision/");
  const bool tree = cut == std::string::npos;
  if (tree) cut = rest.find("/tree/");
  const std::string id = rest.substr(0, cut);
  const std::string revision = percent_decoded(rest.substr(cut + (tree ? 6 : 10)));
  const auto repo = repos_.find(id);
  if (repo == repos_.end())
    return {
        header_of(request, "authorization").empty() ? 401 : 404, {"X-Error-Code: RepoNotFound"}, shared("{}"), false};
  if (auto refused = refusal(repo->second, request, false)) return *refused;
  const auto named = repo->second.revisions.find(revision);
  const std::string commit = named == repo->second.revisions.end() ? revision : named->second;
  const auto files = repo->second.commits.find(commit);
  if (files == repo->second.commits.end()) return {404, {"X-Error-Code: RevisionNotFound"}, shared("{}"), false};
  if (tree && !repo->second.has_tree) return {404, {}, shared("{}"), false};

  json entries = json::array();
  for (const auto& [name, file] : files->second) {
    json entry;
    entry[tree ? "path" : "rfilename"] = name;
    if (tree) entry["type"] = "file";
    if (tree || repo->second.lists_sizes) {
      entry["size"] = file.content->size();
      // A large file's git blob is its pointer; its content's checksum stands below "lfs".
      entry[tree ? "oid" : "blobId"] = file.lfs ? std::string(40, 'd') : file.etag;
      if (file.lfs)
        entry["lfs"] = {{tree ? "oid" : "sha256", file.etag}, {"size", file.content->size()}, {"pointerSize", 134}};
    }
    if (!tree && file.lfs && repo->second.lists_sizes) {
      if (repo->second.false_size) entry["size"] = entry["lfs"]["size"] = *repo->second.false_size;
      if (!repo->second.lists_lfs_sizes) {
        entry.erase("size");
        entry["lfs"].erase("size");
      }
    }
    entries.push_back(entry);
  }
  if (tree) {
    // Two entries a page, as a long list has it.
    const size_t at = request.path.find("cursor=");
    const size_t from = at == std::string::npos ? 0 : std::stoul(request.path.substr(at + 7));
    json page = json::array();
    for (size_t i = from; i < std::min(entries.size(), from + 2); ++i) page.push_back(entries[i]);
    Response response{200, {}, shared(page.dump()), false};
    if (from + 2 < entries.size())
      response.headers.push_back("Link: <" + endpoint() + "/api/models/" + rest +
                                 "?recursive=true&cursor=" + std::to_string(from + 2) + ">; rel=\"next\"");
    return response;
  }
  for (const std::string& name : repo->second.extra_names)
    entries.push_back({{"rfilename", name}, {"size", 1}, {"blobId", std::string(40, 'a')}});
  const json info = {
      {"id", id}, {"sha", commit}, {"siblings", entries}, {"cardData", {{"license", repo->second.license}}}};
  return {200, {}, shared(info.dump()), false};
}

TestHub::Response TestHub::route_file(const HubRequest& request, const std::string& id, const std::string& rest) {
  const auto repo = repos_.find(id);
  if (repo == repos_.end()) return {404, {"X-Error-Code: RepoNotFound"}, shared(""), false};
  if (auto refused = refusal(repo->second, request, true)) return *refused;
  const std::string revision = percent_decoded(rest.substr(0, rest.find('/')));
  const std::string name = percent_decoded(rest.substr(rest.find('/') + 1));
  const auto named = repo->second.revisions.find(revision);
  const std::string commit = named == repo->second.revisions.end() ? revision : named->second;
  const auto files = repo->second.commits.find(commit);
  if (files == repo->second.commits.end()) return {404, {"X-Error-Code: RevisionNotFound"}, shared(""), false};
  const auto file = files->second.find(name);
  if (file == files->second.end()) return {404, {"X-Error-Code: EntryNotFound"}, shared(""), false};
  const std::string etag = file->second.etag;
  if (!file->second.lfs)
    return {200, {"X-Repo-Commit: " + commit, "ETag: W/\"" + etag + "\""}, file->second.content, true};
  return {302,
          {"X-Repo-Commit: " + commit, "X-Linked-Etag: \"" + etag + "\"",
           "X-Linked-Size: " + std::to_string(file->second.content->size()),
           "Location: " + second_endpoint() + "/signed/" + etag},
          shared("moved"),
          false};
}

TestHub::Response TestHub::route_blob(const std::string& sha256) {
  const auto blob = blobs_.find(sha256);
  if (blob == blobs_.end()) return {404, {}, shared("no such blob"), false};
  return {200, {"ETag: \"" + sha256.substr(0, 32) + "\""}, blob->second, true};
}

}  // namespace tensorfold::testing
