// The schedule fuzzer: random chunkings, windows, acceptances, interleavings, evictions and resumes of several
// sequences against feeding one token at a time, compared bit for bit. It is the test of the law (DESIGN section 1):
// what is computed at a position depends on the tokens up to it and on nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "families/model.h"

namespace tensorfold::engine {

/// What is tested. The model holds references to the backend, so it goes first.
struct FuzzSubject {
  std::unique_ptr<backend::Backend> backend;
  std::unique_ptr<families::Model> model;
};

/// How a subject computes; none of it may change a bit.
struct FuzzWorld {
  int32_t threads = 1;
  std::string simd;  ///< as backend::make_cpu_backend takes it
};

struct FuzzOptions {
  /// Time for schedules; the reference run comes on top, and more time where a situation was not met.
  double seconds = 20.0;
  /// The last world goes on for so long where a situation was not met or too little was compared (a busy machine, a
  /// sanitizer's build); 0 is eight times its share of `seconds`.
  double patience_seconds = 0;
  uint64_t enough = 0;  ///< logit rows to compare, and a fifth of it in states (where the model has any) and in pages
  uint64_t seed = 1;
  /// One subject is made for each; the first also makes the reference.
  std::vector<FuzzWorld> worlds = {{.threads = 1, .simd = ""}, {.threads = 2, .simd = ""}};
  int32_t long_story = 600;  ///< tokens of the longest sequence; above 512 attention has two partitions
};

struct FuzzReport {
  /// How often each situation came up. All of them must have.
  std::map<std::string, uint64_t> counters;
  uint64_t rounds = 0;
  uint64_t compared_rows = 0;
  uint64_t compared_states = 0;
  uint64_t compared_pages = 0;
  uint64_t mismatches = 0;
  bool several_slices = false;                ///< whether the model's rows are wider than one slice of a product
  std::vector<std::string> first_mismatches;  ///< one line each, at most 10

  /// Names of the counters that stayed 0.
  [[nodiscard]] std::vector<std::string> untouched() const;
  [[nodiscard]] bool passed() const { return mismatches == 0 && untouched().empty(); }
};

using FuzzFactory = std::function<FuzzSubject(const FuzzWorld& world)>;

FuzzReport fuzz_schedules(const FuzzFactory& make, const FuzzOptions& options);

}  // namespace tensorfold::engine
