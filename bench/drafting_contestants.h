// Engines that answer the same requests in turn, on cores of their own, so that how they draft is all that differs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "drafters/drafter.h"
#include "engine/engine.h"
#include "families/checkpoint.h"

namespace tensorfold {

using Drafters = std::vector<std::unique_ptr<drafters::Drafter>>;

struct Ask {
  std::vector<int32_t> prompt;
  int32_t tokens = 128;
  double temperature = 0.0;
  bool end = true;  ///< whether end tokens end it
};

/// Requests that are served one after the other, or all at once.
struct Workload {
  std::string name;
  std::vector<Ask> asks;
  bool together = false;
};

/// What became of a workload.
struct Run {
  double whole = 0.0;   ///< seconds from the first request to the last reply
  double cpu = 0.0;     ///< processor seconds of this process meanwhile
  double decode = 0.0;  ///< seconds of decoding, added over replies
  int64_t tokens = 0;   ///< behind the first of each reply
  int64_t rounds = 0;
  int64_t drafted = 0;
  int64_t accepted = 0;
  std::vector<std::vector<int32_t>> replies;
  [[nodiscard]] double rate() const { return static_cast<double>(tokens) / std::max(decode, 1e-9); }
  [[nodiscard]] double expected() const {
    return rounds > 0 ? static_cast<double>(tokens) / static_cast<double>(rounds) : 1.0;
  }
};

struct Subject {
  std::unique_ptr<backend::Backend> backend;
  std::unique_ptr<families::Model> model;
};

/// An engine, and whether it has measured what its rounds cost.
struct Started {
  std::unique_ptr<engine::Engine> engine;
  std::shared_ptr<std::atomic<bool>> calibrated = std::make_shared<std::atomic<bool>>(false);
};

/// An engine under a name. depth < 0: the policy decides.
struct Contestant {
  std::string name;
  int32_t depth = 0;
  Started started;
};

struct Figures {
  double expected = 1.0;
  double cost = 1.0;
  double ratio = 1.0;  ///< tokens a second against serial
};

/// A backend whose further threads stay beside the engines' core.
std::unique_ptr<backend::Backend> make_backend(int threads);

/// An engine with these drafters; depth as in Contestant, `parallel` replies at once.
Started start(Subject& subject, Drafters made, int32_t depth, int32_t parallel = 1);

/// Serves a workload, and waits until it is done.
Run play(engine::Engine& engine, const Workload& workload, const std::vector<int32_t>& end_tokens);

/// The engine measures its costs after the first reply, while nothing else runs: two engines on one backend must not
/// run at the same time, so everything waits for it.
void let_calibrate(const Started& started);

double median(std::vector<double> values);

/// Every contestant `repeats` times, in turn, each repeat from another one on; contestants[0] is serial and always the
/// first.
std::vector<Figures> measure(std::vector<Contestant>& contestants, const Workload& workload, int repeats,
                             const std::vector<int32_t>& end_tokens);

}  // namespace tensorfold
