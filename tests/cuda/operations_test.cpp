// The CUDA backend's operations against double precision, and the law: how rows are cut into plans changes no bit.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "backend/attention_mixer.h"
#include "backend/delta_mixer.h"

namespace tensorfold::testing {
namespace {

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no NVIDIA GPU";
  }
};

const World kCuda{"cuda", 1};

// bf16 activations and weights of attention scores: errors near 2^-8 of an output's size.
const AttentionShape kAttentions[] = {
    {24, 4, 256, 256, 32, false, true, 0, true},    // as the 27B
    {4, 2, 256, 256, 32, false, true, 0, true},     // as the demonstration model
    {8, 2, 128, 128, 64, false, false, 100, true},  // sliding window, as the block drafter
    {3, 1, 128, 128, 8, true, false, 0, false},
};

TEST_F(Cuda, AttentionMatchesDoublePrecision) {
  Random random(11);
  for (const AttentionShape& shape : kAttentions) {
    AttentionMixer mixer(shape, random);
    const std::vector<float> rows = random_floats(random, 150 * mixer.input_width());
    EXPECT_TRUE(close_to(run_serially(kCuda, mixer, rows, 7).outputs, mixer.reference(rows), 0.02, 0.01));
  }
}

TEST_F(Cuda, AttentionKeepsTheLaw) {
  Random random(12);
  for (const AttentionShape& shape : kAttentions) {
    AttentionMixer mixer(shape, random);
    const int64_t total = random_integer(random, 520, 700);
    const std::vector<float> rows[] = {random_floats(random, total * mixer.input_width()),
                                       random_floats(random, total * mixer.input_width())};
    const SerialRun serial[] = {run_serially(kCuda, mixer, rows[0], 64), run_serially(kCuda, mixer, rows[1], 64)};
    for (const int32_t page_tokens : {1, 7, 64}) {
      SCOPED_TRACE("pages of " + std::to_string(page_tokens));
      for (int round = 0; round < 3; ++round) expect_serial_bits(kCuda, mixer, random, page_tokens, rows, serial);
    }
    expect_tree_bits(kCuda, mixer, random, 7, static_cast<int32_t>(random_integer(random, 1, 140)), 12);
    expect_tree_bits(kCuda, mixer, random, 64, static_cast<int32_t>(random_integer(random, 500, 515)), 12);
  }
}

TEST_F(Cuda, ABidirectionalBlockSeesItsPastAndAllOfItself) {
  Random random(14);
  AttentionMixer mixer(kAttentions[3], random);
  const std::vector<float> rows = random_floats(random, 75 * mixer.input_width());
  MixerSession session(kCuda, mixer, 16, 100);
  backend::Plan past;
  session.add(past, 0, 67, true);
  mixer.bidirectional = false;
  session.run(past, slice_rows(rows, mixer.input_width(), 0, 67));
  backend::Plan block;
  session.add(block, 0, 8, false);
  mixer.bidirectional = true;
  const std::vector<float> y = session.run(block, slice_rows(rows, mixer.input_width(), 67, 8));
  const std::vector<double> reference = mixer.reference(rows);
  EXPECT_TRUE(close_to(y, {reference.end() - 8 * mixer.output_width(), reference.end()}, 0.02, 0.01));
}

const backend::GatedDeltaShape kDeltas[] = {
    {.key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128, .kernel = 4},  // as the 27B
    {.key_heads = 2, .value_heads = 6, .key_dim = 128, .value_dim = 128, .kernel = 4},    // as the demonstration model
};

TEST_F(Cuda, GatedDeltaMatchesDoublePrecision) {
  Random random(21);
  for (const backend::GatedDeltaShape& shape : kDeltas) {
    DeltaMixer mixer(shape, random);
    std::vector<float> rows = random_floats(random, 40 * mixer.input_width());
    for (float& v : rows) v = format::bf16_to_float(format::float_to_bf16(v));
    EXPECT_TRUE(close_to(run_serially(kCuda, mixer, rows, 1).outputs, mixer.reference(rows), 4e-3, 2e-3));
  }
}

