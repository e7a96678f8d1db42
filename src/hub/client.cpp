#include "hub/client.h"

#include <algorithm>
#include <charconv>
#include <random>
#include <set>
#include <thread>

#include <curl/curl.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tensorfold::hub {
namespace {

using nlohmann::json;

constexpr uint64_t kDocumentLimit = 256u << 20;  // the list of a repository with very many files

bool is_hexadecimal(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string text_of(const json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

std::optional<uint64_t> number_of(const json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_number_unsigned()) return std::nullopt;
  return object[key].get<uint64_t>();
}

std::optional<uint64_t> parsed_number(const std::optional<std::string>& text) {
  uint64_t value = 0;
  if (!text) return std::nullopt;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
  return value;
}

/// Name, size and checksum of an entry of the repository's list (`rfilename`, `blobId`) or its tree (`path`, `oid`).
/// The etag stays empty where the entry lacks one of them: someone else has to be asked.
RemoteFile file_of(const json& entry, const char* name_key, const char* blob_key) {
  RemoteFile file;
  file.name = text_of(entry, name_key);
  const json lfs = entry.is_object() && entry.contains("lfs") ? entry["lfs"] : json();
  std::string sha256 = text_of(lfs, "sha256");
  if (sha256.empty()) sha256 = text_of(lfs, "oid");
  const auto entry_size = number_of(entry, "size");
  const auto size = sha256.empty() || !number_of(lfs, "size") ? entry_size : number_of(lfs, "size");
  if (!size) return file;
  if (sha256.size() == 64 && is_hexadecimal(sha256)) {
    file.etag = sha256;
    file.digest = DigestKind::sha256;
    file.size = *size;
  } else if (const std::string blob = text_of(entry, blob_key);
             blob.size() == 40 && is_hexadecimal(blob) && entry_size) {
    file.etag = blob;
    file.digest = DigestKind::git_sha1;
    file.size = *entry_size;
  }
  return file;
}

void check_names(const RepoId& repo, const std::vector<RemoteFile>& files) {
  std::set<std::string_view> names;
  for (const RemoteFile& file : files) {
    if (!is_safe_file_name(file.name))
      fail(ErrorKind::corrupt_file, "{} lists a file whose name is not safe: '{}'", repo.id(), printable(file.name));
    if (!names.insert(file.name).second)
      fail(ErrorKind::corrupt_file, "{} lists '{}' twice", repo.id(), printable(file.name));
  }
  for (const RemoteFile& file : files)
    for (size_t slash = file.name.find('/'); slash != std::string::npos; slash = file.name.find('/', slash + 1))
      if (names.contains(std::string_view(file.name).substr(0, slash)))
        fail(ErrorKind::corrupt_file, "{} lists '{}' as a file and as a folder", repo.id(),
             printable(file.name.substr(0, slash)));
}

std::string license_of(const json& info) {
  const json card = info.contains("cardData") ? info["cardData"] : json();
  std::string license = text_of(card, "license");
  if (license == "other" && !text_of(card, "license_name").empty()) license = text_of(card, "license_name");
  if (!license.empty() || !info.contains("tags") || !info["tags"].is_array()) return license;
  for (const json& tag : info["tags"])
    if (tag.is_string() && tag.get<std::string>().starts_with("license:")) return tag.get<std::string>().substr(8);
  return "";
}

/// The URL in `Link: <url>; rel="next"`.
std::optional<std::string> next_page(const HttpHead& head) {
  const auto link = head.header("link");
  if (!link) return std::nullopt;
  const size_t relation = link->find("rel=\"next\"");
  if (relation == std::string::npos) return std::nullopt;
  const size_t begin = link->rfind('<', relation);
  const size_t end = link->find('>', begin == std::string::npos ? 0 : begin);
  if (begin == std::string::npos || end == std::string::npos) return std::nullopt;
  return link->substr(begin + 1, end - begin - 1);
}

std::optional<std::chrono::milliseconds> retry_after(const HttpHead& head) {
  const auto text = head.header("retry-after");
  if (const auto seconds = parsed_number(text)) return std::chrono::seconds(std::min<uint64_t>(*seconds, 86'400));
  if (!text) return std::nullopt;
  const time_t when = curl_getdate(text->c_str(), nullptr);
  if (when < 0) return std::nullopt;
  return std::chrono::seconds(std::max<time_t>(0, when - std::time(nullptr)));
}

}  // namespace

std::string plain_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  while (!etag.empty() && etag.front() == '"') etag.remove_prefix(1);
  while (!etag.empty() && etag.back() == '"') etag.remove_suffix(1);
  return std::string(etag);
}

Client::Client(Settings settings, RetryPolicy retry, HttpOptions http)
    : settings_(std::move(settings)), retry_(retry), http_(std::move(http)) {
  if (!http_.certificates) http_.certificates = settings_.certificates;
}

bool Client::is_transient(int status) { return status == 408 || status == 425 || status == 429 || status >= 500; }

void Client::throw_if_cancelled() const {
  if (http_.cancel != nullptr && http_.cancel->load()) fail(ErrorKind::cancelled, "stopped on request");
}

void Client::wait_before_retry(int attempt, const HttpHead& head) const {
  thread_local std::minstd_rand random{std::random_device{}()};
  auto delay = std::min(retry_.longest_delay, retry_.first_delay * (1 << std::min(attempt - 1, 12)));
  // Half fixed, half random: many clients that failed together do not come back together.
  delay = delay / 2 + std::chrono::milliseconds(std::uniform_int_distribution<int64_t>(0, delay.count() / 2)(random));
  if (const auto asked = retry_after(head)) {
    delay = std::max(delay, std::min(*asked, retry_.longest_retry_after));
    tell_of_wait(std::min(*asked, retry_.longest_retry_after));
  }
  const auto until = std::chrono::steady_clock::now() + delay;
  while (std::chrono::steady_clock::now() < until) {
    throw_if_cancelled();
    std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(
        std::chrono::milliseconds(50), until - std::chrono::steady_clock::now()));
  }
  throw_if_cancelled();
}

void Client::tell_of_wait(std::chrono::milliseconds delay) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(delay).count();
  if (!notes_ || seconds < 1) return;
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(notes_->mutex);
  if (now < notes_->told_until) return;
  notes_->told_until = now + delay;
  notes_->say(fmt::format("the hub asks to wait {} s", seconds));
}

