// One mixing operation (attention, a recurrence) with its weights, its cache and a host of ways to feed it: the tests
// ask that all ways give the bits of one token at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "backend/backend_rig.h"

namespace tensorfold::testing {

/// An operation over rows of `input_width` values side by side.
class Mixer {
 public:
  virtual ~Mixer() = default;
  [[nodiscard]] virtual backend::CacheLayout layout() const = 0;
  [[nodiscard]] virtual int64_t input_width() const = 0;
  [[nodiscard]] virtual int64_t output_width() const = 0;
  /// Weights for this backend; called once before forward.
  virtual void load(backend::Backend& backend) = 0;
  virtual void forward(backend::Backend& backend, const backend::Plan& plan, backend::Cache& cache,
                       backend::Tensor input, backend::Tensor output) = 0;
  /// Output of every row of a chain, in double precision.
  [[nodiscard]] virtual std::vector<double> reference(const std::vector<float>& rows) const = 0;
};

/// One sequence in a world: its cache, its pages (handed out in a scrambled order) and how far it has come.
class MixerSession {
 public:
  MixerSession(const World& world, Mixer& mixer, int32_t page_tokens, int32_t most_tokens, int32_t sequences = 1)
      : backend_(make_backend(world)), mixer_(mixer), page_tokens_(page_tokens) {
    const int32_t pages_each = (most_tokens + page_tokens - 1) / page_tokens;
    const int32_t pages = pages_each * sequences;
    mixer_.load(*backend_);
    cache_ = backend_->make_cache(
        mixer.layout(), {.page_tokens = page_tokens, .pages = pages, .state_slots = sequences + 1, .window_rows = 64});
    for (int32_t s = 0; s < sequences; ++s) {
      std::vector<int32_t> table;
      for (int32_t p = 0; p < pages_each; ++p) table.push_back((pages - 1) - (p * sequences + s));
      tables_.push_back(table);
      backend_->clear_state(*cache_, s);
    }
    committed_.resize(static_cast<size_t>(sequences), 0);
  }

  /// Adds a sequence to `plan`: a chain, or with `parents` (relative, -1 the root) a tree.
  void add(backend::Plan& plan, int32_t sequence, int32_t rows, bool keep_all, std::span<const int32_t> parents = {}) {
    const auto s = static_cast<size_t>(sequence);
    const int32_t first = plan.rows();
    plan.begin_sequence(committed_[s], sequence, tables_[s], keep_all);
    std::vector<int32_t> depth;
    for (int32_t r = 0; r < rows; ++r) {
      const int32_t parent = parents.empty() ? r - 1 : parents[static_cast<size_t>(r)];
      depth.push_back(parent < 0 ? 0 : depth[static_cast<size_t>(parent)] + 1);
      plan.add_row(0, committed_[s] + depth.back(), parent < 0 ? -1 : first + parent, false);
    }
  }

  std::vector<float> run(const backend::Plan& plan, const std::vector<float>& rows) {
    if (plan.rows() > most_rows_) {
      // New tensors are another forward to `run`; the same ones let a backend replay what it captured.
      most_rows_ = std::max(plan.rows(), 64);
      shape_ += 1;
      input_ = make_tensor(*backend_, most_rows_, mixer_.input_width());
      output_ = make_tensor(*backend_, most_rows_, mixer_.output_width());
    }
    const std::vector<float> poison(static_cast<size_t>(plan.rows() * mixer_.output_width()),
                                    std::numeric_limits<float>::quiet_NaN());
    backend_->write_rows(input_, 0, plan.rows(), rows);
    backend_->write_rows(output_, 0, plan.rows(), poison);
    backend_->run(plan, shape_, [&] { mixer_.forward(*backend_, plan, *cache_, input_, output_); });
    for (size_t s = 0; s < plan.sequences.size(); ++s) {
      if (plan.sequences[s].keep_all)
        committed_[static_cast<size_t>(plan.sequences[s].state_slot)] += plan.sequences[s].row_count;
    }
    return read_tensor(*backend_, output_, plan.rows());
  }

