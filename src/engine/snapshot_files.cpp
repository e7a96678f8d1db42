#include "engine/snapshot_files.h"

#include <algorithm>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/error.h"
#include "engine/snapshot_format.h"

namespace tensorfold::engine {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t most_queued_bytes = 4ULL << 30;
constexpr uint64_t most_warm_bytes = 4ULL << 30;
// What was read and never taken: a client left meanwhile.
constexpr size_t most_fetched = 4;
constexpr const char* extension = ".prefix";

uint64_t image_bytes(const SnapshotImage& image) {
  uint64_t bytes = image.state ? image.state->size() : 0;
  for (const auto& page : image.pages) bytes += page->size();
  return bytes;
}

std::vector<fs::directory_entry> files_in(const fs::path& folder) {
  std::vector<fs::directory_entry> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    if (it->is_regular_file(error)) files.push_back(*it);
  }
  return files;
}

}  // namespace

SnapshotFiles::SnapshotFiles(SnapshotFilesOptions options) : options_(std::move(options)) {
  folder_ = options_.directory / fmt::format("{:016x}", digest_of(options_.identity));
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail(ErrorKind::io, "cannot make the folder {}: {}", folder_.string(), error.message());
  fs::permissions(folder_, fs::perms::owner_all, error);
  thread_ = std::thread([this] { run(); });
  reader_ = std::thread([this] { read_fetches(); });
}

SnapshotFiles::~SnapshotFiles() {
  stop_fetching();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void SnapshotFiles::say(const std::string& line) const {
  if (options_.log) options_.log(line);
}

fs::path SnapshotFiles::path_of(PrefixName name, int32_t length) const {
  return folder_ / fmt::format("{:016x}-{}{}", name, length, extension);
}

void SnapshotFiles::run() {
  scan();
  prune_foreign();
  {
    const std::lock_guard lock(mutex_);
    prune();
  }
  warm();
  while (true) {
    SnapshotImage image;
    {
      std::unique_lock lock(mutex_);
      busy_ = false;
      idle_.notify_all();
      wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      image = std::move(queue_.front());
      queue_.pop_front();
      queued_bytes_ -= image_bytes(image);
      busy_ = true;
    }
    write_file(image);
  }
}

void SnapshotFiles::read_fetches() {
  while (true) {
    PrefixName name = 0;
    {
      std::unique_lock lock(mutex_);
      fetch_wake_.wait(lock, [&] { return reading_stopped_ || !fetches_.empty(); });
      if (reading_stopped_) return;
      name = fetches_.front();
    }
    std::optional<SnapshotImage> image = read(name);
    {
      const std::lock_guard lock(mutex_);
      fetches_.pop_front();
      if (image) fetched_.push_back(std::move(*image));
      if (fetched_.size() > most_fetched) fetched_.pop_front();
      if (reading_stopped_) return;
    }
    if (options_.on_fetched) options_.on_fetched();
  }
}

SnapshotFiles::Fetch SnapshotFiles::fetch(PrefixName name) {
  {
    const std::lock_guard lock(mutex_);
    if (std::any_of(fetched_.begin(), fetched_.end(), [&](const auto& image) { return image.name == name; })) {
      return Fetch::ready;
    }
    if (std::find(fetches_.begin(), fetches_.end(), name) != fetches_.end()) return Fetch::reading;
    const auto entry = entries_.find(name);
    if (reading_stopped_ || entry == entries_.end() || !entry->second.written) return Fetch::none;
    fetches_.push_back(name);
  }
  fetch_wake_.notify_all();
  return Fetch::reading;
}

std::optional<SnapshotImage> SnapshotFiles::take(PrefixName name) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(fetched_.begin(), fetched_.end(), [&](const auto& image) { return image.name == name; });
  if (found == fetched_.end()) return std::nullopt;
  std::optional<SnapshotImage> image = std::move(*found);
  fetched_.erase(found);
  return image;
}

void SnapshotFiles::stop_fetching() {
  {
    const std::lock_guard lock(mutex_);
    reading_stopped_ = true;
  }
  fetch_wake_.notify_all();
  if (reader_.joinable()) reader_.join();
}

