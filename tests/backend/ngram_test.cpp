// Hashed n-grams: the rows of a position follow from its own path alone, the table is read where it lies, and the
// branch with its dilated convolution keeps the law.
#include <gtest/gtest.h>

#include "backend/mixer_rig.h"

namespace tensorfold::testing {
namespace {

using backend::DilatedConvolutionShape;
using backend::NgramHashing;

NgramHashing random_hashing(Random& random) {
  NgramHashing hashing;
  for (int i = 0; i < 3; ++i) hashing.multipliers.push_back(2 * random_integer(random, 1, int64_t{1} << 50) + 1);
  hashing.sizes = {41, 43, 47, 53, 59, 61};
  hashing.offsets = {0, 41, 84, 131, 184, 243};
  hashing.heads_per_order = 3;
  hashing.end_token = 5;
  return hashing;
}

/// Straight from the definition, over the whole text up to and with a position.
std::vector<int64_t> expected_rows(const NgramHashing& hashing, const std::vector<int32_t>& text) {
  const auto token = [&](size_t back) -> uint64_t {
    bool clear = back < text.size();
    for (size_t between = 1; clear && between <= back; ++between)
      clear = text[text.size() - 1 - between] != hashing.end_token;
    return static_cast<uint64_t>(clear ? text[text.size() - 1 - back] : hashing.end_token);
  };
  const auto factor = [&](size_t i) { return static_cast<uint64_t>(hashing.multipliers[i]); };
  const uint64_t two = (token(0) * factor(0)) ^ (token(1) * factor(1));
  const uint64_t three = two ^ (token(2) * factor(2));
  std::vector<int64_t> rows;
  for (size_t j = 0; j < 6; ++j)
    rows.push_back(hashing.offsets[j] +
                   static_cast<int64_t>((j < 3 ? two : three) % static_cast<uint64_t>(hashing.sizes[j])));
  return rows;
}

TEST(NgramHash, LooksAtTheRowsOwnPathAndTheHistoryAlone) {
  Random random(101);
  const NgramHashing hashing = random_hashing(random);
  for (int trial = 0; trial < 300; ++trial) {
    // Few tokens, so that the end token is often among them.
    const auto token = [&] { return static_cast<int32_t>(random_integer(random, 3, 9)); };
    std::vector<int32_t> past(static_cast<size_t>(random_integer(random, 0, 12)));
    for (int32_t& t : past) t = token();
    backend::Plan plan;
    plan.begin_sequence(0, 0, {}, true);  // a neighbour
    plan.add_row(token(), 0, -1, false);
    plan.begin_sequence(static_cast<int32_t>(past.size()), 1, {}, false, past);
    std::vector<std::vector<int32_t>> texts = {{plan.tokens.front()}};
    for (int32_t row = 1; row < 9; ++row) {
      const auto parent = static_cast<int32_t>(random_integer(random, 0, row - 1));  // 0: the history
      std::vector<int32_t> text = parent == 0 ? past : texts[static_cast<size_t>(parent)];
      text.push_back(token());
      plan.add_row(text.back(), static_cast<int32_t>(text.size()) - 1, parent == 0 ? -1 : parent, false);
      texts.push_back(std::move(text));
    }
    for (int32_t row = 0; row < plan.rows(); ++row) {
      std::vector<int64_t> rows(6, -1);
      hash_ngrams(hashing, plan, row, rows);
      ASSERT_EQ(rows, expected_rows(hashing, texts[static_cast<size_t>(row)])) << "row " << row;
    }
  }
}

TEST(NgramHash, RefusesAPlanWithoutTheTokensBeforeItsRows) {
  Random random(102);
  const NgramHashing hashing = random_hashing(random);
  std::vector<int64_t> rows(6);
  backend::Plan plan;
  plan.begin_sequence(7, 0, {}, true);
  plan.add_row(1, 7, -1, false);
  EXPECT_THROW(hash_ngrams(hashing, plan, 0, rows), Error);
}

TEST(NgramTable, ReadsTheRowsOfEveryHeadFromTheirShards) {
  Random random(103);
  const NgramHashing hashing = random_hashing(random);
  for (const int32_t bits : {0, 4}) {
    // 304 rows of 64 values in three shards of different sizes.
    std::vector<TestMatrix> shards;
    std::vector<double> table;
    for (const int64_t rows : {102, 101, 101}) {
      shards.push_back(make_matrix(random, rows, 64, bits, bits == 0 ? 0 : 32, format::DataType::bf16));
      table.insert(table.end(), shards.back().weights.begin(), shards.back().weights.end());
    }
    std::vector<format::Linear> linears;
    for (const TestMatrix& shard : shards) linears.push_back(shard.linear);
    const std::vector<int32_t> text = {7, 9, 5, 1, 12, 11, 40, 2};
    std::vector<double> expected;
    for (size_t row = 0; row < text.size(); ++row) {
      const auto end = text.begin() + static_cast<std::ptrdiff_t>(row) + 1;
      for (const int64_t found : expected_rows(hashing, {text.begin(), end})) {
        const auto first = table.begin() + found * 64;
        expected.insert(expected.end(), first, first + 64);
      }
    }
    std::vector<float> first;
    for (const World& world : worlds()) {
      const auto backend = make_backend(world);
      const auto loaded = backend->load_ngram_table(hashing, linears);
      ASSERT_EQ(loaded->width(), 6 * 64);
      backend::Plan plan;
      plan.begin_sequence(0, 0, {}, true);
      for (int32_t row = 0; row < 8; ++row) plan.add_row(text[static_cast<size_t>(row)], row, row - 1, false);
      const auto output = make_tensor(*backend, 8, 6 * 64);
      backend->run(plan, 1, [&] { backend->ngram_embed(plan, *loaded, output); });
      const std::vector<float> result = read_tensor(*backend, output, 8);
      EXPECT_TRUE(close_to(result, expected, 1e-6, 1e-6));
      if (first.empty()) first = result;
      EXPECT_TRUE(same_bits(result, first)) << describe(world);
    }
  }
}

/// A store whose files vanish once they are open.
class VanishingStore : public MemoryStore {
 public:
  [[nodiscard]] std::shared_ptr<const format::TensorBytes> keep_open(const format::TensorInfo&) const override {
    class Gone : public format::TensorBytes {
     public:
      void read(uint64_t, std::span<std::byte>) const override { fail(ErrorKind::io, "the file is gone"); }
    };
    return std::make_shared<Gone>();
  }
};

TEST(NgramTable, AFileThatCannotBeReadIsAnErrorAndNoCrash) {
  Random random(107);
  const NgramHashing hashing = random_hashing(random);
  VanishingStore store;
  format::Linear shard;
  shard.store = &store;
  shard.outputs = 304;
  shard.inputs = 32;
  shard.weight = store.add("w.weight", format::DataType::bf16, {304, 32}, std::vector<std::byte>(304 * 32 * 2));
  for (const World& world : worlds()) {
    const auto backend = make_backend(world);
    const auto table = backend->load_ngram_table(hashing, std::span(&shard, 1));
    const backend::Plan plan = chain_plan(20, 0, true, {});
    const auto output = make_tensor(*backend, 20, 6 * 32);
    EXPECT_THROW(backend->run(plan, 1, [&] { backend->ngram_embed(plan, *table, output); }), Error) << describe(world);
  }
}

/// The branch over rows of streams | key | value, and its double-precision reference.
class BranchMixer : public Mixer {
 public:
  BranchMixer(int64_t streams, int64_t hidden, int32_t kernel, int32_t dilation, Random& random)
      : streams_(streams), hidden_(hidden), shape_{streams * hidden, kernel, dilation} {
    for (auto* norm : {&key_norm_, &query_norm_, &conv_norm_}) *norm = random_floats(random, width());
    taps_ = random_floats(random, width() * kernel, 0.6F);
  }
  [[nodiscard]] int64_t width() const { return streams_ * hidden_; }
  [[nodiscard]] backend::CacheLayout layout() const override { return {{backend::StateEntry{"n-grams", shape_}}}; }
  [[nodiscard]] int64_t input_width() const override { return 2 * width() + hidden_; }
  [[nodiscard]] int64_t output_width() const override { return width(); }
  void load(backend::Backend& backend) override {
    loaded_.clear();
    for (const auto* values : {&key_norm_, &query_norm_, &conv_norm_, &taps_})
      loaded_.push_back(backend.load_vector(*values));
  }
  void forward(backend::Backend& backend, const backend::Plan& plan, backend::Cache& cache, backend::Tensor input,
               backend::Tensor output) override {
    backend.copy(plan, input.columns(0, width()), output);
    backend.ngram_branch(plan, {.cache = &cache,
                                .entry = 0,
                                .streams = output,
                                .key = input.columns(width(), width()),
                                .value = input.columns(2 * width(), hidden_),
                                .key_norm = loaded_[0].get(),
                                .query_norm = loaded_[1].get(),
                                .conv_norm = loaded_[2].get(),
                                .epsilon = 1e-6F,
                                .convolution = loaded_[3].get()});
  }