  void commit(const backend::Plan& plan, const std::vector<backend::KeptPath>& kept) {
    backend_->commit(plan, *cache_, kept);
    for (const backend::KeptPath& path : kept) {
      const auto slot = static_cast<size_t>(plan.sequences[static_cast<size_t>(path.sequence)].state_slot);
      committed_[slot] += static_cast<int32_t>(path.rows.size());
    }
  }

  /// What the sequence left behind: its state, then its keys and values in order.
  std::vector<std::byte> content(int32_t sequence) {
    const auto s = static_cast<size_t>(sequence);
    std::vector<std::byte> all(static_cast<size_t>(cache_->state_bytes()));
    backend_->read_state(*cache_, sequence, all);
    std::vector<std::byte> page(static_cast<size_t>(cache_->page_bytes()));
    std::vector<int64_t> widths;
    for (const backend::CacheEntry& entry : cache_->layout().entries) {
      if (const auto* paged = std::get_if<backend::PagedEntry>(&entry)) widths.push_back(paged->width);
    }
    const int64_t token_values = std::accumulate(widths.begin(), widths.end(), int64_t{0});
    if (token_values == 0) return all;
    const int64_t value_bytes = cache_->page_bytes() / (page_tokens_ * token_values);
    for (int32_t p = 0; p < committed_[s]; ++p) {
      backend_->read_page(*cache_, tables_[s][static_cast<size_t>(p / page_tokens_)], page);
      int64_t entry_begin = 0;  // a page holds entry after entry
      for (const int64_t width : widths) {
        const auto begin = page.begin() + (entry_begin + p % page_tokens_ * width) * value_bytes;
        all.insert(all.end(), begin, begin + width * value_bytes);
        entry_begin += page_tokens_ * width;
      }
    }
    return all;
  }

  [[nodiscard]] int32_t committed(int32_t sequence) const { return committed_[static_cast<size_t>(sequence)]; }
  backend::Backend& backend() { return *backend_; }
  backend::Cache& cache() { return *cache_; }