Client Client::with_notes(std::function<void(const std::string&)> say) const {
  Client copy = *this;
  copy.notes_ = std::make_shared<Notes>();
  copy.notes_->say = std::move(say);
  return copy;
}

Client Client::with_cancel(const std::atomic<bool>* cancel) const {
  Client copy = *this;
  copy.http_.cancel = cancel;
  return copy;
}

Client::Reply Client::send(HttpSession& session, HttpRequest request, const OnReply& on_reply,
                           const HttpSession::OnBody& on_body) const {
  if (settings_.offline)
    fail(ErrorKind::invalid_request, "HF_HUB_OFFLINE is set: no request is made to {}", request.url);
  const std::string own_origin = origin_of(settings_.endpoint);
  const std::vector<std::string> headers = request.headers;
  Reply reply;
  constexpr int kMostRedirects = 10;
  for (int hop = 0; hop <= kMostRedirects; ++hop) {
    const bool own = origin_of(request.url) == own_origin;
    request.headers = headers;
    if (own && settings_.token) request.headers.push_back("Authorization: Bearer " + *settings_.token);
    std::optional<std::string> location;
    uint64_t skipped = 0;
    reply.url = request.url;
    reply.result = session.send(
        request,
        [&](const HttpHead& head) {
          const bool redirects = head.status >= 300 && head.status < 400 && head.status != 304;
          location = redirects ? head.header("location") : std::nullopt;
          if (own) reply.hub_head = head;
          return location.has_value() || on_reply(head, reply);
        },
        [&](std::span<const std::byte> bytes) {
          // A redirect's own body is read, so that its connection can be used again, unless it is strangely long.
          return location ? (skipped += bytes.size()) < 65'536 : on_body(bytes);
        });
    if (!location) return reply;
    throw_if_cancelled();
    const auto next = resolved_url(request.url, *location);
    if (!next || (request.url.starts_with("https:") && !next->starts_with("https:")))
      fail(ErrorKind::network, "{} redirects to '{}', which is not followed", request.url, printable(*location));
    request.url = *next;
  }
  fail(ErrorKind::network, "{} redirects more than {} times", reply.url, kMostRedirects);
}

