// What one rendering may use: evaluation steps, live memory, text size and nesting. A template or a request that asks
// for more ends in one TemplateFailure instead of a stalled or killed server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace tensorfold::text::jinja {

/// A rendering that cannot go on; Template::render turns it into an Error that names the line.
class TemplateFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct RenderLimits {
  std::uint64_t steps = 50'000'000;           ///< nodes evaluated, items produced and KiB of text copied
  std::size_t memory = std::size_t{1} << 29;  ///< bytes of values alive at one time
  std::size_t text = std::size_t{1} << 27;    ///< bytes of one string, and of the output
  int nesting = 1200;                         ///< nested expressions, statements and macro calls
};

/// Counts what the rendering of this thread has used. Values made while a meter is current are charged to it.
class RenderMeter {
 public:
  explicit RenderMeter(const RenderLimits& limits) : limits_(limits), previous_(current_) { current_ = this; }
  ~RenderMeter() { current_ = previous_; }
  RenderMeter(const RenderMeter&) = delete;
  RenderMeter& operator=(const RenderMeter&) = delete;

  /// The innermost meter of this thread, or nullptr outside a rendering.
  static RenderMeter* current() { return current_; }

  void step(std::uint64_t count = 1) {
    if ((steps_ += count) > limits_.steps) throw TemplateFailure("the template takes too many steps");
  }
  void acquire(std::size_t bytes) {
    if (bytes > limits_.memory - used_) throw TemplateFailure("the template needs too much memory");
    used_ += bytes;
  }
  void release(std::size_t bytes) { used_ -= bytes; }
  [[nodiscard]] const RenderLimits& limits() const { return limits_; }

 private:
  friend class Unmetered;
  static thread_local RenderMeter* current_;
  RenderLimits limits_;
  RenderMeter* previous_;
  std::uint64_t steps_ = 0;
  std::size_t used_ = 0;
};

/// No meter is current for as long as this lives: for values that outlive the rendering which first needs them.
class Unmetered {
 public:
  Unmetered() : previous_(std::exchange(RenderMeter::current_, nullptr)) {}
  ~Unmetered() { RenderMeter::current_ = previous_; }
  Unmetered(const Unmetered&) = delete;
  Unmetered& operator=(const Unmetered&) = delete;

 private:
  RenderMeter* previous_;
};

/// Throws unless text of `bytes` bytes may exist.
void check_text_size(std::size_t bytes);

/// Memory charged to the current meter for as long as this lives; the meter must live longer.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  explicit MemoryCharge(std::size_t bytes) : meter_(RenderMeter::current()), bytes_(bytes) {
    if (meter_ != nullptr) meter_->acquire(bytes_);
  }
  ~MemoryCharge() {
    if (meter_ != nullptr) meter_->release(bytes_);
  }
  MemoryCharge(const MemoryCharge&) = delete;
  MemoryCharge& operator=(const MemoryCharge&) = delete;

 private:
  RenderMeter* meter_ = nullptr;
  std::size_t bytes_ = 0;
};

/// One level of nesting for as long as this lives.
class NestingGuard {
 public:
  NestingGuard(int& depth, int limit) : depth_(depth) {
    if (depth_ >= limit) throw TemplateFailure("the template nests too deeply");
    ++depth_;
  }
  ~NestingGuard() { --depth_; }
  NestingGuard(const NestingGuard&) = delete;
  NestingGuard& operator=(const NestingGuard&) = delete;

 private:
  int& depth_;
};

}  // namespace tensorfold::text::jinja
