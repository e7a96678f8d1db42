// Weights on the device: what is made there equals what the host makes, and a matrix packs to the same bytes whichever
// way it came.
#include "backend/cuda/weights.h"

#include <cstring>
#include <random>
#include <vector>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "backend/cuda/synthetic_weights.h"
#include "format/floats.h"
#include "format/synthetic_store.h"

namespace tensorfold::backend::cuda {
namespace {

class CudaWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no NVIDIA GPU";
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream");
  }
  void TearDown() override {
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }
  template <typename T>
  std::vector<T> read(const DeviceArray<T>& array) {
    cuda_check(cudaStreamSynchronize(stream_), "wait");
    std::vector<T> values(array.size());
    cuda_check(cudaMemcpy(values.data(), array.data(), array.bytes(), cudaMemcpyDeviceToHost), "read");
    return values;
  }
  cudaStream_t stream_ = nullptr;
};

format::SyntheticStore make_store(uint64_t seed) {
  format::SyntheticStore store(seed);
  store.add_linear("packed", {104, 320}, format::AffineFormat{4, 64});
  store.add_linear("three", {40, 320}, format::AffineFormat{3, 64});
  store.add_linear("large", {9000, 5120}, format::AffineFormat{4, 64});  // two pieces
  store.add_linear("plain", {72, 320}, std::nullopt);
  store.add_vector("vector", {77}, 1.0F, 0.1F);
  return store;
}

/// The same tensors, read as if from files.
class ReadStore : public format::TensorStore {
 public:
  explicit ReadStore(const format::TensorStore& store) : store_(store) {}
  [[nodiscard]] const format::TensorInfo* find(std::string_view name) const override { return store_.find(name); }
  [[nodiscard]] std::vector<std::string> names() const override { return store_.names(); }
  void read(const format::TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const override {
    store_.read(tensor, offset, out);
  }

 private:
  const format::TensorStore& store_;
};

format::Linear linear_of(const format::TensorStore& store, const std::string& name, int64_t outputs, int64_t inputs,
                         std::optional<format::AffineFormat> affine) {
  return {&store,
          1,
          outputs,
          inputs,
          affine,
          store.find(name + ".weight"),
          store.find(name + ".scales"),
          store.find(name + ".biases")};
}

TEST_F(CudaWeights, AreMadeAsTheHostMakesThem) {
  std::mt19937_64 random(std::random_device{}());
  const format::SyntheticStore store = make_store(random());
  for (const std::string& name : store.names()) {
    const format::TensorInfo& tensor = *store.find(name);
    for (int trial = 0; trial < 6; ++trial) {
      const uint64_t offset = trial == 0 ? 0 : random() % tensor.bytes;
      const size_t bytes = trial == 0 ? tensor.bytes : 1 + random() % (tensor.bytes - offset);
      DeviceArray<std::byte> made(bytes + 64);
      cuda_check(cudaMemset(made.data(), 0xA5, made.bytes()), "poison");
      launch_synthetic(*store.recipe(tensor), offset, bytes, made.data(), stream_);
      std::vector<std::byte> expected(bytes + 64, std::byte{0xA5});
      store.read(tensor, offset, std::span(expected).first(bytes));
      ASSERT_TRUE(read(made) == expected) << name << " " << offset << " " << bytes;
    }
  }
}

TEST_F(CudaWeights, PackToTheSameBytesWhicheverWayTheyCame) {
  const format::SyntheticStore made = make_store(std::random_device{}());
  const ReadStore files(made);
  WeightPipeline pipeline;
  const auto load = [&](const format::TensorStore& store, const std::vector<std::string>& names) {
    std::vector<format::Linear> stacked;
    for (const std::string& name : names) {
      const std::optional<format::AffineFormat> affine =
          name == "plain" ? std::nullopt : std::optional<format::AffineFormat>({name == "three" ? 3 : 4, 64});
      const format::TensorInfo& rows = *store.find(name + (affine ? ".scales" : ".weight"));
      stacked.push_back(linear_of(store, name, rows.shape[0], affine ? rows.shape[1] * 64 : rows.shape[1], affine));
    }
    return load_packed_projection(stacked, 132, pipeline, stream_);
  };
  const std::vector<std::string> stacks[] = {{"packed"}, {"packed", "three"}, {"plain", "packed"}, {"large"}};
  for (const auto& names : stacks) {
    const auto one = load(made, names);
    const auto other = load(files, names);
    EXPECT_EQ(one->packed.format, names.front() == "plain" ? WeightFormat::dense : WeightFormat::affine4);
    EXPECT_TRUE(read(one->memory) == read(other->memory)) << names.front();
    pipeline.release();
  }
}

TEST_F(CudaWeights, AScaleTooLargeForThePackedFormatIsFound) {
  format::SyntheticStore small(1);
  small.add_linear("m", {16, 64}, format::AffineFormat{2, 64});

  struct Louder : ReadStore {
    using ReadStore::ReadStore;
    void read(const format::TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const override {
      ReadStore::read(tensor, offset, out);
      if (tensor.name != "m.scales" || out.size() < 32) return;
      const uint16_t scale = format::float_to_bf16(0.5F);
      std::memcpy(out.data() + 6, &scale, sizeof scale);
    }
  };
  const Louder loud(small);
  WeightPipeline pipeline;
  const format::Linear quiet_linear = linear_of(small, "m", 16, 64, format::AffineFormat{2, 64});
  const format::Linear loud_linear = linear_of(loud, "m", 16, 64, format::AffineFormat{2, 64});
  EXPECT_EQ(load_packed_projection({&quiet_linear, 1}, 132, pipeline, stream_)->packed.format, WeightFormat::affine4);
  EXPECT_EQ(load_packed_projection({&loud_linear, 1}, 132, pipeline, stream_)->packed.format, WeightFormat::dense);
}

}  // namespace
}  // namespace tensorfold::backend::cuda
