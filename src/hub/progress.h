// What a pull tells its user: a bar in a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace tensorfold::hub {

/// Receives a pull's progress. Calls may come from several threads; implementations lock.
class Progress {
 public:
  virtual ~Progress() = default;
  /// A download begins: `present` of `total` bytes are on disk already.
  virtual void begin(const std::string& repo, size_t files, uint64_t total, uint64_t present) = 0;
  /// Bytes arrived; negative when some have to be fetched again.
  virtual void advance(int64_t bytes) = 0;
  virtual void file_done(const std::string& name, uint64_t size) = 0;
  /// One line for the user.
  virtual void note(const std::string& line) = 0;
  /// Called several times a second: draws what changed.
  virtual void tick() {}
  virtual void end() {}
};

/// Says nothing.
class SilentProgress : public Progress {
 public:
  void begin(const std::string&, size_t, uint64_t, uint64_t) override {}
  void advance(int64_t) override {}
  void file_done(const std::string&, uint64_t) override {}
  void note(const std::string&) override {}
};

/// Bytes so far and the rate of the last seconds. Not thread-safe by itself.
class RateMeter {
 public:
  using Clock = std::chrono::steady_clock;
  void begin(uint64_t total, uint64_t present, Clock::time_point now);
  void advance(int64_t bytes) { done_ += bytes; }
  /// Takes a sample for the rate.
  void sample(Clock::time_point now);
  [[nodiscard]] uint64_t total() const { return total_; }
  [[nodiscard]] uint64_t done() const { return done_ < 0 ? 0 : static_cast<uint64_t>(done_); }
  /// Bytes a second over the last ten seconds.
  [[nodiscard]] double rate() const;
  /// `7.9 of 18.6 GB (42 %), 245 MB/s, 0:43 left`.
  [[nodiscard]] std::string summary() const;

 private:
  uint64_t total_ = 0;
  int64_t done_ = 0;
  std::deque<std::pair<Clock::time_point, int64_t>> samples_;
};

/// A line every ten seconds and one for each large file, through `print`.
class LineProgress : public Progress {
 public:
  explicit LineProgress(std::function<void(const std::string&)> print,
                        std::chrono::milliseconds interval = std::chrono::seconds(10));
  void begin(const std::string& repo, size_t files, uint64_t total, uint64_t present) override;
  void advance(int64_t bytes) override;
  void file_done(const std::string& name, uint64_t size) override;
  void note(const std::string& line) override;
  void tick() override;
  void end() override;

 private:
  std::mutex mutex_;
  std::function<void(const std::string&)> print_;
  std::chrono::milliseconds interval_;
  RateMeter::Clock::time_point last_;
  RateMeter meter_;
};

/// One line that is drawn over: a bar, the total, the rate and the time left. Notes go above it.
class TerminalProgress : public Progress {
 public:
  TerminalProgress(std::FILE* terminal, int columns);
  void begin(const std::string& repo, size_t files, uint64_t total, uint64_t present) override;
  void advance(int64_t bytes) override;
  void file_done(const std::string& name, uint64_t size) override;
  void note(const std::string& line) override;
  void tick() override;
  void end() override;

 private:
  void draw();
  std::mutex mutex_;
  std::FILE* terminal_;
  int columns_;
  RateMeter meter_;
};

/// The bar `[#####.....]` of `width` columns in all.
std::string bar(double fraction, int width);

/// TerminalProgress when `stream` is a terminal, else LineProgress with `prefix` before each line.
std::unique_ptr<Progress> progress_for(std::FILE* stream, const std::string& prefix);

/// `18.6 GB`: decimal units, three digits at most before the unit changes.
std::string human_bytes(uint64_t bytes);

/// `0:43`, `12:05`, `3:20:00`.
std::string human_time(double seconds);

}  // namespace tensorfold::hub