 private:
  std::unique_ptr<backend::Backend> backend_;
  Mixer& mixer_;
  int32_t page_tokens_;
  std::unique_ptr<backend::Cache> cache_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int32_t> committed_;
  int32_t most_rows_ = 0;
  uint64_t shape_ = 0;
  backend::OwnedTensor input_;
  backend::OwnedTensor output_;
};

inline std::vector<float> slice_rows(const std::vector<float>& rows, int64_t width, int64_t first, int64_t count) {
  return {rows.begin() + first * width, rows.begin() + (first + count) * width};
}

/// What one token at a time gives: the outputs, and the content after every token.
struct SerialRun {
  std::vector<float> outputs;
  std::vector<std::byte> content;
};

inline SerialRun run_serially(const World& world, Mixer& mixer, const std::vector<float>& rows, int32_t page_tokens) {
  const auto count = static_cast<int32_t>(static_cast<int64_t>(rows.size()) / mixer.input_width());
  MixerSession session(world, mixer, page_tokens, count);
  SerialRun result;
  for (int32_t r = 0; r < count; ++r) {
    backend::Plan plan;
    session.add(plan, 0, 1, true);
    const std::vector<float> y = session.run(plan, slice_rows(rows, mixer.input_width(), r, 1));
    result.outputs.insert(result.outputs.end(), y.begin(), y.end());
  }
  result.content = session.content(0);
  return result;
}

/// Two sequences in random chunks and draft windows (wrong drafts, partly kept) in the same plans: every row that is
/// kept must have the bits of its serial run, and so must what is left behind.
inline void expect_serial_bits(const World& world, Mixer& mixer, Random& random, int32_t page_tokens,
                               const std::vector<float>* rows, const SerialRun* serial) {
  const int64_t in = mixer.input_width();
  const int64_t out = mixer.output_width();
  const auto total = static_cast<int32_t>(static_cast<int64_t>(rows[0].size()) / in);
  MixerSession session(world, mixer, page_tokens, total, 2);
  while (session.committed(0) < total || session.committed(1) < total) {
    backend::Plan plan;
    std::vector<float> x;
    std::vector<std::pair<int32_t, int32_t>> rights;  // sequence, right rows of its window
    std::vector<int32_t> members;
    for (int32_t s = 0; s < 2; ++s) {
      const int32_t left = total - session.committed(s);
      if (left == 0 || (left < total && random_integer(random, 0, 4) == 0)) continue;
      const bool keep = random_integer(random, 0, 1) == 0;
      const auto count = static_cast<int32_t>(random_integer(random, 1, std::min(left, keep ? 90 : 9)));
      session.add(plan, s, count, keep);
      const auto right = keep ? count : static_cast<int32_t>(random_integer(random, 0, count));
      const std::vector<float> own = slice_rows(rows[s], in, session.committed(s), right);
      x.insert(x.end(), own.begin(), own.end());
      const std::vector<float> wrong = random_floats(random, (count - right) * in);
      x.insert(x.end(), wrong.begin(), wrong.end());
      members.push_back(s);
      rights.emplace_back(s, right);
    }
    if (plan.rows() == 0) continue;
    const std::vector<backend::SequenceRows> before = plan.sequences;
    const std::vector<float> y = session.run(plan, x);
    std::vector<backend::KeptPath> kept;
    for (size_t i = 0; i < members.size(); ++i) {
      const backend::SequenceRows& sequence = before[i];
      const auto [s, right] = rights[i];
      ASSERT_TRUE(same_bits(slice_rows(y, out, sequence.first_row, right),
                            slice_rows(serial[s].outputs, out, sequence.committed, right)))
          << "sequence " << s << " at " << sequence.committed;
      if (sequence.keep_all) continue;
      backend::KeptPath path{.sequence = static_cast<int32_t>(i), .rows = {}};
      for (int32_t r = 0; r < right; ++r) path.rows.push_back(sequence.first_row + r);
      kept.push_back(path);
    }
    session.commit(plan, kept);
  }
  for (int32_t s = 0; s < 2; ++s) EXPECT_TRUE(session.content(s) == serial[s].content) << "sequence " << s;
}

/// A random tree after a prompt: every node equals the chain along its path; a kept path leaves what the chain leaves.
inline void expect_tree_bits(const World& world, Mixer& mixer, Random& random, int32_t page_tokens, int32_t prompt,
                             int32_t nodes) {
  const int64_t in = mixer.input_width();
  const int64_t out = mixer.output_width();
  const std::vector<float> past = random_floats(random, prompt * in);
  const std::vector<float> tree = random_floats(random, nodes * in);
  std::vector<int32_t> parents;
  for (int32_t r = 0; r < nodes; ++r)
    parents.push_back(static_cast<int32_t>(random_integer(random, std::max(-1, r - 4), r - 1)));
  const auto path_to = [&](int32_t node) {
    std::vector<int32_t> path;
    for (; node >= 0; node = parents[static_cast<size_t>(node)]) path.insert(path.begin(), node);
    return path;
  };
  MixerSession session(world, mixer, page_tokens, prompt + nodes);
  backend::Plan prefill;
  session.add(prefill, 0, prompt, true);
  session.run(prefill, past);
  const std::vector<std::byte> before = session.content(0);
  backend::Plan window;
  session.add(window, 0, nodes, false, parents);
  const std::vector<float> y = session.run(window, tree);
  EXPECT_TRUE(session.content(0) == before) << "a window must not change what is committed";
  const auto kept_node = static_cast<int32_t>(random_integer(random, 0, nodes - 1));
  session.commit(window, {{.sequence = 0, .rows = path_to(kept_node)}});
  const std::vector<std::byte> after = session.content(0);
  for (int32_t node = 0; node < nodes; ++node) {
    std::vector<float> chain = past;
    for (const int32_t r : path_to(node)) {
      const std::vector<float> row = slice_rows(tree, in, r, 1);
      chain.insert(chain.end(), row.begin(), row.end());
    }
    MixerSession other(world, mixer, page_tokens, prompt + nodes);
    backend::Plan plan;
    const auto length = static_cast<int32_t>(static_cast<int64_t>(chain.size()) / in);
    other.add(plan, 0, length, true);
    const std::vector<float> serial = other.run(plan, chain);
    ASSERT_TRUE(same_bits(slice_rows(y, out, node, 1), slice_rows(serial, out, length - 1, 1))) << "node " << node;
    if (node == kept_node) {
      EXPECT_TRUE(after == other.content(0)) << "what a kept path leaves";
    }
  }
}

}  // namespace tensorfold::testing