TEST_F(Cuda, GatedDeltaKeepsTheLaw) {
  Random random(22);
  for (const backend::GatedDeltaShape& shape : kDeltas) {
    DeltaMixer mixer(shape, random);
    const int64_t total = random_integer(random, 90, 130);
    const std::vector<float> rows[] = {random_floats(random, total * mixer.input_width()),
                                       random_floats(random, total * mixer.input_width())};
    const SerialRun serial[] = {run_serially(kCuda, mixer, rows[0], 64), run_serially(kCuda, mixer, rows[1], 64)};
    for (int round = 0; round < 3; ++round) expect_serial_bits(kCuda, mixer, random, 64, rows, serial);
    expect_tree_bits(kCuda, mixer, random, 64, static_cast<int32_t>(random_integer(random, 1, 20)), 14);
  }
}

/// y = rows * W^T in double precision, of rows rounded to bf16.
std::vector<double> product_of(const TestMatrix& matrix, const std::vector<float>& rows) {
  std::vector<double> result;
  const auto k = static_cast<size_t>(matrix.linear.inputs);
  const auto round = [](double v) {
    return static_cast<double>(format::bf16_to_float(format::float_to_bf16(static_cast<float>(v))));
  };
  std::vector<double> weights;
  for (const double w : matrix.weights) weights.push_back(round(w));
  for (size_t row = 0; row < rows.size() / k; ++row)
    for (size_t o = 0; o < weights.size() / k; ++o) {
      double sum = 0;
      for (size_t i = 0; i < k; ++i) sum += weights[o * k + i] * round(static_cast<double>(rows[row * k + i]));
      result.push_back(sum);
    }
  return result;
}

struct ProductCase {
  int64_t outputs;
  int64_t inputs;
  int32_t bits;
  int32_t group;
  format::DataType type;
};

TEST_F(Cuda, ProductsOfEveryFormatMatchDoublePrecisionForAnyNumberOfRows) {
  Random random(31);
  const ProductCase cases[] = {
      {200, 384, 4, 64, format::DataType::bf16}, {130, 1024, 4, 128, format::DataType::bf16},
      {96, 256, 3, 64, format::DataType::bf16},  {96, 256, 4, 32, format::DataType::bf16},
      {64, 256, 8, 64, format::DataType::bf16},  {80, 256, 6, 64, format::DataType::f16},
      {512, 192, 0, 0, format::DataType::bf16},  {48, 320, 0, 0, format::DataType::f32},
  };
  for (const ProductCase& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.outputs << " x " << c.inputs << ", " << c.bits << " bits");
    const auto backend = backend::make_cuda_backend(0);
    const TestMatrix matrix = make_matrix(random, c.outputs, c.inputs, c.bits, c.group, c.type);
    const auto projection = backend->load_projection(std::span(&matrix.linear, 1));
    const std::vector<float> values = random_floats(random, 300 * c.inputs);
    const auto run = [&](int32_t first, int32_t rows) {
      const auto input = make_tensor(*backend, rows, c.inputs, slice_rows(values, c.inputs, first, rows));
      const auto output = make_tensor(*backend, rows, c.outputs);
      const backend::Plan plan = chain_plan(rows, 0, true, {});
      static uint64_t shape = 100;
      backend->run(plan, ++shape,
                   [&] { backend->project(plan, {.weights = projection.get(), .input = input, .output = output}); });
      return read_tensor(*backend, output, rows);
    };
    const std::vector<float> all = run(0, 300);
    EXPECT_TRUE(close_to(all, product_of(matrix, values), 2e-3, 1e-4));
    for (const auto& [first, rows] : {std::pair{0, 1}, {299, 1}, {17, 8}, {100, 16}, {5, 31}, {200, 33}, {1, 130}})
      EXPECT_TRUE(same_bits(run(first, rows), slice_rows(all, c.outputs, first, rows))) << first << " " << rows;
  }
}

}  // namespace
}  // namespace tensorfold::testing
