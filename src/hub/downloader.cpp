#include "hub/downloader.h"

#include <algorithm>
#include <map>
#include <thread>

#include "base/error.h"

namespace tensorfold::hub {
namespace {

constexpr auto kBusyPause = std::chrono::milliseconds(250);
constexpr auto kTick = std::chrono::milliseconds(100);

}  // namespace

Downloader::Downloader(const Client& client, const Cache& cache, const RepoId& repo, const std::string& commit,
                       Progress& progress, int connections, uint64_t piece_bytes)
    : user_cancel_(client.http().cancel),
      client_(client.with_cancel(&stop_)),
      cache_(cache),
      repo_(repo),
      commit_(commit),
      progress_(progress),
      connections_(std::clamp(connections, 1, 64)),
      piece_bytes_(piece_bytes) {}

uint64_t present_bytes(const Cache& cache, const RepoId& repo, const RemoteFile& file) {
  const std::filesystem::path blob = cache.blob_path(repo, file.etag);
  std::error_code error;
  if (std::filesystem::is_regular_file(blob, error) && std::filesystem::file_size(blob, error) == file.size)
    return file.size;
  return PartialFile::received_on_disk(blob, file.size);
}

void Downloader::run(const std::vector<PlannedFile>& files) {
  const DownloadContext context{client_, cache_, repo_, commit_, progress_, piece_bytes_};
  items_.clear();
  std::map<std::string, Item*> by_etag;
  uint64_t pieces = 0;
  for (const auto& [file, present] : files) {
    Item*& item = by_etag[file.etag];
    if (item == nullptr) {
      items_.push_back(std::make_unique<Item>());
      item = items_.back().get();
      item->blob = std::make_unique<BlobDownload>(context, file);
      item->counted = present;
      pieces += 1 + file.size / piece_bytes_;
    }
    item->files.push_back(file);
  }
  std::vector<std::thread> threads;
  working_ = std::min<uint64_t>(static_cast<uint64_t>(connections_), pieces);
  for (size_t i = working_; i > 0; --i) threads.emplace_back([this] { work(); });
  wait_for_workers();
  for (std::thread& thread : threads) thread.join();
  if (error_ != nullptr) std::rethrow_exception(error_);
  client_.throw_if_cancelled();
}

void Downloader::wait_for_workers() {
  std::unique_lock lock(mutex_);
  while (working_ > 0) {
    changed_.wait_for(lock, kTick);
    if (user_cancel_ != nullptr && user_cancel_->load() && !stop_.exchange(true)) changed_.notify_all();
    lock.unlock();
    progress_.tick();
    lock.lock();
  }
}

void Downloader::work() {
  try {
    HttpSession session(client_.http());
    std::unique_lock lock(mutex_);
    while (const auto job = next_job(lock)) {
      lock.unlock();
      if (job->piece)
        fetch(session, *job->item, *job->piece);
      else
        open_item(*job->item);
      lock.lock();
      changed_.notify_all();
    }
  } catch (...) {
    stop_with(std::current_exception());
  }
  const std::lock_guard lock(mutex_);
  --working_;
  changed_.notify_all();
}

/// The next thing to do, waiting for one; nothing when all is done or the run has stopped.
std::optional<Downloader::Job> Downloader::next_job(std::unique_lock<std::mutex>& lock) {
  while (!stop_.load()) {
    bool all_done = true;
    const auto now = std::chrono::steady_clock::now();
    for (const auto& item : items_) {
      if (item->state != State::done) all_done = false;
      if (item->state == State::waiting && now >= item->not_before) {
        item->state = State::opening;
        return Job{item.get(), std::nullopt};
      }
      if (item->state != State::active) continue;
      if (const auto piece = item->blob->take_piece()) return Job{item.get(), piece};
    }
    if (all_done) return std::nullopt;
    changed_.wait_for(lock, kTick);
  }
  return std::nullopt;
}

void Downloader::open_item(Item& item) {
  const BlobDownload::Opened opened = item.blob->open();
  if (opened != BlobDownload::Opened::busy) {
    // Another process may have brought some of it since the pull was planned.
    progress_.advance(static_cast<int64_t>(item.blob->received()) - static_cast<int64_t>(item.counted));
    if (opened == BlobDownload::Opened::present) return complete(item);
  } else if (!item.told_busy) {
    progress_.note(item.blob->file().name + " is being fetched by another process: waiting for it");
  }
  {
    const std::lock_guard lock(mutex_);
    item.told_busy |= opened == BlobDownload::Opened::busy;
    item.state = opened == BlobDownload::Opened::busy ? State::waiting : State::active;
    item.not_before = std::chrono::steady_clock::now() + kBusyPause;
  }
  if (opened == BlobDownload::Opened::ready) finish_if_received(item);  // empty, or all had arrived before
}

void Downloader::fetch(HttpSession& session, Item& item, size_t piece) {
  item.blob->fetch_piece(session, piece, [this] { changed_.notify_all(); });
  finish_if_received(item);
}

void Downloader::finish_if_received(Item& item) {
  {
    const std::lock_guard lock(mutex_);
    if (item.state != State::active || !item.blob->is_received()) return;
    item.state = State::finishing;
  }
  if (item.blob->finish()) return complete(item);
  const std::lock_guard lock(mutex_);
  item.state = State::active;
}

void Downloader::complete(Item& item) {
  for (const RemoteFile& file : item.files) {
    cache_.link_file(repo_, commit_, file.name, file.etag);
    progress_.file_done(file.name, file.size);
  }
  const std::lock_guard lock(mutex_);
  item.state = State::done;
}

void Downloader::stop_with(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (error_ == nullptr && !stop_.load()) error_ = error;
  stop_ = true;
}

}  // namespace tensorfold::hub
