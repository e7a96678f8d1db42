// Many blobs at once: connections that take pieces of files in order, across what other processes are fetching.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hub/blob_download.h"

namespace tensorfold::hub {

/// A file to fetch and how much of it is on disk as its pull begins.
struct PlannedFile {
  RemoteFile file;
  uint64_t present = 0;
};

/// The bytes of `file` that need not be fetched: all of a blob, or what an earlier run received of it.
uint64_t present_bytes(const Cache& cache, const RepoId& repo, const RemoteFile& file);

/// Fetches files of one commit with several connections and links them into the snapshot.
class Downloader {
 public:
  /// `connections` threads, each with one connection; files larger than `piece_bytes` are cut into pieces.
  Downloader(const Client& client, const Cache& cache, const RepoId& repo, const std::string& commit,
             Progress& progress, int connections, uint64_t piece_bytes);

  /// Fetches what is missing of `files`, in order; files with one etag are fetched once. Throws the first Error after
  /// all connections have stopped; what has arrived stays for the next run.
  void run(const std::vector<PlannedFile>& files);

 private:
  enum class State { waiting, opening, active, finishing, done };
  struct Item {
    std::unique_ptr<BlobDownload> blob;
    std::vector<RemoteFile> files;
    uint64_t counted = 0;  ///< bytes the progress knows of
    State state = State::waiting;
    std::chrono::steady_clock::time_point not_before{};
    bool told_busy = false;
  };
  struct Job {
    Item* item;
    std::optional<size_t> piece;  ///< nothing: open the blob
  };

  void work();
  std::optional<Job> next_job(std::unique_lock<std::mutex>& lock);
  void open_item(Item& item);
  void fetch(HttpSession& session, Item& item, size_t piece);
  void finish_if_received(Item& item);
  void complete(Item& item);
  void stop_with(std::exception_ptr error);
  void wait_for_workers();

  std::atomic<bool> stop_{false};
  const std::atomic<bool>* user_cancel_;
  Client client_;
  const Cache& cache_;
  RepoId repo_;
  std::string commit_;
  Progress& progress_;
  int connections_;
  uint64_t piece_bytes_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Item>> items_;
  size_t working_ = 0;
  std::exception_ptr error_;
};

}  // namespace tensorfold::hub