  [[nodiscard]] std::vector<double> reference(const std::vector<float>& rows) const override {
    const auto count = static_cast<int64_t>(rows.size()) / input_width();
    std::vector<std::vector<double>> past;  // f of every row
    std::vector<double> outputs;
    for (int64_t row = 0; row < count; ++row) {
      const std::vector<double> x(rows.begin() + row * input_width(), rows.begin() + (row + 1) * input_width());
      std::vector<double> f;
      std::vector<double> g;
      for (int64_t s = 0; s < streams_; ++s) {
        const std::vector<double> k = normed(x, width() + s * hidden_, key_norm_, s);
        const std::vector<double> q = normed(x, s * hidden_, query_norm_, s);
        double r = 0.0;
        for (size_t d = 0; d < k.size(); ++d) r += k[d] * q[d];
        r /= std::sqrt(static_cast<double>(hidden_));
        const double bent = (r < 0.0 ? -1.0 : 1.0) * std::sqrt(std::max(std::abs(r), 1e-6));
        for (int64_t d = 0; d < hidden_; ++d)
          g.push_back(x[static_cast<size_t>(2 * width() + d)] / (1.0 + std::exp(-bent)));
        const std::vector<double> own = normed(g, s * hidden_, conv_norm_, s);
        f.insert(f.end(), own.begin(), own.end());
      }
      past.push_back(f);
      for (int64_t c = 0; c < width(); ++c) {
        double sum = 0.0;
        for (int64_t j = 0; j < shape_.kernel; ++j) {
          const int64_t from = row - (shape_.kernel - 1 - j) * shape_.dilation;
          if (from < 0) continue;
          sum += static_cast<double>(taps_[static_cast<size_t>(c * shape_.kernel + j)]) *
                 past[static_cast<size_t>(from)][static_cast<size_t>(c)];
        }
        outputs.push_back(x[static_cast<size_t>(c)] + g[static_cast<size_t>(c)] + sum / (1.0 + std::exp(-sum)));
      }
    }
    return outputs;
  }

