// Products of many rows: the bits of the row product, in every form and epilogue.
#include "backend/cuda/prompt_product.h"

#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/device_array.h"
#include "backend/cuda/pack.h"

namespace tensorfold::backend::cuda {
namespace {

template <typename T>
DeviceArray<T> upload(const std::vector<T>& values) {
  DeviceArray<T> array(values.size());
  cuda_check(cudaMemcpy(array.data(), values.data(), array.bytes(), cudaMemcpyHostToDevice), "upload");
  return array;
}

uint16_t to_bf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>(bits >> 16);
}

/// A random 4-bit matrix and random rows with scales.
class Problem {
 public:
  Problem(int outputs, int inputs, bool paired, int rows, uint64_t seed) : rows_(rows) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    packed_ = make_layout(WeightFormat::affine4, outputs, inputs, paired, 132);
    data_ = DeviceArray<uint8_t>(packed_bytes(packed_));
    cuda_check(cudaMemset(data_.data(), 0, data_.bytes()), "clear");
    packed_.data = data_.data();
    const size_t values = static_cast<size_t>(outputs) * static_cast<size_t>(inputs);
    std::vector<uint32_t> codes(values / 8);
    for (auto& v : codes) v = static_cast<uint32_t>(random());
    std::vector<uint16_t> scales(values / 64);
    std::vector<uint16_t> biases(values / 64);
    for (auto& v : scales) v = to_bf16(normal(random) * 0.01F);
    for (auto& v : biases) v = to_bf16(normal(random) * 0.05F);
    const auto codes_at = upload(codes);
    const auto scales_at = upload(scales);
    const auto biases_at = upload(biases);
    PackSource source;
    source.codes = codes_at.data();
    source.scales = scales_at.data();
    source.biases = biases_at.data();
    source.inputs = inputs;
    source.rows = outputs;
    pack_rows(source, data_.data(), packed_, nullptr, nullptr);
    cuda_check(cudaDeviceSynchronize(), "pack");
    std::vector<uint16_t> x(tiled_rows() * static_cast<size_t>(inputs), 0x7FC0);  // absent rows: NaN
    for (int row = 0; row < rows; ++row)
      for (int k = 0; k < inputs; ++k) x[static_cast<size_t>(tile_index(row, k, inputs))] = to_bf16(normal(random));
    input_ = upload(x);
    std::vector<float> row_scales(static_cast<size_t>(rows));
    for (auto& v : row_scales) v = 0.5F + std::abs(normal(random));
    row_scales_ = upload(row_scales);
    count_ = upload(std::vector<int32_t>{rows});
    partials_ = DeviceArray<float>(row_product_partials(packed_, 4));
    arrivals_ = DeviceArray<uint32_t>(row_product_arrivals(packed_));
    cuda_check(cudaMemset(arrivals_.data(), 0, arrivals_.bytes()), "clear");
  }

  /// The output's bytes, poisoned before, by prompt products or by row products of 32 rows.
  std::vector<uint8_t> run(bool prompt, ProductEpilogue epilogue, bool bf16) {
    const int width = epilogue == ProductEpilogue::swiglu ? packed_.outputs / 2 : packed_.outputs;
    const auto stride = static_cast<size_t>((width + 7) / 8 * 8);
    std::vector<uint8_t> bytes(tiled_rows() * stride * (bf16 ? 2 : 4), 0x3F);
    const auto output = upload(bytes);
    RowProduct p;
    p.weights = packed_;
    p.input = {input_.data(), packed_.groups * kGroupInputs, 0, packed_.groups * kGroupInputs, 1};
    p.row_count = count_.data();
    p.row_scales = row_scales_.data();
    p.output = {const_cast<uint8_t*>(output.data()), static_cast<int64_t>(stride), 0, width, bf16 ? 1 : 0};
    p.epilogue = epilogue;
    p.partials = partials_.data();
    p.arrivals = arrivals_.data();
    if (prompt) {
      launch_prompt_product(p, rows_, 132, nullptr);
    } else {
      for (; p.first_row < rows_; p.first_row += kMostRowsAProduct) launch_row_product(p, 4, {132, 98304, 2}, nullptr);
    }
    cuda_check(cudaDeviceSynchronize(), "multiply");
    cuda_check(cudaMemcpy(bytes.data(), output.data(), bytes.size(), cudaMemcpyDeviceToHost), "read");
    return bytes;
  }

 private:
  [[nodiscard]] size_t tiled_rows() const { return static_cast<size_t>((rows_ + 127) / 128 * 128); }

  int rows_;
  PackedWeights packed_;
  DeviceArray<uint8_t> data_;
  DeviceArray<uint16_t> input_;
  DeviceArray<float> row_scales_;
  DeviceArray<int32_t> count_;
  DeviceArray<float> partials_;
  DeviceArray<uint32_t> arrivals_;
};

void check(int outputs, int inputs, bool paired, int rows) {
  SCOPED_TRACE(testing::Message() << rows << " rows, " << outputs << " x " << inputs << (paired ? " paired" : ""));
  Problem problem(outputs, inputs, paired, rows, static_cast<uint64_t>(outputs + rows));
  const auto same = [&](ProductEpilogue epilogue, bool bf16, const char* what) {
    EXPECT_EQ(problem.run(true, epilogue, bf16), problem.run(false, epilogue, bf16)) << what;
  };
  same(ProductEpilogue::store, true, "bf16");
  same(ProductEpilogue::store, false, "fp32");
  same(ProductEpilogue::add, false, "added");
  if (paired) same(ProductEpilogue::swiglu, true, "SwiGLU");
}

TEST(PromptProduct, HasTheBitsOfTheRowProduct) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no NVIDIA GPU";
  check(16480, 320, false, 512);  // 256 rows a piece
  check(34816, 128, true, 300);   // 128
  check(1040, 320, false, 200);   // 64
  check(520, 64, false, 33);      // a tile in part, one group
  check(5120, 1088, false, 300);  // slices
  check(5120, 6144, false, 700);
  check(384, 384, true, 129);
}

}  // namespace
}  // namespace tensorfold::backend::cuda
