#include "hub/cache.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "hub/file_lock.h"

namespace tensorfold::hub {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_small_file(const fs::path& path) {
  constexpr std::uintmax_t kLimit = 64u << 20;
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error || size > kLimit) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

/// A regular file, following links.
bool is_present(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// Makes every folder from `top` (which may be a link the user put there) down `relative`, none of which may be a link.
void make_plain_directories(const fs::path& top, const fs::path& relative) {
  make_directories(top);
  fs::path current = top;
  for (const fs::path& part : relative) {
    current /= part;
    std::error_code error;
    const auto status = fs::symlink_status(current, error);
    if (fs::is_symlink(status)) fail(ErrorKind::io, "{} is a link where a folder is expected", current.string());
    if (!fs::is_directory(status) && !fs::create_directory(current, error) && !fs::is_directory(current))
      fail(ErrorKind::io, "cannot create {}: {}", current.string(), error.message());
  }
}

/// The relative path from a snapshot's file to its blob.
fs::path relative_blob(const std::string& name, const std::string& etag) {
  fs::path up = fs::path("..") / "..";
  for (auto slashes = std::count(name.begin(), name.end(), '/'); slashes > 0; --slashes) up /= "..";
  return up / "blobs" / etag;
}

/// Adds the shards a weight index names; an index that cannot be read is itself missing.
void add_index_files(const fs::path& index, std::set<std::string>& wanted, std::vector<std::string>& missing) {
  const auto text = read_small_file(index);
  const auto json = text ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    missing.push_back(index.filename().string());
    return;
  }
  for (const auto& entry : json["weight_map"])
    if (entry.is_string() && is_safe_file_name(entry.get<std::string>())) wanted.insert(entry.get<std::string>());
}

/// What a pull of this commit wrote down as wanted and is not there in its full size.
void add_expected_missing(const Snapshot& snapshot, std::vector<std::string>& missing) {
  const fs::path repo = snapshot.directory.parent_path().parent_path();
  const auto text = read_small_file(repo / ".tensorfold" / (snapshot.commit + ".json"));
  if (!text) return;
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object() || !json.contains("files") || !json["files"].is_array()) return;
  for (const auto& file : json["files"]) {
    if (!file.is_object() || !file.contains("name") || !file["name"].is_string()) continue;
    const auto name = file["name"].get<std::string>();
    if (!is_safe_file_name(name)) continue;
    std::error_code error;
    const auto size = fs::file_size(snapshot.directory / name, error);
    if (error || !file.contains("size") || file["size"] != size) missing.push_back(name);
  }
}

bool is_draft_model(const fs::path& snapshot) {
  const auto text = read_small_file(snapshot / "config.json");
  const auto config = text ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
  return config.is_object() && config.contains("dflash_config");
}

/// What the tokenizer and the settings beside it lack. Which of them the hub has is written down by our own pulls only:
/// in a cache of the Python tools a model needs tokenizer.json, and a link that leads nowhere tells of a file.
void add_missing_descriptions(const Snapshot& snapshot, std::vector<std::string>& missing) {
  std::error_code error;
  for (fs::directory_iterator it(snapshot.directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool description = name.ends_with(".json") || name.ends_with(".jinja");
    std::error_code ignored;
    if (description && it->is_symlink(ignored) && !is_present(it->path())) missing.push_back(name);
  }
  const fs::path list = snapshot.directory.parent_path().parent_path() / ".tensorfold" / (snapshot.commit + ".json");
  if (!is_present(list) && !is_present(snapshot.directory / "tokenizer.json") && !is_draft_model(snapshot.directory))
    missing.emplace_back("tokenizer.json");
}

std::optional<RepoId> repo_of_folder(const std::string& folder) {
  constexpr std::string_view kPrefix = "models--";
  if (!folder.starts_with(kPrefix)) return std::nullopt;
  const size_t separator = folder.find("--", kPrefix.size());
  if (separator == std::string::npos) return std::nullopt;
  return parse_repo(folder.substr(kPrefix.size(), separator - kPrefix.size()) + "/" + folder.substr(separator + 2));
}

/// Bytes of regular files below `directory`, every inode once, links not followed.
uint64_t bytes_below(const fs::path& directory) {
  std::set<std::pair<dev_t, ino_t>> seen;
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(directory, fs::directory_options::skip_permission_denied, error), end;
       !error && it != end; it.increment(error)) {
    struct stat status{};
    if (::lstat(it->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    // A sparse partial download counts what it occupies, not how long it will be.
    const auto on_disk =
        std::min<uint64_t>(static_cast<uint64_t>(status.st_size), static_cast<uint64_t>(status.st_blocks) * 512);
    if (seen.emplace(status.st_dev, status.st_ino).second) bytes += on_disk;
  }
  return bytes;
}

uint64_t partial_bytes_in(const fs::path& blobs) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(blobs, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    struct stat status{};
    if ((name.ends_with(kPartialSuffix) || name.ends_with(".incomplete")) && ::stat(it->path().c_str(), &status) == 0)
      bytes += std::min<uint64_t>(static_cast<uint64_t>(status.st_size), static_cast<uint64_t>(status.st_blocks) * 512);
  }
  return bytes;
}

/// The newest snapshot folder for which `accept` holds.
template <typename Accept>
std::optional<Snapshot> newest_snapshot(const fs::path& snapshots, Accept accept) {
  std::optional<Snapshot> best;
  fs::file_time_type best_time;
  std::error_code error;
  for (fs::directory_iterator it(snapshots, error), end; !error && it != end; it.increment(error)) {
    const std::string commit = it->path().filename().string();
    std::error_code ignored;
    if (!is_safe_component(commit) || !it->is_directory(ignored) || !accept(it->path())) continue;
    const auto time = it->last_write_time(ignored);
    if (best && (time < best_time || (time == best_time && commit < best->commit))) continue;
    best = Snapshot{it->path(), commit, false};
    best_time = time;
  }
  return best;
}

}  // namespace

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    fail(ErrorKind::io, "cannot create {}: {} (for another cache, set HF_HOME to a folder you may write)",
         path.string(), error.message());
}