 private:
  [[nodiscard]] std::vector<double> normed(const std::vector<double>& x, int64_t first, const std::vector<float>& norm,
                                           int64_t stream) const {
    std::vector<double> y(x.begin() + first, x.begin() + first + hidden_);
    double squares = 0.0;
    for (const double value : y) squares += value * value;
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(hidden_) + 1e-6);
    for (size_t d = 0; d < y.size(); ++d)
      y[d] *= factor * static_cast<double>(norm[static_cast<size_t>(stream * hidden_) + d]);
    return y;
  }

  int64_t streams_;
  int64_t hidden_;
  DilatedConvolutionShape shape_;
  std::vector<float> key_norm_, query_norm_, conv_norm_, taps_;
  std::vector<std::unique_ptr<backend::Vector>> loaded_;
};

std::vector<BranchMixer> branch_mixers(Random& random) {
  std::vector<BranchMixer> mixers;
  mixers.emplace_back(4, 48, 4, 3, random);
  mixers.emplace_back(2, 21, 3, 1, random);
  mixers.emplace_back(1, 32, 2, 5, random);
  return mixers;
}

TEST(NgramBranch, MatchesDoublePrecision) {
  Random random(104);
  for (BranchMixer& mixer : branch_mixers(random)) {
    const std::vector<float> rows = random_floats(random, 40 * mixer.input_width());
    EXPECT_TRUE(close_to(run_serially(worlds().back(), mixer, rows, 1).outputs, mixer.reference(rows), 1e-4, 1e-4));
  }
}

TEST(NgramBranch, ChunksWindowsNeighboursAndThreadsChangeNoBits) {
  Random random(105);
  for (BranchMixer& mixer : branch_mixers(random)) {
    const int64_t total = random_integer(random, 60, 90);
    const std::vector<float> rows[] = {random_floats(random, total * mixer.input_width()),
                                       random_floats(random, total * mixer.input_width())};
    const SerialRun serial[] = {run_serially(worlds().back(), mixer, rows[0], 64),
                                run_serially(worlds().back(), mixer, rows[1], 64)};
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      expect_serial_bits(world, mixer, random, 64, rows, serial);
    }
  }
}

TEST(NgramBranch, TreeNodesHaveTheBitsOfTheirPath) {
  Random random(106);
  for (BranchMixer& mixer : branch_mixers(random)) {
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      expect_tree_bits(world, mixer, random, 64, static_cast<int32_t>(random_integer(random, 1, 20)), 14);
    }
  }
}

}  // namespace
}  // namespace tensorfold::testing