void SnapshotFiles::scan() {
  for (const fs::directory_entry& file : files_in(folder_)) {
    if (file.path().extension() == ".partial") {
      std::error_code error;
      fs::remove(file.path(), error);
      continue;
    }
    if (file.path().extension() != extension) continue;
    try {
      auto [name, entry] = read_entry(file.path());
      const std::lock_guard lock(mutex_);
      add(name, std::move(entry));
    } catch (const Error& problem) {
      say(fmt::format("skipped: {}", problem.what()));
    }
  }
  // Files whose base is missing can never be used.
  const std::lock_guard lock(mutex_);
  std::vector<PrefixName> orphans;
  do {
    orphans.clear();
    for (const auto& [name, entry] : entries_) {
      if (entry.first_page > 0 && !entries_.contains(entry.parent)) orphans.push_back(name);
    }
    for (const PrefixName name : orphans) forget(name, true);
  } while (!orphans.empty());
  for (const auto& [name, entry] : entries_) {
    if (entry.first_page > 0) ++entries_[entry.parent].children;
  }
}

std::pair<PrefixName, SnapshotFiles::Entry> SnapshotFiles::read_entry(const fs::path& path) const {
  const File file(path);
  const SnapshotHeader header = read_header(file);
  if (header.identity != options_.identity || header.page_tokens != options_.page_tokens ||
      header.page_bytes != options_.page_bytes || header.state_bytes != options_.state_bytes) {
    fail(ErrorKind::corrupt_file, "kept prefix {} belongs to another model or build", path.string());
  }
  std::error_code error;
  const auto modified = fs::last_write_time(path, error).time_since_epoch().count();
  return {header.name, Entry{.path = path,
                             .length = header.length,
                             .parent = header.parent,
                             .first_page = header.first_page,
                             .bytes = file.size(),
                             .used = static_cast<uint64_t>(std::max<decltype(modified)>(modified, 0)),
                             .children = 0,
                             .written = true,
                             .pinned = header.pinned,
                             .superseded = false}};
}

void SnapshotFiles::add(PrefixName name, Entry entry) {
  clock_ = std::max(clock_, entry.used);
  total_bytes_ += entry.bytes;
  lengths_.insert(entry.length);
  entries_.insert_or_assign(name, std::move(entry));
}

void SnapshotFiles::forget(PrefixName name, bool delete_file) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return;
  const Entry entry = found->second;
  entries_.erase(found);
  lengths_.erase(lengths_.find(entry.length));
  total_bytes_ -= entry.bytes;
  if (delete_file && entry.written) {
    std::error_code error;
    fs::remove(entry.path, error);
  }
  const auto parent = entries_.find(entry.parent);
  if (entry.first_page == 0 || parent == entries_.end()) return;
  parent->second.children -= 1;
  if (parent->second.superseded && parent->second.children == 0) forget(entry.parent, true);
}

void SnapshotFiles::write(SnapshotImage image) {
  std::unique_lock lock(mutex_);
  if (entries_.contains(image.name)) return;
  const uint64_t bytes = image_bytes(image);
  if (queued_bytes_ + bytes > most_queued_bytes) {
    lock.unlock();
    say("the disk is slower than prefixes are kept: one was not written");
    return;
  }
  add(image.name, Entry{.path = path_of(image.name, image.length),
                        .length = image.length,
                        .parent = image.parent,
                        .first_page = image.first_page,
                        .bytes = bytes,
                        .used = ++clock_,
                        .children = 0,
                        .written = false,
                        .pinned = image.pinned,
                        .superseded = false});
  if (const auto parent = entries_.find(image.parent); image.first_page > 0 && parent != entries_.end()) {
    ++parent->second.children;
  }
  queued_bytes_ += bytes;
  queue_.push_back(std::move(image));
  lock.unlock();
  wake_.notify_all();
}

