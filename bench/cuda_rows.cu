// How near the memory floor is the row product over all 257 products of a Qwen3.8-27B (4 bit, groups of 64, 14.41 GB),
// at 8, 16 and 32 rows? Every variant reads all weights once a pass, as a graph whose products depend on one another.
// Build and run: see docs/recipes/cuda.md. Prints one line a variant beside the measured copy and read rates.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "backend/cuda/device_array.h"
#include "backend/cuda/pack.h"
#include "backend/cuda/row_product_launch.cuh"

using namespace tensorfold::backend::cuda;

namespace {

struct Shape {
  int outputs;
  int inputs;
  bool paired;
};

__global__ void fill_kernel(uint32_t* words, size_t count, uint32_t seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint64_t x = i + seed;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    words[i] = static_cast<uint32_t>(x >> 16);
  }
}

// Scales of random packed blocks: 64 bytes of pairs after every 512 bytes of codes.
__global__ void fill_scales_kernel(uint8_t* data, size_t groups) {
  const size_t group = blockIdx.x;
  if (group >= groups) return;
  auto* pairs = reinterpret_cast<uint32_t*>(data + group * 576 + 512);
  const float scale = scalbnf(0.002F + 0.0001F * static_cast<float>(threadIdx.x), kLowScaleExponent - 64) * 0x1p64F;
  pairs[threadIdx.x] = (__float_as_uint(scale) >> 16) | (__float_as_uint(-0.016F) & 0xFFFF0000U);
}

__global__ void read_kernel(const uint4* data, size_t count, uint32_t* out) {
  uint32_t sum = 0;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  for (; i + 7 * step < count; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = __ldcs(data + i + j * step);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x12345678U) *out = sum;
}

// Stands for a norm between two products: a few blocks that wait, read and write a row.
__global__ void between_kernel(const float* in, __nv_bfloat16* out, int width) {
  allow_next_kernel();
  wait_for_previous_kernels();
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x))
    out[static_cast<size_t>(blockIdx.x) * width + i] = __float2bfloat16_rn(0.5F + 0.001F * in[i]);
}

class Bench {
 public:
  Bench() {
    cuda_check(cudaStreamCreate(&stream_), "create a stream");
    for (int layer = 0; layer < 64; ++layer) {
      shapes_.push_back({layer % 4 == 3 ? 14336 : 16480, 5120, false});
      shapes_.push_back({5120, 6144, false});
      shapes_.push_back({34816, 5120, true});
      shapes_.push_back({5120, 17408, false});
    }
    shapes_.push_back({248320, 5120, false});
    size_t bytes = 0;
    for (const Shape& s : shapes_) bytes += packed(s);
    bytes_ = bytes;
    weights_ = DeviceArray<uint8_t>(bytes);
    fill_kernel<<<1024, 256, 0, stream_>>>(reinterpret_cast<uint32_t*>(weights_.data()), bytes / 4, 7);
    fill_scales_kernel<<<static_cast<unsigned>(bytes / 576), 16, 0, stream_>>>(weights_.data(), bytes / 576);
    input_ = DeviceArray<__nv_bfloat16>(32 * 17408);
    std::vector<__nv_bfloat16> x(32 * 17408);
    for (auto& v : x) v = __float2bfloat16_rn(static_cast<float>(rand()) / static_cast<float>(RAND_MAX) - 0.5F);
    cuda_check(cudaMemcpy(input_.data(), x.data(), x.size() * 2, cudaMemcpyHostToDevice), "copy rows");
    output_ = DeviceArray<__nv_bfloat16>(static_cast<size_t>(32) * 248320);
    residual_ = DeviceArray<float>(static_cast<size_t>(32) * 34816);
    cuda_check(cudaMemset(residual_.data(), 0, residual_.bytes()), "clear");
    partials_ = DeviceArray<float>(16 * 320 * 4 * 128);
    arrivals_ = DeviceArray<uint32_t>(248320 / 16);
    cuda_check(cudaMemset(arrivals_.data(), 0, arrivals_.bytes()), "clear");
    count_ = DeviceArray<int32_t>(1);
  }

  static PackedWeights layout(const Shape& s) {
    return make_layout(WeightFormat::affine4, s.outputs, s.inputs, s.paired, 132);
  }
  static size_t packed(const Shape& s) { return packed_bytes(layout(s)); }

