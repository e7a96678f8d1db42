// The row product against float64, and its bits: one row or many, few thread blocks or many.
#include "backend/cuda/row_product.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "backend/cuda/device_array.h"
#include "backend/cuda/pack.h"

namespace tensorfold::backend::cuda {
namespace {

uint16_t to_bf16(double value) {
  const auto f = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &f, 4);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

float from_bf16(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float f = 0;
  std::memcpy(&f, &word, 4);
  return f;
}

template <typename T>
DeviceArray<T> upload(const std::vector<T>& values) {
  DeviceArray<T> array(values.size());
  cuda_check(cudaMemcpy(array.data(), values.data(), array.bytes(), cudaMemcpyHostToDevice), "upload");
  return array;
}

struct Problem {
  int outputs;
  int inputs;
  bool dense;
  bool paired;
  std::vector<float> weights;  // [outputs][inputs], as dequantised
  std::vector<uint16_t> rows;  // [32][inputs]
  PackedWeights packed;
  DeviceArray<uint8_t> data;

  Problem(int n, int k, bool is_dense, bool is_paired, uint64_t seed)
      : outputs(n), inputs(k), dense(is_dense), paired(is_paired) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    const size_t values = static_cast<size_t>(n) * static_cast<size_t>(k);
    weights.resize(values);
    rows.resize(static_cast<size_t>(32) * static_cast<size_t>(k));
    for (auto& v : rows) v = to_bf16(normal(random) * (random() % 97 == 0 ? 30.0 : 1.0));
    packed = make_layout(dense ? WeightFormat::dense : WeightFormat::affine4, n, k, paired, 132);
    data = DeviceArray<uint8_t>(packed_bytes(packed));
    cuda_check(cudaMemset(data.data(), 0, data.bytes()), "clear");
    packed.data = data.data();
    DeviceArray<int32_t> overflow(1);
    cuda_check(cudaMemset(overflow.data(), 0, 4), "clear");
    PackSource source;
    source.inputs = k;
    source.rows = n;
    DeviceArray<uint32_t> codes_at;
    DeviceArray<uint16_t> scales_at;
    DeviceArray<uint16_t> biases_at;
    DeviceArray<uint16_t> values_at;
    if (dense) {
      std::vector<uint16_t> bits(values);
      for (size_t i = 0; i < values; ++i) {
        bits[i] = to_bf16(normal(random) * 0.05);
        weights[i] = from_bf16(bits[i]);
      }
      values_at = upload(bits);
      source.values = values_at.data();
    } else {
      std::vector<uint32_t> codes(values / 8);
      for (auto& v : codes) v = static_cast<uint32_t>(random());
      std::vector<uint16_t> scales(values / 64);
      std::vector<uint16_t> biases(values / 64);
      for (size_t i = 0; i < scales.size(); ++i) {
        scales[i] =
            to_bf16((random() % 7 == 0 ? -1 : 1) * std::abs(normal(random)) * (random() % 50 == 0 ? 0.1 : 0.01));
        biases[i] = to_bf16(normal(random) * 0.05);
      }
      for (size_t i = 0; i < values; ++i) {
        const double code = (codes[i / 8] >> (4 * (i % 8))) & 15U;
        weights[i] = from_bf16(to_bf16(std::fma(code, from_bf16(scales[i / 64]), from_bf16(biases[i / 64]))));
      }
      codes_at = upload(codes);
      scales_at = upload(scales);
      biases_at = upload(biases);
      source.codes = codes_at.data();
      source.scales = scales_at.data();
      source.biases = biases_at.data();
    }
    // In three pieces, as a loader reads them.
    for (int piece = 0; piece < 3; ++piece) {
      const int begin = n * piece / 3;
      PackSource part = source;
      part.rows = n * (piece + 1) / 3 - begin;
      part.first_output = begin;
      if (dense) {
        part.values = static_cast<const uint16_t*>(source.values) + static_cast<int64_t>(begin) * k;
      } else {
        part.codes = source.codes + static_cast<int64_t>(begin) * k / 8;
        part.scales = static_cast<const uint16_t*>(source.scales) + static_cast<int64_t>(begin) * k / 64;
        part.biases = static_cast<const uint16_t*>(source.biases) + static_cast<int64_t>(begin) * k / 64;
      }
      pack_rows(part, data.data(), packed, overflow.data(), nullptr);
    }
    int32_t flag = 1;
    cuda_check(cudaMemcpy(&flag, overflow.data(), 4, cudaMemcpyDeviceToHost), "read");
    EXPECT_EQ(flag, 0);
  }

