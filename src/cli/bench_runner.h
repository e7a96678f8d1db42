// A model driven without an engine: prompts, single tokens and draft windows of a few sequences, timed from the plan on
// the host to the drawn tokens back on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "families/model.h"

namespace tensorfold::cli {

class BenchRunner {
 public:
  static constexpr int32_t most_window = 64;

  /// `streams` sequences of up to `most_tokens` tokens; a forward takes at most `prompt_rows` rows of a prompt.
  BenchRunner(backend::Backend& backend, families::Model& model, int32_t streams, int32_t most_tokens,
              int32_t prompt_rows);

  /// Every sequence begins anew, behind `committed` tokens that were not fed: their pages hold anything.
  void restart(int32_t committed = 0);
  /// Feeds `count` tokens to the first sequence; the last row's token is drawn.
  void prefill(int32_t count);
  /// One token of every sequence.
  void decode();
  /// A draft window of `rows` rows of the first sequence, of which the first is kept.
  void round(int32_t rows);

 private:
  [[nodiscard]] int32_t token_at(int32_t position) const;
  /// `rows` rows of each of the first `streams` sequences; the last `wanted` rows of each are drawn.
  backend::Plan forward(int32_t streams, int32_t rows, bool keep_all, int32_t wanted);

  backend::Backend& backend_;
  families::Model& model_;
  int32_t prompt_rows_;
  backend::OwnedTensor logits_;
  std::unique_ptr<backend::Cache> cache_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<int32_t> committed_;
};

}  // namespace tensorfold::cli
