#include "hub/pull.h"

#include <algorithm>
#include <set>
#include <system_error>

#include "base/error.h"
#include "hub/downloader.h"

namespace tensorfold::hub {
namespace {

namespace fs = std::filesystem;

uint64_t bytes_of(const std::vector<RemoteFile>& files) {
  std::set<std::string_view> etags;
  uint64_t sum = 0;
  for (const RemoteFile& file : files)
    if (etags.insert(file.etag).second) sum += file.size;
  return sum;
}

uint64_t system_free_space(const fs::path& folder) {
  std::error_code error;
  const auto space = fs::space(folder, error);
  return error ? UINT64_MAX : space.available;
}

std::vector<PlannedFile> planned(const Cache& cache, const RepoId& repo, const std::string& commit,
                                 const std::vector<RemoteFile>& files) {
  std::vector<PlannedFile> plan;
  for (const RemoteFile& file : files) {
    // A cache without links holds the content in the snapshot itself.
    const bool in_snapshot = cache.file_size(repo, commit, file.name) == file.size;
    plan.push_back({file, in_snapshot ? file.size : present_bytes(cache, repo, file)});
  }
  return plan;
}

/// Bytes of the plan that are here, each etag once.
uint64_t present_of(const std::vector<PlannedFile>& plan) {
  std::set<std::string_view> etags;
  uint64_t sum = 0;
  for (const auto& [file, present] : plan)
    if (etags.insert(file.etag).second) sum += present;
  return sum;
}

/// Throws unless the disk has room for what is missing.
void check_disk(const Cache& cache, const RepoId& repo, const PullOptions& options, uint64_t needed) {
  constexpr uint64_t kReserve = 64u << 20;
  const uint64_t free = (options.free_space ? options.free_space : system_free_space)(cache.repo_directory(repo));
  if (needed == 0 || (free >= kReserve && needed <= free - kReserve)) return;
  fail(ErrorKind::capacity,
       "{} needs {} more on the disk of {}, which has {} free: free some, or point HF_HOME elsewhere", repo.id(),
       human_bytes(needed), cache.root().string(), human_bytes(free));
}

void check_selection(const RepoId& repo, const ModelInfo& info, const Selection& selection) {
  const auto has_config = [](const RemoteFile& file) { return file.name == "config.json"; };
  if (std::none_of(selection.descriptions.begin(), selection.descriptions.end(), has_config))
    fail(ErrorKind::unsupported, "{} has no config.json: it is not a model we can read{}", repo.id(),
         std::any_of(info.files.begin(), info.files.end(),
                     [](const RemoteFile& file) { return file.name.ends_with(".gguf"); })
             ? " (GGUF files are not read)"
             : "");
}

void check_weights(const RepoId& repo, const Selection& selection) {
  const auto is_weights = [](const RemoteFile& file) { return file.name.ends_with(".safetensors"); };
  if (std::none_of(selection.weights.begin(), selection.weights.end(), is_weights))
    fail(ErrorKind::unsupported, "{} has no *.safetensors files: there are no weights we can read", repo.id());
}

void link_present_files(const Cache& cache, const RepoId& repo, const std::string& commit,
                        const std::vector<PlannedFile>& plan) {
  for (const auto& [file, present] : plan)
    if (present == file.size && cache.file_size(repo, commit, file.name) != file.size &&
        fs::exists(cache.blob_path(repo, file.etag)))
      cache.link_file(repo, commit, file.name, file.etag);
}

/// Fetches the files that the snapshot lacks. The progress counts `files` with what of them is here.
void fetch(const Client& client, const Cache& cache, const RepoId& repo, const std::string& commit,
           const PullOptions& options, Progress& progress, const std::vector<PlannedFile>& plan) {
  link_present_files(cache, repo, commit, plan);
  std::vector<PlannedFile> missing;
  for (const PlannedFile& planned_file : plan)
    if (cache.file_size(repo, commit, planned_file.file.name) != planned_file.file.size)
      missing.push_back(planned_file);
  if (missing.empty()) return;
  Downloader(client, cache, repo, commit, progress, options.connections, options.piece_bytes).run(missing);
}

void describe(const Client& client, const Cache& cache, const RepoId& repo, const ModelInfo& info,
              const PullOptions& options, const Selection& selection) {
  SilentProgress silent;
  fetch(client, cache, repo, info.commit, options, silent, planned(cache, repo, info.commit, selection.descriptions));
}

std::vector<ExpectedFile> expected_files(const Selection& selection) {
  std::vector<ExpectedFile> files;
  for (const auto* part : {&selection.descriptions, &selection.weights})
    for (const RemoteFile& file : *part) files.push_back({file.name, file.size});
  return files;
}

/// Ends a progress that has begun, whatever happens.
class ProgressScope {
 public:
  ProgressScope(Progress& progress, const std::string& repo, size_t files, uint64_t total, uint64_t present)
      : progress_(progress) {
    progress_.begin(repo, files, total, present);
  }
  ~ProgressScope() { progress_.end(); }
  ProgressScope(const ProgressScope&) = delete;
  ProgressScope& operator=(const ProgressScope&) = delete;

