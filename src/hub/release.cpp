#include "hub/release.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>
#include <openssl/evp.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "hub/cache.h"
#include "hub/client.h"
#include "hub/digest.h"

namespace tensorfold::hub {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kListLimit = 1u << 20;
constexpr uint64_t kPackageLimit = 4ull << 30;

std::optional<std::array<uint64_t, 3>> parsed_version(std::string_view text) {
  if (text.starts_with('v')) text.remove_prefix(1);
  std::array<uint64_t, 3> numbers{};
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), numbers[i]);
    if (error != std::errc()) return std::nullopt;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (i + 1 < numbers.size()) {
      if (!text.starts_with('.')) return std::nullopt;
      text.remove_prefix(1);
    }
  }
  if (!text.empty()) return std::nullopt;
  return numbers;
}

std::string string_of(const json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

std::vector<unsigned char> base64_bytes(const std::string& text) {
  std::vector<unsigned char> bytes(text.size() / 4 * 3 + 3);
  const int length =
      EVP_DecodeBlock(bytes.data(), reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (length < 0) return {};
  const auto padding = std::count(text.begin(), text.end(), '=');
  bytes.resize(static_cast<size_t>(std::max<std::ptrdiff_t>(0, length - padding)));
  return bytes;
}

/// Gives the body of `url` to `on_body`; throws Error(network) unless it arrives whole with status 200.
void fetch_url(const std::string& url, const HttpOptions& http, const HttpSession::OnBody& on_body) {
  Settings settings;  // no token: releases are public
  settings.endpoint = url;
  const Client client(settings, {}, http);
  HttpSession session(client.http());
  const Client::Reply reply = client.send(
      session, HttpRequest{url, {}, false, std::nullopt, std::nullopt},
      [](const HttpHead& head, const Client::Reply&) { return head.status == 200; }, on_body);
  client.throw_if_cancelled();
  if (reply.result.head.status != 0 && reply.result.head.status != 200)
    fail(ErrorKind::network, "{} answers {}", url, reply.result.head.status);
  if (reply.result.end != HttpResult::End::complete)
    fail(ErrorKind::network, "cannot fetch {}: {}", url, reply.result.failure);
}

/// Runs a program without a shell, its output thrown away; the exit code, or -1 when it did not end by itself.
int run_quietly(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return -1;
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stdout) == nullptr || std::freopen("/dev/null", "w", stderr) == nullptr)
      ::_exit(126);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// A folder beside the installation, on its file system, gone at the end.
class StagingFolder {
 public:
  explicit StagingFolder(const fs::path& prefix) {
    remove_abandoned(prefix);
    std::string pattern = (prefix / (std::string(kName) + "XXXXXX")).string();
    if (::mkdtemp(pattern.data()) == nullptr)
      fail(ErrorKind::io, "cannot write into {}: run this as the user who installed it", prefix.string());
    path_ = pattern;
  }
  ~StagingFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  static constexpr const char* kName = ".tensorfold-update-";

  /// What updates that were killed have left; one that runs now is younger.
  static void remove_abandoned(const fs::path& prefix) {
    std::vector<fs::path> abandoned;
    std::error_code error;
    for (fs::directory_iterator it(prefix, error), end; !error && it != end; it.increment(error)) {
      std::error_code ignored;
      const auto age = fs::file_time_type::clock::now() - it->last_write_time(ignored);
      if (it->path().filename().string().starts_with(kName) && age > std::chrono::hours(1))
        abandoned.push_back(it->path());
    }
    for (const fs::path& folder : abandoned) fs::remove_all(folder, error);
  }

  fs::path path_;
};

void fetch_package(const Release& release, const fs::path& file, const HttpOptions& http) {
  std::ofstream out(file, std::ios::binary);
  Digest digest(DigestKind::sha256, release.size);
  uint64_t received = 0;
  fetch_url(release.url, http, [&](std::span<const std::byte> bytes) {
    received += bytes.size();
    if (received > release.size)
      fail(ErrorKind::corrupt_file, "{} is larger than the {} bytes of its release", release.url, release.size);
    digest.update(bytes);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return true;
  });
  out.close();
  if (!out) fail(ErrorKind::io, "cannot write {}", file.string());
  if (received != release.size || digest.finish() != release.sha256)
    fail(ErrorKind::corrupt_file, "{} is not the file its release describes (size or SHA-256 differ)", release.url);
}

/// The one folder of an unpacked package.
fs::path package_root(const fs::path& unpacked) {
  for (const auto& entry : fs::directory_iterator(unpacked))
    if (entry.is_directory() && fs::is_regular_file(entry.path() / "bin" / "tensorfold")) return entry.path();
  fail(ErrorKind::corrupt_file, "the release's package has no bin/tensorfold");
}

/// Files moved into an installation; what they replaced comes back unless all is kept.
class Replacement {
 public:
  Replacement(fs::path prefix, fs::path backups) : prefix_(std::move(prefix)), backups_(std::move(backups)) {}
  ~Replacement() {
    std::error_code ignored;
    for (auto file = placed_.rbegin(); file != placed_.rend(); ++file) {
      if (fs::exists(backups_ / *file, ignored))
        fs::rename(backups_ / *file, prefix_ / *file, ignored);
      else
        fs::remove(prefix_ / *file, ignored);
    }
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  /// Moves `root`/`file` to `prefix`/`file` in one step.
  void place(const fs::path& root, const fs::path& file) {
    std::error_code error;
    fs::create_directories((prefix_ / file).parent_path(), error);
    if (!error && fs::exists(prefix_ / file)) {
      fs::create_directories((backups_ / file).parent_path(), error);
      if (!error) fs::create_hard_link(prefix_ / file, backups_ / file, error);
      if (error) fs::copy_file(prefix_ / file, backups_ / file, error);
    }
    if (!error) fs::rename(root / file, prefix_ / file, error);
    if (error) fail(ErrorKind::io, "cannot replace {}: {}", (prefix_ / file).string(), error.message());
    placed_.push_back(file);
  }
  void keep() { placed_.clear(); }

 private:
  fs::path prefix_;
  fs::path backups_;
  std::vector<fs::path> placed_;
};

/// Every file below `root`, the program last: until then the old one is whole.
std::vector<fs::path> files_of(const fs::path& root) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (!entry.is_directory()) files.push_back(fs::relative(entry.path(), root));
  std::stable_partition(files.begin(), files.end(), [](const fs::path& file) { return file != "bin/tensorfold"; });
  return files;
}

}  // namespace