void write_file_atomically(const fs::path& path, const std::string& text) {
  make_directories(path.parent_path());
  const fs::path temporary = path.parent_path() / fmt::format(".{}.{}.tmp", path.filename().string(), ::getpid());
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << text;
    out.flush();
    if (!out) {
      std::error_code ignored;
      fs::remove(temporary, ignored);
      fail(ErrorKind::io, "cannot write {}: {}", path.string(), std::strerror(errno));
    }
  }
  std::error_code error;
  fs::rename(temporary, path, error);
  if (error) fail(ErrorKind::io, "cannot write {}: {}", path.string(), error.message());
}

Cache::Cache(fs::path root, Links links) : root_(std::move(root)), links_(links) {}

fs::path Cache::blob_path(const RepoId& repo, const std::string& etag) const {
  check(is_safe_component(etag), "a blob's name is one plain component");
  return repo_directory(repo) / "blobs" / etag;
}

fs::path Cache::lock_path(const RepoId& repo, const std::string& etag) const {
  return root_ / ".locks" / repo.folder() / (etag + ".lock");
}

fs::path Cache::snapshot_path(const RepoId& repo, const std::string& commit) const {
  check(is_safe_component(commit), "a snapshot's name is one plain component");
  return repo_directory(repo) / "snapshots" / commit;
}

std::optional<std::string> Cache::read_ref(const RepoId& repo) const {
  if (!is_safe_revision(repo.revision_or_main())) return std::nullopt;
  auto text = read_small_file(repo_directory(repo) / "refs" / repo.revision_or_main());
  if (!text) return std::nullopt;
  while (!text->empty() && std::strchr(" \t\r\n", text->back()) != nullptr) text->pop_back();
  // A ref is another program's file: what it says is used as a path only if it is one plain name.
  if (!is_safe_component(*text)) return std::nullopt;
  return text;
}

void Cache::write_ref(const RepoId& repo, const std::string& commit) const {
  if (is_commit_hash(repo.revision_or_main())) return;
  check(is_safe_revision(repo.revision_or_main()), "a ref's name stays in its folder");
  if (read_ref(repo) == commit) return;
  write_file_atomically(repo_directory(repo) / "refs" / repo.revision_or_main(), commit);
}

std::optional<Snapshot> Cache::locate(const RepoId& repo) const {
  std::error_code error;
  const std::string revision = repo.revision_or_main();
  const fs::path snapshots = repo_directory(repo) / "snapshots";
  for (const auto& commit : {read_ref(repo), is_commit_hash(revision) ? std::optional(revision) : std::nullopt})
    if (commit && fs::is_directory(snapshots / *commit, error)) return Snapshot{snapshots / *commit, *commit, true};
  if (revision != "main") return std::nullopt;
  return newest_snapshot(snapshots, [](const fs::path& path) { return is_present(path / "config.json"); });
}

std::vector<std::string> Cache::missing_files(const Snapshot& snapshot) {
  std::vector<std::string> missing;
  if (!is_present(snapshot.directory / "config.json")) missing.emplace_back("config.json");
  std::set<std::string> wanted;
  bool any_weights = false;
  std::error_code error;
  for (fs::directory_iterator it(snapshot.directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors.index.json")) {
      add_index_files(it->path(), wanted, missing);
    } else if (name.ends_with(".safetensors")) {
      wanted.insert(name);
      any_weights = true;
    }
  }
  for (const std::string& name : wanted)
    if (!is_present(snapshot.directory / name)) missing.push_back(name);
  if (!any_weights && wanted.empty()) missing.emplace_back("*.safetensors");
  add_expected_missing(snapshot, missing);
  add_missing_descriptions(snapshot, missing);
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return missing;
}

