// The engine: takes requests, runs rounds on one thread of its own, and streams tokens back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "drafters/drafter.h"
#include "engine/request.h"
#include "families/model.h"

namespace tensorfold::engine {

struct EngineOptions {
  /// Prompt + reply tokens of one sequence; 0: as much as memory affords, up to the native window.
  int32_t context = 0;
  int32_t parallel = 0;  ///< running sequences; 0: auto
  int32_t page_tokens = 64;
  int32_t prefill_rows = 512;  ///< most prompt rows in one forward
  int32_t window_rows = 64;    ///< most rows of one sequence's draft window
  double decode_share = 0.25;  ///< share of the time that running replies keep while prompts fill
  bool drafts = true;
  int32_t fixed_drafts = -1;   ///< >= 0: always so many drafts of the first drafter (tests and measurements)
  uint64_t memory_budget = 0;  ///< bytes for caches and kept prefixes; 0: 70 % of the machine's memory less the weights

  bool keep_prefixes = true;
  int32_t kept_states = 0;  ///< states kept beside the running ones on the device; 0: auto
  uint64_t host_bytes = 0;  ///< host memory for prefixes that left the device (for devices with memory of their own)
  std::filesystem::path snapshot_directory;     ///< empty: nothing on disk
  uint64_t disk_bytes = 0;                      ///< budget of the snapshot directory
  std::string weights_identity;                 ///< names the weights, for files of earlier runs
  std::function<void(const std::string&)> log;  ///< one line each, from any thread; may be null
};

/// The rows a model must be loaded for (families::Family::load) to serve these options.
int32_t forward_rows(const EngineOptions& options);

/// Totals for health and metrics; cheap to read from any thread.
struct EngineStatus {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t lanes = 0;
  int32_t context = 0;
  uint64_t rounds = 0;
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t reply_tokens = 0;
  uint64_t drafted = 0;
  uint64_t accepted = 0;
  uint64_t kept_prefixes = 0;     ///< in memory
  uint64_t resumed_prefixes = 0;  ///< prompts that began behind one
  int32_t window_rows = 1;        ///< most rows of a draft window, as the row check left it; 1: no drafts
  std::string drafts_off_reason;  ///< empty, or why the load-time row check narrowed windows or turned drafts off
};

/// Handle of a submitted request; dropping it does not cancel.
class Ticket {
 public:
  virtual ~Ticket() = default;
  /// The reply ends within one round with FinishReason::cancelled. Any thread.
  virtual void cancel() = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;
  /// Queues a request. Throws Error(invalid_request) when it cannot ever run (empty prompt, ids outside the vocabulary,
  /// more tokens than the context). Any thread.
  virtual std::shared_ptr<Ticket> submit(Request request) = 0;
  [[nodiscard]] virtual EngineStatus status() const = 0;
  /// Finishes running replies with FinishReason::cancelled and stops the thread. The destructor does it too.
  virtual void stop() = 0;
};

/// Starts an engine; runs the load-time row check first. The model and backend outlive the engine. Throws
/// Error(capacity) when the caches do not fit, naming the context that would.
std::unique_ptr<Engine> start_engine(backend::Backend& backend, families::Model& model, const EngineOptions& options,
                                     std::vector<std::unique_ptr<drafters::Drafter>> drafters = {});

}  // namespace tensorfold::engine