void Client::refuse(const HttpHead& head, const RepoId& repo, const std::string& what) const {
  const std::string page = settings_.endpoint + "/" + repo.id();
  const std::string code = head.header("x-error-code").value_or("");
  const std::string token =
      settings_.token ? "the token from " + settings_.token_source : std::string("no token (set HF_TOKEN)");
  if (code == "GatedRepo" || (head.status == 403 && code.empty())) {
    if (!settings_.token)
      fail(ErrorKind::unauthorized, "{} is gated: accept its licence at {} and set HF_TOKEN to a token of that account",
           repo.id(), page);
    fail(ErrorKind::unauthorized, "{} is gated and {} has no access: accept its licence at {} with that account",
         repo.id(), token, page);
  }
  if (code == "RevisionNotFound")
    fail(ErrorKind::not_found, "{} has no revision '{}'", repo.id(), repo.revision_or_main());
  if (code == "EntryNotFound") fail(ErrorKind::not_found, "{} has no file {}", repo.id(), what);
  if (head.status == 401 && settings_.token && code != "RepoNotFound")
    fail(ErrorKind::unauthorized, "the hub refuses {} for {}: it is wrong, expired or may not read this repository",
         token, repo.id());
  if (head.status == 404 || head.status == 401)
    fail(ErrorKind::not_found,
         "{} was not found at {}: check the name; a private repository needs a token that may read "
         "it, and this request had {}",
         repo.id(), settings_.endpoint, token);
  const std::string words = printable(head.header("x-error-message").value_or(""));
  fail(ErrorKind::network, "the hub answered {} for {} of {}{}{}", head.status, what, repo.id(),
       words.empty() ? "" : ": ", words);
}

HttpHead Client::fetch_document(HttpSession& session, const RepoId& repo, const std::string& url,
                                const std::string& what, uint64_t limit, std::string& body) const {
  for (int attempt = 1;; ++attempt) {
    body.clear();
    const Reply reply = send(
        session, HttpRequest{url, {}, false, std::nullopt, std::nullopt},
        [](const HttpHead&, const Reply&) { return true; },
        [&](std::span<const std::byte> bytes) {
          if (body.size() + bytes.size() > limit)
            fail(ErrorKind::network, "{} of {} is larger than expected", what, repo.id());
          body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          return true;
        });
    throw_if_cancelled();
    const HttpResult& result = reply.result;
    if (result.end == HttpResult::End::complete && result.head.status == 200) return reply.hub_head;
    const bool again = result.end != HttpResult::End::complete ? result.may_retry : is_transient(result.head.status);
    // Someone is waiting for the first word: a hub that cannot be reached is said soon.
    constexpr int kMostUnanswered = 4;
    const int attempts = result.head.status == 0 ? std::min(retry_.attempts, kMostUnanswered) : retry_.attempts;
    if (!again || attempt >= attempts) {
      if (result.end == HttpResult::End::complete) refuse(result.head, repo, what);
      fail(ErrorKind::network,
           "cannot reach {}: {} (HF_ENDPOINT names another hub, HF_HUB_OFFLINE=1 uses the cache alone)",
           settings_.endpoint, result.failure);
    }
    wait_before_retry(attempt, result.head);
  }
}

std::string Client::fetch(HttpSession& session, const RepoId& repo, const std::string& url, const std::string& what,
                          uint64_t limit) const {
  std::string body;
  fetch_document(session, repo, url, what, limit, body);
  return body;
}

std::string Client::file_url(const RepoId& repo, const std::string& commit, const std::string& name) const {
  return settings_.endpoint + "/" + repo.id() + "/resolve/" + percent_encoded(commit, false) + "/" +
         percent_encoded(name, true);
}