  /// fp32 outputs [32][outputs] of rows [first, first + count), the others poisoned.
  std::vector<float> run(int first, int count, int row_tiles, int blocks, int stages,
                         ProductEpilogue epilogue = ProductEpilogue::store) const {
    const size_t size = static_cast<size_t>(32) * static_cast<size_t>(outputs);
    std::vector<float> result(size, epilogue == ProductEpilogue::add ? 1.5F : NAN);
    const auto output = upload(result);
    const auto exist = upload(std::vector<int32_t>{count});
    std::vector<uint16_t> tiles(static_cast<size_t>(32) * static_cast<size_t>(inputs), 0x7FC0);  // absent rows: NaN
    for (int row = 0; row < count; ++row)
      for (int k = 0; k < inputs; ++k)
        tiles[static_cast<size_t>(tile_index(row, k, inputs))] =
            rows[static_cast<size_t>(first + row) * static_cast<size_t>(inputs) + static_cast<size_t>(k)];
    const auto input = upload(tiles);
    DeviceArray<float> partials(row_product_partials(packed, row_tiles));
    DeviceArray<uint32_t> flags(row_product_arrivals(packed));
    cuda_check(cudaMemset(partials.data(), 0xFF, partials.bytes()), "poison");
    cuda_check(cudaMemset(flags.data(), 0, flags.bytes()), "clear");
    RowProduct p;
    p.weights = packed;
    p.input = {input.data(), inputs, 0, inputs, 1};
    p.row_count = exist.data();
    p.output = {output.data() + static_cast<int64_t>(first) * outputs, outputs, 0, outputs, 0};
    p.epilogue = epilogue;
    p.partials = partials.data();
    p.arrivals = flags.data();
    launch_row_product(p, row_tiles, {blocks, stages * 49152, stages}, nullptr);
    cuda_check(cudaDeviceSynchronize(), "run");
    cuda_check(cudaMemcpy(result.data(), output.data(), output.bytes(), cudaMemcpyDeviceToHost), "read");
    return result;
  }

  [[nodiscard]] double exact(int row, int output) const {
    double sum = 0;
    const auto k = static_cast<size_t>(inputs);
    for (size_t i = 0; i < k; ++i)
      sum += static_cast<double>(weights[static_cast<size_t>(output) * k + i]) *
             static_cast<double>(from_bf16(rows[static_cast<size_t>(row) * k + i]));
    return sum;
  }
};

void check_shape(int outputs, int inputs, bool dense, bool paired) {
  SCOPED_TRACE(testing::Message() << outputs << " x " << inputs << (dense ? " dense" : " affine")
                                  << (paired ? " paired" : ""));
  const Problem problem(outputs, inputs, dense, paired, static_cast<uint64_t>(outputs * 31 + inputs));
  const auto all = problem.run(0, 32, 4, 132, 3);
  double error = 0;
  double size = 0;
  for (int row = 0; row < 32; row += 5)
    for (int output = 0; output < outputs; output += 1 + outputs / 300) {
      const double truth = problem.exact(row, output);
      const double difference = static_cast<double>(all[static_cast<size_t>(row * outputs + output)]) - truth;
      error += difference * difference;
      size += truth * truth;
    }
  EXPECT_LT(std::sqrt(error / size), 3e-5) << "against float64";
  std::printf("%d x %d: error %.2e of the root mean square\n", outputs, inputs, std::sqrt(error / size));
  const auto same = [&](const std::vector<float>& other, int first, int count, const char* what) {
    const auto from = static_cast<size_t>(first) * static_cast<size_t>(outputs);
    const auto bytes = static_cast<size_t>(count) * static_cast<size_t>(outputs) * 4;
    EXPECT_EQ(std::memcmp(other.data() + from, all.data() + from, bytes), 0) << what;
  };
  same(problem.run(0, 32, 4, 7, 2), 0, 32, "32 rows, 7 thread blocks");
  same(problem.run(0, 16, 2, 132, 2), 0, 16, "16 rows");
  same(problem.run(3, 8, 1, 264, 3), 3, 8, "8 rows");
  same(problem.run(0, 5, 1, 131, 3), 0, 5, "5 rows");
  for (const int row : {0, 1, 7, 8, 18, 31}) same(problem.run(row, 1, 1, 100 + row, 3), row, 1, "one row alone");
  const auto added = problem.run(0, 32, 4, 132, 3, ProductEpilogue::add);
  size_t wrong = 0;
  for (size_t i = 0; i < all.size(); ++i) wrong += added[i] != 1.5F + all[i] ? 1 : 0;
  EXPECT_EQ(wrong, 0U) << "the residual epilogue";
  if (!paired) return;
  const auto gated = problem.run(0, 8, 1, 132, 3, ProductEpilogue::swiglu);
  double worst = 0;
  for (int row = 0; row < 8; ++row)
    for (int i = 0; i < outputs / 2; ++i) {
      const auto at = static_cast<size_t>(row * outputs + i);
      const double gate = static_cast<double>(all[at]);
      const double truth =
          gate / (1 + std::exp(-gate)) * static_cast<double>(all[at + static_cast<size_t>(outputs) / 2]);
      worst = std::max(worst, std::abs(static_cast<double>(gated[at]) - truth) / (1e-3 + std::abs(truth)));
    }
  EXPECT_LT(worst, 1e-5) << "swiglu";
}

TEST(RowProduct, GivesOneRowsBitsAtEveryWidthAndMachineSize) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no NVIDIA GPU";
  check_shape(1040, 320, false, false);
  check_shape(96, 64, false, false);
  check_shape(5120, 17408, false, false);
  check_shape(16480, 5120, false, false);
  check_shape(5120, 6144, false, false);
  check_shape(34816, 5120, false, true);
  check_shape(384, 384, false, true);
  check_shape(520, 1088, true, false);
  check_shape(2048, 5120, true, true);
}

}  // namespace
}  // namespace tensorfold::backend::cuda