void SnapshotFiles::write_file(const SnapshotImage& image) {
  fs::path path;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = entries_.find(image.name);
    if (entry == entries_.end()) return;
    path = entry->second.path;
    const auto parent = entries_.find(image.parent);
    if (image.first_page > 0 && (parent == entries_.end() || !parent->second.written)) {
      forget(image.name, false);
      return;
    }
  }
  SnapshotHeader header{.identity = options_.identity,
                        .name = image.name,
                        .parent = image.parent,
                        .length = image.length,
                        .first_page = image.first_page,
                        .page_tokens = options_.page_tokens,
                        .page_bytes = options_.page_bytes,
                        .state_bytes = options_.state_bytes,
                        .pinned = image.pinned,
                        .tokens = image.tokens,
                        .digests = {},
                        .data_offset = 0};
  std::vector<std::span<const std::byte>> parts(1);
  parts.emplace_back(*image.state);
  for (const auto& page : image.pages) parts.emplace_back(*page);
  for (size_t i = 1; i < parts.size(); ++i) header.digests.push_back(digest_of(parts[i]));
  const std::string encoded = encode_header(header);
  parts[0] = std::as_bytes(std::span(encoded));
  bool written = true;
  try {
    write_atomically(path, parts);
  } catch (const Error& problem) {
    say(fmt::format("a kept prefix was not written: {}", problem.what()));
    written = false;
  }
  const std::lock_guard lock(mutex_);
  if (!written) {
    forget(image.name, false);
    return;
  }
  const auto entry = entries_.find(image.name);
  if (entry == entries_.end()) {
    std::error_code error;
    fs::remove(path, error);
    return;
  }
  entry->second.written = true;
  entry->second.bytes += encoded.size();
  total_bytes_ += encoded.size();
  sweep_superseded();
  prune();
}

void SnapshotFiles::sweep_superseded() {
  // Only when nothing waits to be written: what takes their place must be on disk first.
  if (!queue_.empty()) return;
  std::vector<PrefixName> names;
  for (const auto& [name, entry] : entries_) {
    if (entry.superseded && entry.children == 0 && entry.written) names.push_back(name);
  }
  for (const PrefixName name : names) forget(name, true);
}

void SnapshotFiles::prune() {
  while (total_bytes_ > options_.most_bytes) {
    // Only what nothing builds on; system blocks last.
    const std::pair<const PrefixName, Entry>* victim = nullptr;
    for (const auto& candidate : entries_) {
      const Entry& entry = candidate.second;
      if (entry.children > 0 || !entry.written) continue;
      const auto rank = [](const Entry& e) { return std::pair(e.pinned, e.used); };
      if (victim == nullptr || rank(entry) < rank(victim->second)) victim = &candidate;
    }
    if (victim == nullptr) return;
    forget(victim->first, true);
  }
}

void SnapshotFiles::prune_foreign() {
  // Files of other weights or builds are useful only while there is room.
  std::vector<std::pair<fs::file_time_type, fs::directory_entry>> foreign;
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(options_.directory, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    if (!it->is_directory(error) || it->path() == folder_) continue;
    for (const fs::directory_entry& file : files_in(it->path())) {
      if (file.path().extension() != extension) continue;
      bytes += file.file_size(error);
      foreign.emplace_back(file.last_write_time(error), file);
    }
  }
  std::sort(foreign.begin(), foreign.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  uint64_t own = 0;
  {
    const std::lock_guard lock(mutex_);
    own = total_bytes_;
  }
  for (const auto& [time, file] : foreign) {
    if (own + bytes <= options_.most_bytes) return;
    bytes -= std::min<uint64_t>(bytes, file.file_size(error));
    fs::remove(file.path(), error);
  }
}

void SnapshotFiles::warm() const {
  // System blocks, then the newest.
  std::vector<std::pair<std::pair<bool, uint64_t>, std::pair<fs::path, uint64_t>>> wanted;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, entry] : entries_) {
      wanted.push_back({{entry.pinned, entry.used}, {entry.path, entry.bytes}});
    }
  }
  std::sort(wanted.rbegin(), wanted.rend());
  uint64_t bytes = 0;
  for (const auto& [rank, file] : wanted) {
    bytes += file.second;
    if (bytes > most_warm_bytes) return;
    const int descriptor = ::open(file.first.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) continue;
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_WILLNEED);
    ::close(descriptor);
  }
}

bool SnapshotFiles::holds(PrefixName name) const {
  const std::lock_guard lock(mutex_);
  return entries_.contains(name);
}