 private:
  Progress& progress_;
};

/// Whether the weights are all here: then their revision is completed, though the hub may have another by now.
bool only_descriptions(const std::vector<std::string>& missing) {
  return std::none_of(missing.begin(), missing.end(), [](const std::string& name) {
    return name == "config.json" || name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
  });
}

std::string missing_text(const std::vector<std::string>& missing) {
  std::string text = missing.front();
  if (missing.size() > 1) text += fmt::format(" and {} more", missing.size() - 1);
  return text;
}

}  // namespace

PullResult pull(const Client& silent_client, const Cache& cache, const RepoId& repo, const PullOptions& options,
                Progress& progress, const ConfigCheck& config_check) {
  const Client client = silent_client.with_notes([&progress](const std::string& line) { progress.note(line); });
  HttpSession session(client.http());
  const ModelInfo info = client.model_info(session, repo);
  Selection selection = select_files(info.files, options.all);
  check_selection(repo, info, selection);
  const uint64_t descriptions_before = present_of(planned(cache, repo, info.commit, selection.descriptions));
  describe(client, cache, repo, info, options, selection);
  add_indexed_weights(selection, info.files, cache.snapshot_path(repo, info.commit));
  check_weights(repo, selection);

  PullResult result{cache.snapshot_path(repo, info.commit), info.commit, info.license, 0, 0};
  if (config_check) config_check({repo, result.directory, info.license, bytes_of(selection.weights)});
  const std::vector<PlannedFile> plan = planned(cache, repo, info.commit, selection.weights);
  const uint64_t weight_bytes = bytes_of(selection.weights);
  const uint64_t present = present_of(plan);
  check_disk(cache, repo, options, weight_bytes - std::min(weight_bytes, present));

  cache.write_expected(repo, info.commit, expected_files(selection));
  if (present < weight_bytes) {
    const ProgressScope scope(progress, repo.id(), plan.size(), weight_bytes, present);
    fetch(client, cache, repo, info.commit, options, progress, plan);
  } else {
    fetch(client, cache, repo, info.commit, options, progress, plan);
  }
  cache.write_ref(repo, info.commit);
  const uint64_t description_bytes = bytes_of(selection.descriptions);
  result.bytes = description_bytes + weight_bytes;
  result.fetched_bytes = result.bytes - descriptions_before - present;
  return result;
}

std::optional<fs::path> add_side_files(const Client& client, const Cache& cache, const RepoId& repo,
                                       const Snapshot& snapshot, const PullOptions& options, Progress& progress) {
  HttpSession session(client.http());
  const ModelInfo info = client.model_info(session, repo);
  bool any_new = false;
  for (const RemoteFile& file : select_files(info.files, false).weights) {
    const bool here = cache.file_size(repo, snapshot.commit, file.name) == file.size &&
                      (info.commit == snapshot.commit || present_bytes(cache, repo, file) == file.size);
    if (here) continue;
    std::error_code error;
    if (fs::exists(snapshot.directory / file.name, error)) return std::nullopt;  // other content: another revision
    if (indexed_weights(snapshot.directory).contains(file.name)) return std::nullopt;
    any_new = true;
  }
  if (!any_new) return std::nullopt;
  return pull(client, cache, repo, options, progress, {}).directory;
}

fs::path fetch_config(const Client& client, const Cache& cache, const RepoId& repo, Progress& progress) {
  std::error_code error;
  const auto cached = cache.locate(repo);
  if (cached && fs::is_regular_file(cached->directory / "config.json", error)) return cached->directory;
  if (client.settings().offline)
    fail(ErrorKind::not_found, "HF_HUB_OFFLINE is set and {} is not in the cache {}", repo.id(), cache.root().string());
  HttpSession session(client.http());
  const ModelInfo info = client.model_info(session, repo);
  const Selection selection = select_files(info.files, false);
  check_selection(repo, info, selection);
  progress.note("reading the configuration of " + repo.id());
  describe(client, cache, repo, info, PullOptions{}, selection);
  return cache.snapshot_path(repo, info.commit);
}

fs::path resolve_model(const Client& client, const Cache& cache, const std::string& argument,
                       const PullOptions& options, Progress& progress, const ConfigCheck& config_check) {
  std::error_code error;
  if (fs::is_directory(argument, error)) return argument;
  const auto repo = fs::exists(argument, error) ? std::nullopt : parse_repo(argument);
  if (!repo)
    fail(ErrorKind::invalid_request,
         "'{}' is neither a folder nor a repository's name (owner/name or owner/name@revision)", printable(argument));
  const auto snapshot = cache.locate(*repo);
  const auto missing = snapshot ? Cache::missing_files(*snapshot) : std::vector<std::string>{"everything"};
  if (missing.empty()) {
    if (!snapshot->from_ref)
      progress.note(
          fmt::format("the cache has no ref for {}: using its newest snapshot, {}", repo->id(), snapshot->commit));
    return snapshot->directory;
  }
  if (client.settings().offline)
    fail(ErrorKind::not_found,
         "HF_HUB_OFFLINE is set and the cache {} lacks {} of {}: with a network, `tensorfold pull {}` fetches it",
         cache.root().string(), missing_text(missing), repo->id(), repo->id());
  if (!snapshot || !only_descriptions(missing) || !is_commit_hash(snapshot->commit))
    return pull(client, cache, *repo, options, progress, config_check).directory;
  progress.note(fmt::format("the cache lacks {} of {}: fetching it", missing_text(missing), repo->id()));
  return pull(client, cache, {repo->owner, repo->name, snapshot->commit}, options, progress, config_check).directory;
}

}  // namespace tensorfold::hub