std::string Release::signed_text() const {
  return fmt::format("tensorfold release\n{}\n{}\n{}\n{}\n", version, platform, sha256, size);
}

std::string platform_name() {
#if defined(__x86_64__)
  return "linux-x86_64";
#elif defined(__aarch64__)
  return "linux-aarch64";
#else
  return "linux-other";
#endif
}

bool is_newer_version(const std::string& a, const std::string& b) {
  const auto left = parsed_version(a);
  const auto right = parsed_version(b);
  return left && right && *left > *right;
}

Release parse_release(const std::string& text, const std::string& platform, const std::string& list_url) {
  const json list = json::parse(text, nullptr, false);
  Release release;
  release.version = string_of(list, "version");
  release.notes = printable(string_of(list, "notes"));
  release.platform = platform;
  if (!parsed_version(release.version) || !list.contains("packages") || !list["packages"].is_object())
    fail(ErrorKind::network, "{} is no release list", list_url);
  if (!list["packages"].contains(platform))
    fail(ErrorKind::unsupported, "release {} has no package for {}: build it from source", release.version, platform);
  const json& package = list["packages"][platform];
  const auto url = resolved_url(list_url, string_of(package, "url"));
  release.sha256 = string_of(package, "sha256");
  release.signature = string_of(package, "signature");
  if (package.contains("size") && package["size"].is_number_unsigned()) release.size = package["size"].get<uint64_t>();
  if (!url || release.sha256.size() != 64 || release.size == 0 || release.size > kPackageLimit)
    fail(ErrorKind::network, "{} describes its package for {} incompletely", list_url, platform);
  release.url = *url;
  return release;
}

Release fetch_release(const std::string& url, const std::string& platform, const HttpOptions& http) {
  std::string text;
  fetch_url(url, http, [&](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return text.size() <= kListLimit;
  });
  return parse_release(text, platform, url);
}