std::vector<int32_t> SnapshotFiles::lengths_above(int32_t than) const {
  const std::lock_guard lock(mutex_);
  std::vector<int32_t> lengths(lengths_.upper_bound(than), lengths_.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  std::reverse(lengths.begin(), lengths.end());
  return lengths;
}

SnapshotImage SnapshotFiles::read_file(const fs::path& path, int32_t pages_end, bool with_state) const {
  const File file(path);
  const SnapshotHeader header = read_header(file);
  if (header.identity != options_.identity || header.page_bytes != options_.page_bytes ||
      header.state_bytes != options_.state_bytes || header.page_tokens != options_.page_tokens) {
    fail(ErrorKind::corrupt_file, "kept prefix {} belongs to another model or build", path.string());
  }
  SnapshotImage image{.name = header.name,
                      .length = header.length,
                      .parent = header.parent,
                      .first_page = header.first_page,
                      .pinned = header.pinned,
                      .tokens = header.tokens,
                      .state = nullptr,
                      .pages = {}};
  const auto read_part = [&](uint64_t offset, uint64_t bytes, uint64_t digest) {
    auto part = std::make_shared<std::vector<std::byte>>(bytes);
    file.read(offset, *part);
    if (digest_of(*part) != digest) fail(ErrorKind::corrupt_file, "kept prefix {} is damaged", path.string());
    return part;
  };
  if (with_state) image.state = read_part(header.data_offset, header.state_bytes, header.digests[0]);
  const size_t count = pages_end < 0 ? header.pages() : static_cast<size_t>(std::max(0, pages_end - header.first_page));
  if (count > header.pages()) fail(ErrorKind::corrupt_file, "kept prefix {} lacks pages", path.string());
  for (size_t j = 0; j < count; ++j) {
    const uint64_t offset = header.data_offset + header.state_bytes + j * header.page_bytes;
    image.pages.push_back(read_part(offset, header.page_bytes, header.digests[j + 1]));
  }
  return image;
}

std::optional<SnapshotImage> SnapshotFiles::read(PrefixName name) {
  SnapshotImage whole;
  PrefixName at = name;
  int32_t pages_end = -1;
  while (true) {
    fs::path path;
    {
      const std::lock_guard lock(mutex_);
      const auto entry = entries_.find(at);
      // What is still in the queue is in memory anyway.
      if (entry == entries_.end() || !entry->second.written) return std::nullopt;
      entry->second.used = ++clock_;
      path = entry->second.path;
    }
    try {
      SnapshotImage image = read_file(path, pages_end, pages_end < 0);
      if (image.name != at) fail(ErrorKind::corrupt_file, "kept prefix {} has another name inside", path.string());
      std::error_code error;
      fs::last_write_time(path, fs::file_time_type::clock::now(), error);
      const auto kept_tokens =
          pages_end < 0 ? image.tokens.size()
                        : std::min(image.tokens.size(), image.pages.size() * static_cast<size_t>(options_.page_tokens));
      image.tokens.resize(kept_tokens);
      if (pages_end < 0) {
        whole = image;
      } else {
        whole.tokens.insert(whole.tokens.begin(), image.tokens.begin(), image.tokens.end());
        whole.pages.insert(whole.pages.begin(), image.pages.begin(), image.pages.end());
        whole.first_page = image.first_page;
      }
      if (image.first_page == 0) break;
      at = image.parent;
      pages_end = image.first_page;
    } catch (const Error& problem) {
      say(fmt::format("skipped: {}", problem.what()));
      const std::lock_guard lock(mutex_);
      forget(at, true);
      forget(name, true);
      return std::nullopt;
    }
  }
  if (whole.tokens.size() != static_cast<size_t>(whole.length) || prefix_names(whole.tokens).back() != name) {
    say("skipped: a kept prefix whose parts do not fit together");
    const std::lock_guard lock(mutex_);
    forget(name, true);
    return std::nullopt;
  }
  whole.parent = 0;
  return whole;
}

void SnapshotFiles::supersede(PrefixName name) {
  const std::lock_guard lock(mutex_);
  if (const auto entry = entries_.find(name); entry != entries_.end()) entry->second.superseded = true;
}

bool SnapshotFiles::reclaim(PrefixName name) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) return false;
  entry->second.superseded = false;
  return true;
}

void SnapshotFiles::flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return !busy_ && queue_.empty(); });
}

}  // namespace tensorfold::engine
