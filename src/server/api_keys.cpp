#include "server/api_keys.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "base/console.h"
#include "base/error.h"

namespace tensorfold::server {
namespace {

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

bool is_label(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

constexpr int64_t largest_file = int64_t{1} << 20;

std::string open_to_others(const std::string& file) {
  return fmt::format("the key file {} is open to others; make its mode 0600", file);
}

bool equal(const Sha256Digest& a, const Sha256Digest& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

ApiKeys::ApiKeys(const std::vector<std::string>& keys, std::string_view environment, std::string file)
    : file_(std::move(file)) {
  for (const std::string& key : keys) {
    if (trim(key).empty()) fail(ErrorKind::invalid_request, "--api-key must not be empty");
    fixed_.push_back({sha256(trim(key)), fmt::format("cli-{}", fixed_.size() + 1)});
  }
  size_t count = 0;
  while (!environment.empty()) {
    const size_t comma = environment.find(',');
    const std::string_view key = trim(environment.substr(0, comma));
    if (!key.empty()) fixed_.push_back({sha256(key), fmt::format("env-{}", ++count)});
    environment.remove_prefix(comma == std::string_view::npos ? environment.size() : comma + 1);
  }
  if (!file_.empty()) {
    seen_ = mark();
    auto entries = read_file();
    if (!entries) fail(ErrorKind::invalid_request, "{}", open_to_others(file_));
    from_file_ = std::move(*entries);
  }
}

bool ApiKeys::required() const { return !file_.empty() || !fixed_.empty(); }

bool ApiKeys::FileMark::operator==(const FileMark& other) const {
  const auto same = [](const std::timespec& a, const std::timespec& b) {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
  };
  return inode == other.inode && size == other.size && same(content, other.content) && same(status, other.status);
}

ApiKeys::FileMark ApiKeys::mark() const {
  struct stat status{};
  if (::stat(file_.c_str(), &status) != 0) return {};
  return {status.st_ino, status.st_size, status.st_mtim, status.st_ctim};
}

std::optional<std::vector<ApiKeys::Entry>> ApiKeys::read_file() const {
  // Not blocking: whoever puts a pipe there must not stop the server.
  const int descriptor = ::open(file_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) fail(ErrorKind::io, "the key file {} cannot be read", file_);
  const std::unique_ptr<FILE, int (*)(FILE*)> stream(::fdopen(descriptor, "r"), &std::fclose);
  struct stat status{};
  if (!stream || ::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    fail(ErrorKind::io, "the key file {} is no regular file that can be read", file_);
  }
  if ((status.st_mode & 077) != 0) return std::nullopt;
  if (status.st_size > largest_file) fail(ErrorKind::invalid_request, "the key file {} exceeds 1 MiB", file_);
  std::string content(static_cast<size_t>(status.st_size), '\0');
  content.resize(std::fread(content.data(), 1, content.size(), stream.get()));
  return entries_of(content);
}

std::vector<ApiKeys::Entry> ApiKeys::entries_of(std::string_view content) const {
  if (content.starts_with("\xEF\xBB\xBF")) content.remove_prefix(3);
  std::vector<Entry> entries;
  size_t number = 0;
  while (!content.empty()) {
    const size_t end = content.find('\n');
    std::string_view text = trim(content.substr(0, end));
    content.remove_prefix(end == std::string_view::npos ? content.size() : end + 1);
    if (text.empty() || text.front() == '#') continue;
    std::string label = fmt::format("file-{}", ++number);
    if (const size_t colon = text.find(':'); colon != std::string_view::npos && is_label(trim(text.substr(0, colon)))) {
      label = std::string(trim(text.substr(0, colon)));
      text = trim(text.substr(colon + 1));
    }
    if (text.empty()) fail(ErrorKind::invalid_request, "the key file {} has an empty key ({})", file_, label);
    entries.push_back({sha256(text), label});
  }
  if (entries.empty()) fail(ErrorKind::invalid_request, "the key file {} holds no key", file_);
  return entries;
}

void ApiKeys::reload() {
  std::vector<Entry> entries;
  try {
    if (!file_.empty()) {
      auto read = read_file();
      if (!read) {
        say_line(stderr, fmt::format("tensorfold: {}; until then it is not read, and its keys of before stay",
                                     open_to_others(file_)));
        return;
      }
      entries = std::move(*read);
    }
  } catch (const Error& failure) {
    say_line(stderr, fmt::format("tensorfold: {}; its keys are refused until it is right", failure.what()));
    entries.clear();
  }
  const std::lock_guard lock(mutex_);
  from_file_ = std::move(entries);
}

void ApiKeys::reload_if_changed() {
  {
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (file_.empty() || now - looked_ < std::chrono::seconds(1)) return;
    looked_ = now;
    const FileMark now_there = mark();
    if (now_there == seen_) return;
    seen_ = now_there;
  }
  reload();
}

std::optional<std::string> ApiKeys::label_of(std::string_view key) {
  reload_if_changed();
  const Sha256Digest digest = sha256(key);
  std::optional<std::string> label;
  const std::lock_guard lock(mutex_);
  for (const std::vector<Entry>* entries : {&fixed_, &from_file_}) {
    for (const Entry& entry : *entries) {
      if (equal(entry.digest, digest)) label = entry.label;
    }
  }
  return key.empty() ? std::nullopt : label;
}

std::string_view presented_key(std::optional<std::string_view> authorization,
                               std::optional<std::string_view> x_api_key) {
  constexpr std::string_view scheme = "bearer ";
  if (authorization && authorization->size() > scheme.size()) {
    const bool bearer = std::equal(scheme.begin(), scheme.end(), authorization->begin(), [](char want, char got) {
      return want == (got >= 'A' && got <= 'Z' ? static_cast<char>(got - 'A' + 'a') : got);
    });
    if (bearer) return trim(authorization->substr(scheme.size()));
  }
  return x_api_key ? trim(*x_api_key) : std::string_view();
}

}  // namespace tensorfold::server
