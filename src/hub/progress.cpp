#include "hub/progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/console.h"

namespace tensorfold::hub {
namespace {

/// A terminal that went away must not fail the download.
template <typename... Args>
void write(std::FILE* terminal, fmt::format_string<Args...> format, Args&&... args) {
  std::fputs(fmt::format(format, std::forward<Args>(args)...).c_str(), terminal);
}

}  // namespace

std::string human_bytes(uint64_t bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  // 999.95 would print as 1000.0.
  while (value >= 999.95 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string human_time(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(std::clamp(seconds, 0.0, 1e9)));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string bar(double fraction, int width) {
  const int inner = std::max(1, width - 2);
  const int filled = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * inner);
  return fmt::format("[{:#<{}}{:.<{}}]", "", filled, "", inner - filled);
}

void RateMeter::begin(uint64_t total, uint64_t present, Clock::time_point now) {
  total_ = total;
  done_ = static_cast<int64_t>(present);
  samples_ = {{now, done_}};
}

void RateMeter::sample(Clock::time_point now) {
  if (!samples_.empty() && now - samples_.back().first < std::chrono::milliseconds(100)) return;
  samples_.emplace_back(now, done_);
  while (samples_.size() > 2 && now - samples_.front().first > std::chrono::seconds(10)) samples_.pop_front();
}

double RateMeter::rate() const {
  if (samples_.size() < 2) return 0;
  const double seconds = std::chrono::duration<double>(samples_.back().first - samples_.front().first).count();
  return std::max(0.0, static_cast<double>(samples_.back().second - samples_.front().second) / seconds);
}

std::string RateMeter::summary() const {
  const double percent = total_ == 0 ? 100 : 100.0 * static_cast<double>(done()) / static_cast<double>(total_);
  std::string text = fmt::format("{} of {} ({:.0f} %)", human_bytes(done()), human_bytes(total_), std::floor(percent));
  if (rate() < 1) return text;
  const double left = static_cast<double>(total_ - std::min(total_, done()));
  return text + fmt::format(", {}/s, {} left", human_bytes(static_cast<uint64_t>(rate())), human_time(left / rate()));
}

LineProgress::LineProgress(std::function<void(const std::string&)> print, std::chrono::milliseconds interval)
    : print_(std::move(print)), interval_(interval) {}

void LineProgress::begin(const std::string& repo, size_t files, uint64_t total, uint64_t present) {
  const std::lock_guard lock(mutex_);
  last_ = RateMeter::Clock::now();
  meter_.begin(total, present, last_);
  print_(fmt::format("{}: {} files, {}{}", repo, files, human_bytes(total),
                     present > 0 ? fmt::format(", {} of it already here", human_bytes(present)) : ""));
}

void LineProgress::advance(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  meter_.advance(bytes);
}

void LineProgress::file_done(const std::string& name, uint64_t size) {
  constexpr uint64_t kLarge = 100'000'000;
  if (size < kLarge) return;
  const std::lock_guard lock(mutex_);
  print_(fmt::format("{} is here ({})", name, human_bytes(size)));
}

void LineProgress::note(const std::string& line) {
  const std::lock_guard lock(mutex_);
  print_(line);
}

void LineProgress::tick() {
  const std::lock_guard lock(mutex_);
  const auto now = RateMeter::Clock::now();
  meter_.sample(now);
  if (now - last_ < interval_) return;
  last_ = now;
  print_(meter_.summary());
}

void LineProgress::end() { tick(); }

TerminalProgress::TerminalProgress(std::FILE* terminal, int columns) : terminal_(terminal), columns_(columns) {}

void TerminalProgress::begin(const std::string& repo, size_t files, uint64_t total, uint64_t present) {
  const std::lock_guard lock(mutex_);
  meter_.begin(total, present, RateMeter::Clock::now());
  write(terminal_, "\r\x1b[K{}: {} files, {}\n", repo, files, human_bytes(total));
  draw();
}

void TerminalProgress::advance(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  meter_.advance(bytes);
}

void TerminalProgress::file_done(const std::string&, uint64_t) {}

void TerminalProgress::note(const std::string& line) {
  const std::lock_guard lock(mutex_);
  write(terminal_, "\r\x1b[K{}\n", line);
  draw();
}

void TerminalProgress::tick() {
  const std::lock_guard lock(mutex_);
  meter_.sample(RateMeter::Clock::now());
  draw();
}

void TerminalProgress::end() {
  const std::lock_guard lock(mutex_);
  draw();
  write(terminal_, "\n");
  std::fflush(terminal_);
}

void TerminalProgress::draw() {
  if (meter_.total() == 0) return;
  std::string line = meter_.summary();
  const int room = columns_ - static_cast<int>(line.size()) - 2;
  if (room >= 8) {
    const double fraction = static_cast<double>(meter_.done()) / static_cast<double>(meter_.total());
    line = bar(fraction, std::min(room, 30)) + " " + line;
  }
  write(terminal_, "\r{}\x1b[K", line.substr(0, static_cast<size_t>(std::max(1, columns_ - 1))));
  std::fflush(terminal_);
}

std::unique_ptr<Progress> progress_for(std::FILE* stream, const std::string& prefix) {
  const int descriptor = ::fileno(stream);
  if (descriptor >= 0 && ::isatty(descriptor) != 0) {
    struct winsize size{};
    const int columns = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    return std::make_unique<TerminalProgress>(stream, columns);
  }
  return std::make_unique<LineProgress>([stream, prefix](const std::string& line) { say_line(stream, prefix + line); });
}

}  // namespace tensorfold::hub
