// The host-built plan of one forward: which rows travel, whose they are and where their past lies.
//
// A row is one token of one sequence at one absolute position. Prompt chunks, single decode tokens and draft windows
// (chains or trees) of any number of sequences are rows of one plan; that is how batching, chunked prefill and
// verification are the same thing. Nothing computed for a row may depend on the other rows (DESIGN section 1).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tensorfold::backend {

/// Most tokens before a sequence's first row that a plan carries: what n-gram embeddings look back to.
inline constexpr int32_t kHistoryTokens = 7;

/// The rows of one sequence inside a plan, and where its committed past lies.
struct SequenceRows {
  int32_t first_row = 0;
  int32_t row_count = 0;
  /// Committed positions 0..committed-1 are in the pages and the state slot.
  int32_t committed = 0;
  /// The slot of the recurrent state; -1 where the cache has none.
  int32_t state_slot = -1;
  /// First index into Plan::pages; page j of the sequence holds positions [j*page_tokens, (j+1)*page_tokens).
  int32_t first_page = 0;
  int32_t page_count = 0;
  /// The rows are a chain that will all be kept (a prompt chunk, a serial token): the forward commits them itself.
  /// Otherwise it reads committed state only and leaves window records for Backend::commit.
  bool keep_all = false;
  /// Range of Plan::history: the committed tokens right before the first row, as far as the plan has them.
  int32_t first_history = 0;
  int32_t history_count = 0;
};

/// One forward. Rows of a sequence are contiguous; a parent precedes its children.
struct Plan {
  std::vector<int32_t> tokens;     ///< one a row
  std::vector<int32_t> positions;  ///< absolute; a tree row's is committed + depth
  std::vector<int32_t> parents;    ///< row index of the parent in this plan; -1: the sequence's committed state
  std::vector<int32_t> owner;      ///< index into `sequences`, one a row
  std::vector<SequenceRows> sequences;
  std::vector<int32_t> pages;  ///< page ids of all sequences, back to back
  std::vector<int32_t>
      logit_rows;                ///< rows whose logits are wanted, ascending; row j of a logits tensor is logit_rows[j]
  std::vector<int32_t> history;  ///< committed tokens of all sequences, back to back

  [[nodiscard]] int32_t rows() const { return static_cast<int32_t>(tokens.size()); }
  /// Starts a sequence; its rows follow. `page_table` is copied, and so are the last kHistoryTokens of `past`: the
  /// tokens at positions ..committed-1 (all of them or their end; none for models that ask for no token but a row's
  /// own).
  void begin_sequence(int32_t committed, int32_t state_slot, std::span<const int32_t> page_table, bool keep_all,
                      std::span<const int32_t> past = {}) {
    const auto kept = past.last(std::min(past.size(), static_cast<size_t>(kHistoryTokens)));
    sequences.push_back({rows(), 0, committed, state_slot, static_cast<int32_t>(pages.size()),
                         static_cast<int32_t>(page_table.size()), keep_all, static_cast<int32_t>(history.size()),
                         static_cast<int32_t>(kept.size())});
    pages.insert(pages.end(), page_table.begin(), page_table.end());
    history.insert(history.end(), kept.begin(), kept.end());
  }
  /// Adds a row to the sequence begun last and returns its index; `parent` is a row of this plan or -1.
  int32_t add_row(int32_t token, int32_t position, int32_t parent, bool wants_logits) {
    const int32_t row = rows();
    tokens.push_back(token);
    positions.push_back(position);
    parents.push_back(parent);
    owner.push_back(static_cast<int32_t>(sequences.size()) - 1);
    sequences.back().row_count += 1;
    if (wants_logits) logit_rows.push_back(row);
    return row;
  }
  [[nodiscard]] std::span<const int32_t> pages_of(const SequenceRows& sequence) const {
    return {pages.data() + sequence.first_page, static_cast<size_t>(sequence.page_count)};
  }
  [[nodiscard]] std::span<const int32_t> history_of(const SequenceRows& sequence) const {
    return {history.data() + sequence.first_history, static_cast<size_t>(sequence.history_count)};
  }
};

/// What a verified window keeps of one sequence: rows from the root on, in path order (may be empty).
struct KeptPath {
  int32_t sequence = 0;  ///< index into Plan::sequences
  std::vector<int32_t> rows;
};

}  // namespace tensorfold::backend