  template <int RowTiles>
  void time(int rows, int per_sm, int shared_kb, int stages, bool overlap, bool between) {
    const int32_t n = rows;
    cuda_check(cudaMemcpy(count_.data(), &n, 4, cudaMemcpyHostToDevice), "copy");
    constexpr WeightFormat format = WeightFormat::affine4;
    if constexpr (RowTiles < 4) allow_shared_memory(row_product_kernel<format, RowTiles>, 227 * 1024);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capture");
    size_t offset = 0;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const Shape& s = shapes_[i];
      RowProduct p;
      p.weights = layout(s);
      p.weights.data = weights_.data() + offset;
      p.input = {input_.data(), 17408, 0, s.inputs, 1};
      p.row_count = count_.data();
      const bool add = s.outputs == 5120;
      p.output = {add ? static_cast<void*>(residual_.data()) : static_cast<void*>(output_.data()), s.outputs, 0,
                  s.outputs, add ? 0 : 1};
      p.epilogue = s.paired ? ProductEpilogue::swiglu : add ? ProductEpilogue::add : ProductEpilogue::store;
      p.partials = partials_.data();
      p.arrivals = arrivals_.data();
      offset += packed(s);
      const dim3 grid(static_cast<unsigned>(132 * per_sm));
      if (between && s.inputs == 5120)
        launch(between_kernel, dim3(rows), dim3(256), 0, stream_, residual_.data(), input_.data(), 5120);
      const RowProductShape shape{132 * per_sm, shared_kb * 1024, stages};
      if constexpr (RowTiles == 4) {
        launch_row_product(p, RowTiles, shape, stream_);
      } else if (overlap) {
        launch_row_product_as<format, RowTiles>(p, shape, stream_);
      } else {
        const ProductRing ring = make_ring<format, RowTiles>(p.weights, shape);
        const int stage = ring.groups * ring_group_bytes<format, RowTiles>(p.weights);
        const auto shared = static_cast<size_t>(ring.stages * (stage + 16));
        row_product_kernel<format, RowTiles><<<grid, kProductThreads, shared, stream_>>>(p, ring);
      }
    }
    cuda_check(cudaStreamEndCapture(stream_, &graph), "end capture");
    cuda_check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<float> times;
    for (int i = 0; i < 12; ++i) {
      cudaEventRecord(begin, stream_);
      cuda_check(cudaGraphLaunch(exec, stream_), "launch");
      cudaEventRecord(end, stream_);
      cuda_check(cudaStreamSynchronize(stream_), "run the products");
      float ms = 0;
      cudaEventElapsedTime(&ms, begin, end);
      if (i > 1) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    const double ms = times[times.size() / 2];
    std::printf(
        "rows %2d blocks/SM %d ring %3d KB stages %d overlap %d norms %d: %.3f ms (best %.3f) %.2f TB/s, %.2f us "
        "each\n",
        rows, per_sm, shared_kb, stages, overlap, between, ms, times[0], static_cast<double>(bytes_) / ms / 1e9,
        ms * 1000 / static_cast<double>(shapes_.size()));
    std::fflush(stdout);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }

  /// Only products of this shape; 0: all.
  void only(int outputs, int inputs) {
    if (all_.empty()) all_ = shapes_;
    shapes_.clear();
    bytes_ = 0;
    for (const Shape& s : all_) {
      if (outputs != 0 && (s.outputs != outputs || s.inputs != inputs)) continue;
      shapes_.push_back(s);
      bytes_ += packed(s);
    }
    if (outputs != 0) std::printf("--- %d x %d, %zu products\n", outputs, inputs, shapes_.size());
  }

  void ceilings() {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    float ms = 0;
    for (int i = 0; i < 4; ++i) {
      cudaEventRecord(begin, stream_);
      read_kernel<<<132 * 8, 256, 0, stream_>>>(reinterpret_cast<const uint4*>(weights_.data()), bytes_ / 16,
                                                arrivals_.data());
      cudaEventRecord(end, stream_);
      cuda_check(cudaStreamSynchronize(stream_), "read");
      cudaEventElapsedTime(&ms, begin, end);
    }
    std::printf("weights %.2f GB; read alone %.3f ms %.2f TB/s\n", static_cast<double>(bytes_) / 1e9, ms,
                static_cast<double>(bytes_) / ms / 1e9);
    const size_t half = bytes_ / 2;
    DeviceArray<uint8_t> target(half);
    for (int i = 0; i < 4; ++i) {
      cudaEventRecord(begin, stream_);
      cudaMemcpyAsync(target.data(), weights_.data(), half, cudaMemcpyDeviceToDevice, stream_);
      cudaEventRecord(end, stream_);
      cuda_check(cudaStreamSynchronize(stream_), "copy");
      cudaEventElapsedTime(&ms, begin, end);
    }
    std::printf("copy %.2f TB/s (read + written)\n", 2.0 * static_cast<double>(half) / ms / 1e9);
  }

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<Shape> shapes_;
  std::vector<Shape> all_;
  size_t bytes_ = 0;
  DeviceArray<uint8_t> weights_;
  DeviceArray<__nv_bfloat16> input_;
  DeviceArray<__nv_bfloat16> output_;
  DeviceArray<float> residual_;
  DeviceArray<float> partials_;
  DeviceArray<uint32_t> arrivals_;
  DeviceArray<int32_t> count_;
};

}  // namespace

int main() {
  Bench bench;
  bench.ceilings();
  for (const bool between : {false, true})
    for (const bool overlap : {false, true}) {
      for (const int kb : {72, 88, 104})
        for (const int stages : {2, 3}) bench.time<1>(8, 1, kb, stages, overlap, between);
      bench.time<1>(8, 1, 160, 4, overlap, between);
      bench.time<1>(8, 1, 210, 4, overlap, between);
    }
  bench.time<1>(1, 1, 104, 3, true, true);
  for (const int stages : {2, 3}) {
    bench.time<2>(16, 1, 104, stages, true, true);
    bench.time<4>(32, 1, 104, stages, true, true);
    bench.time<4>(32, 1, 200, stages, true, true);
  }
  const int shapes[][2] = {{5120, 6144}, {16480, 5120}, {5120, 17408}, {34816, 5120}, {248320, 5120}};
  for (const auto& shape : shapes) {
    bench.only(shape[0], shape[1]);
    bench.time<1>(8, 1, 96, 3, false, false);
    bench.time<1>(8, 1, 96, 3, true, false);
    bench.time<2>(16, 1, 96, 3, true, false);
    bench.time<4>(32, 1, 96, 3, true, false);
  }
  return 0;
}