std::vector<CachedModel> Cache::list() const {
  std::vector<CachedModel> models;
  std::error_code error;
  for (fs::directory_iterator it(root_, error), end; !error && it != end; it.increment(error)) {
    const auto repo = repo_of_folder(it->path().filename().string());
    std::error_code ignored;
    if (!repo || !it->is_directory(ignored)) continue;
    CachedModel model;
    model.id = repo->id();
    model.bytes = bytes_below(it->path());
    model.partial_bytes = partial_bytes_in(it->path() / "blobs");
    auto snapshot = locate(*repo);
    if (!snapshot) snapshot = newest_snapshot(it->path() / "snapshots", [](const fs::path&) { return true; });
    if (snapshot) {
      model.directory = snapshot->directory;
      model.complete = missing_files(*snapshot).empty();
    }
    models.push_back(std::move(model));
  }
  std::sort(models.begin(), models.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return models;
}

uint64_t Cache::remove(const RepoId& repo) const {
  const fs::path directory = repo_directory(repo);
  std::error_code error;
  const auto status = fs::symlink_status(directory, error);
  if (!fs::exists(status)) fail(ErrorKind::not_found, "{} is not in the cache {}", repo.id(), root_.string());
  if (fs::is_symlink(status))
    fail(ErrorKind::unsupported, "{} is a link to {}: remove that folder yourself", directory.string(),
         fs::read_symlink(directory, error).string());
  const fs::path lock_folder = root_ / ".locks" / repo.folder();
  std::vector<FileLock> held;  // what a pull is writing stays
  for (fs::directory_iterator it(lock_folder, error), end; !error && it != end; it.increment(error)) {
    auto lock = FileLock::try_acquire(it->path());
    if (!lock) fail(ErrorKind::io, "{} is being fetched by another process: stop that first", repo.id());
    held.push_back(std::move(*lock));
  }
  const uint64_t bytes = bytes_below(directory);
  // Refs first: a removal that is cut short leaves no name that promises a complete model.
  for (const char* part : {"refs", ".tensorfold", "snapshots", ""}) {
    fs::remove_all(*part == '\0' ? directory : directory / part, error);
    if (error) fail(ErrorKind::io, "cannot remove {}: {}", directory.string(), error.message());
  }
  fs::remove_all(lock_folder, error);
  return bytes;
}

void Cache::link_file(const RepoId& repo, const std::string& commit, const std::string& name,
                      const std::string& etag) const {
  check(is_safe_file_name(name), "a file's name stays in its snapshot");
  const fs::path blob = blob_path(repo, etag);
  const fs::path file = snapshot_path(repo, commit) / name;
  make_plain_directories(repo_directory(repo), fs::path("snapshots") / commit / fs::path(name).parent_path());
  const fs::path target = relative_blob(name, etag);
  std::error_code error;
  if (fs::is_symlink(file, error) && fs::read_symlink(file, error) == target) return;
  const fs::path temporary = file.parent_path() / fmt::format(".{}.{}.tmp", etag, ::getpid());
  fs::remove(temporary, error);
  error = std::make_error_code(std::errc::operation_not_supported);
  if (links_ == Links::symbolic) fs::create_symlink(target, temporary, error);
  if (error) fs::create_hard_link(blob, temporary, error);
  if (error) fs::copy_file(blob, temporary, fs::copy_options::overwrite_existing, error);
  if (!error) fs::rename(temporary, file, error);
  if (error) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    fail(ErrorKind::io, "cannot place {}: {}", file.string(), error.message());
  }
  // Renaming one hard link over another of the same file does nothing: the temporary name is still there.
  fs::remove(temporary, error);
}

std::optional<uint64_t> Cache::file_size(const RepoId& repo, const std::string& commit, const std::string& name) const {
  std::error_code error;
  const fs::path file = snapshot_path(repo, commit) / name;
  if (!fs::is_regular_file(file, error)) return std::nullopt;
  const auto size = fs::file_size(file, error);
  if (error) return std::nullopt;
  return size;
}

void Cache::write_expected(const RepoId& repo, const std::string& commit,
                           const std::vector<ExpectedFile>& files) const {
  auto list = nlohmann::json::array();
  for (const ExpectedFile& file : files) list.push_back({{"name", file.name}, {"size", file.size}});
  const fs::path path = repo_directory(repo) / ".tensorfold" / (commit + ".json");
  const std::string text = nlohmann::json{{"files", list}}.dump();
  // A complete model in a cache that may only be read stays usable.
  if (read_small_file(path) != text) write_file_atomically(path, text);
}

}  // namespace tensorfold::hub