void check_signature(const Release& release, const std::string& public_key) {
  if (public_key.empty())
    fail(ErrorKind::unsupported,
         "this program was built without a release key: it cannot tell whose releases are ours");
  const std::vector<unsigned char> key_bytes = base64_bytes(public_key);
  const std::vector<unsigned char> signature = base64_bytes(release.signature);
  const std::string text = release.signed_text();
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, key_bytes.data(), key_bytes.size()), &EVP_PKEY_free);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  if (key == nullptr) fail(ErrorKind::unsupported, "this program was built with a release key that is none");
  check(context != nullptr && EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1,
        "a signature check starts");
  if (EVP_DigestVerify(context.get(), signature.data(), signature.size(),
                       reinterpret_cast<const unsigned char*>(text.data()), text.size()) != 1)
    fail(ErrorKind::corrupt_file, "release {} for {} has a wrong signature: it is not installed", release.version,
         release.platform);
}

void install_release(const Release& release, const fs::path& prefix, const HttpOptions& http) {
  const StagingFolder staging(prefix);
  const fs::path archive = staging.path() / "package.tar.gz";
  const fs::path unpacked = staging.path() / "unpacked";
  fetch_package(release, archive, http);
  fs::create_directory(unpacked);
  if (run_quietly({"tar", "-xzf", archive.string(), "-C", unpacked.string(), "--no-same-owner"}) != 0)
    fail(ErrorKind::corrupt_file, "the release's package cannot be unpacked (is tar installed?)");
  const fs::path root = package_root(unpacked);
  if (run_quietly({(root / "bin" / "tensorfold").string(), "--version"}) != 0)
    fail(ErrorKind::unsupported, "release {} does not start on this machine: the old one stays", release.version);
  Replacement replacement(prefix, staging.path() / "old");
  for (const fs::path& file : files_of(root)) replacement.place(root, file);
  if (run_quietly({(prefix / "bin" / "tensorfold").string(), "--version"}) != 0)
    fail(ErrorKind::unsupported, "release {} does not start in {}: the old one is back", release.version,
         prefix.string());
  replacement.keep();
}

fs::path installed_prefix(const fs::path& executable) {
  const fs::path folder = executable.parent_path();
  const auto is_build_tree = [](fs::path path) {
    for (; path.has_relative_path(); path = path.parent_path())
      if (fs::exists(path / "CMakeCache.txt")) return true;
    return false;
  };
  if (folder.filename() != "bin" || is_build_tree(folder))
    fail(ErrorKind::unsupported, "{} was not installed from a release: update its source and build it again",
         executable.string());
  return folder.parent_path();
}

ReleaseCheck::ReleaseCheck(ReleaseCheckOptions options, std::function<void(const std::string&)> tell)
    : options_(std::move(options)), tell_(std::move(tell)) {
  if (!options_.list_url.empty()) thread_ = std::thread([this] { run(); });
}

ReleaseCheck::~ReleaseCheck() {
  cancel_ = true;
  if (thread_.joinable()) thread_.join();
}

void ReleaseCheck::run() {
  try {
    const int64_t now = std::time(nullptr);
    std::ifstream in(options_.memory, std::ios::binary);
    const json known = json::parse(in, nullptr, false);
    std::string newest = string_of(known, "version");
    const int64_t checked = known.is_object() ? known.value("checked", int64_t{0}) : 0;
    if (newest.empty() || now - checked > options_.keep.count() || checked > now) {
      HttpOptions http;
      http.cancel = &cancel_;
      http.connect_timeout = std::chrono::seconds(3);
      http.stall_timeout = std::chrono::seconds(3);
      newest = fetch_release(options_.list_url, platform_name(), http).version;
      write_file_atomically(options_.memory, json{{"version", newest}, {"checked", now}}.dump());
    }
    if (is_newer_version(newest, options_.version))
      tell_(fmt::format("version {} is out (this is {}): `tensorfold update` installs it", newest, options_.version));
  } catch (const std::exception&) {
    // No network, no list, no home: nothing a server's start has to hear about.
  }
}

}  // namespace tensorfold::hub