ModelInfo Client::model_info(HttpSession& session, const RepoId& repo) const {
  const std::string url = settings_.endpoint + "/api/models/" + repo.id() + "/revision/" +
                          percent_encoded(repo.revision_or_main(), false) + "?blobs=true";
  const json info = json::parse(fetch(session, repo, url, "the description", kDocumentLimit), nullptr, false);
  ModelInfo model;
  model.commit = text_of(info, "sha");
  if (!is_commit_hash(model.commit) || !info.contains("siblings") || !info["siblings"].is_array())
    fail(ErrorKind::network, "{} does not describe {} as a hub does (no commit or file list)", settings_.endpoint,
         repo.id());
  model.license = printable(license_of(info), 80);
  for (const json& entry : info["siblings"]) model.files.push_back(file_of(entry, "rfilename", "blobId"));
  check_names(repo, model.files);
  complete_files(session, repo, model);
  return model;
}

void Client::complete_files(HttpSession& session, const RepoId& repo, ModelInfo& info) const {
  const auto incomplete = [](const RemoteFile& file) { return file.etag.empty(); };
  // Mirrors may leave sizes and checksums out of the list: the tree has them, and a file's own headers as a last
  // resort.
  if (std::any_of(info.files.begin(), info.files.end(), incomplete)) read_tree(session, repo, info);
  for (RemoteFile& file : info.files)
    if (incomplete(file)) read_file_head(session, repo, info.commit, file);
}

void Client::read_tree(HttpSession& session, const RepoId& repo, ModelInfo& info) const {
  const std::string first =
      settings_.endpoint + "/api/models/" + repo.id() + "/tree/" + info.commit + "?recursive=true";
  std::map<std::string, RemoteFile> found;
  std::optional<std::string> url = first;
  try {
    for (int page = 0; url && page < 1000; ++page) {
      std::string body;
      const HttpHead head = fetch_document(session, repo, *url, "the file tree", kDocumentLimit, body);
      const json entries = json::parse(body, nullptr, false);
      if (!entries.is_array()) break;
      for (const json& entry : entries) {
        RemoteFile file = file_of(entry, "path", "oid");
        if (!file.etag.empty() && text_of(entry, "type") != "directory") found[file.name] = std::move(file);
      }
      const auto next = next_page(head);
      const auto following = next ? resolved_url(*url, *next) : std::nullopt;
      url = following && origin_of(*following) == origin_of(first) ? following : std::nullopt;
    }
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::cancelled) throw;  // anything else: the files' own headers are asked
  }
  for (RemoteFile& file : info.files)
    if (const auto entry = found.find(file.name); file.etag.empty() && entry != found.end()) file = entry->second;
}

void Client::read_file_head(HttpSession& session, const RepoId& repo, const std::string& commit,
                            RemoteFile& file) const {
  for (int attempt = 1;; ++attempt) {
    HttpRequest request;
    request.url = file_url(repo, commit, file.name);
    request.head = true;
    const Reply reply = send(
        session, request, [](const HttpHead&, const Reply&) { return true; },
        [](std::span<const std::byte>) { return true; });
    throw_if_cancelled();
    const HttpHead& last = reply.result.head;
    if (reply.result.end == HttpResult::End::complete && last.status == 200) {
      const auto linked_size = reply.hub_head.header("x-linked-size");
      const auto size = parsed_number(linked_size ? linked_size : last.header("content-length"));
      file.size = size.value_or(0);
      const auto linked = reply.hub_head.header("x-linked-etag");
      file.etag = plain_etag(linked ? *linked : reply.hub_head.header("etag").value_or(""));
      if (!is_safe_component(file.etag) || !size)
        fail(ErrorKind::network, "{} gives no etag or size for {} of {}", settings_.endpoint, file.name, repo.id());
      file.digest = file.etag.size() == 64 && is_hexadecimal(file.etag) ? DigestKind::sha256 : DigestKind::none;
      return;
    }
    const bool complete = reply.result.end == HttpResult::End::complete;
    if (!(complete ? is_transient(last.status) : reply.result.may_retry) || attempt >= retry_.attempts) {
      if (complete) refuse(last, repo, file.name);
      fail(ErrorKind::network, "cannot reach {}: {}", settings_.endpoint, reply.result.failure);
    }
    wait_before_retry(attempt, last);
  }
}

}  // namespace tensorfold::hub
