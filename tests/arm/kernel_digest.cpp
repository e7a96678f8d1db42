// Prints a digest of what every kernel of a SIMD level makes of fixed random inputs. scripts/check-arm-kernels runs it
// here and, compiled for 64-bit Arm, in an emulator: the lines must be equal.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/scalar_math.h"

namespace tensorfold::backend::cpu {
namespace {

/// The same numbers on every machine.
class Numbers {
 public:
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  float value() { return static_cast<float>(static_cast<int64_t>(next() % 20001) - 10000) * 3e-4F; }
  std::vector<float> values(int64_t count) {
    std::vector<float> result(static_cast<size_t>(count));
    for (float& v : result) v = value();
    return result;
  }

 private:
  uint64_t state_ = 0x9E3779B97F4A7C15;
};

void print(const std::string& name, const std::vector<float>& values) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const float value : values) hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001B3;
  std::printf("%s %016llx %g\n", name.c_str(), static_cast<unsigned long long>(hash),
              static_cast<double>(values.front()));
}

void products(const KernelTable& kernels, Numbers& numbers) {
  for (const CodeKind kind : {CodeKind::nibble, CodeKind::byte, CodeKind::bf16, CodeKind::f32}) {
    for (const int64_t group : {32, 64, 128}) {
      PackedMatrix matrix;
      matrix.kind = kind;
      matrix.group = kind == CodeKind::nibble || kind == CodeKind::byte ? group : 0;
      const int64_t inputs = 384;
      const int64_t pairs = matrix.pair_bytes(inputs);
      AlignedBytes slice(static_cast<size_t>(pairs + matrix.code_bytes(inputs) + 8192), "a slice");
      for (size_t i = 0; i < slice.size(); ++i) slice.data()[i] = static_cast<std::byte>(numbers.next());
      for (int64_t i = 0; i < pairs / 2; ++i) {
        const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(numbers.value()) >> 16);
        std::memcpy(slice.data() + 2 * i, &half, 2);
      }
      if (matrix.group == 0) {  // any bits could be NaN; these are not
        for (int64_t i = 0; i < matrix.code_bytes(inputs) / 2; ++i) {
          const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(numbers.value()) >> 16);
          std::memcpy(slice.data() + 2 * i, &half, 2);
        }
      }
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8}) {
        const std::vector<float> x = numbers.values(inputs * rows);
        AlignedBytes panel(static_cast<size_t>(inputs * kTileOutputs * 4 + 8192), "a panel");
        std::vector<float> sums(static_cast<size_t>(rows * kTileOutputs));
        kernels.unpack_slice(matrix, slice.data(), inputs, panel.floats());
        for (int64_t r = 0; r < rows; r += kTileRows) {
          const int64_t count = rows - r < kTileRows ? rows - r : kTileRows;
          kernels.dot_tile(x.data() + r * 16, rows, count, panel.floats(), inputs, sums.data() + r * kTileOutputs);
        }
        print("dot_tile", sums);
        kernels.dot_slice(matrix, slice.data(), inputs, x.data(), rows, panel.floats(), sums.data());
        print("dot_slice", sums);
        std::vector<float> columns(static_cast<size_t>(inputs), 0.5F);
        kernels.add_transposed(panel.floats(), inputs, x.data(), columns.data());
        print("add_transposed", columns);
      }
    }
  }
}

void rows(const KernelTable& kernels, Numbers& numbers) {
  for (const int64_t n : {5, 16, 100, 256}) {
    const std::vector<float> a = numbers.values(n);
    const std::vector<float> b = numbers.values(n);
    std::vector<float> y(static_cast<size_t>(n));
    kernels.rms_norm(a.data(), b.data(), n, 1e-6F, y.data());
    print("rms_norm", y);
    kernels.swiglu(a.data(), b.data(), n, y.data());
    print("swiglu", y);
    kernels.multiply_sigmoid(b.data(), n, y.data());
    kernels.multiply_silu(a.data(), n, y.data());
    kernels.add(a.data(), n, y.data());
    kernels.scale(0.3F, n, y.data());
    print("elementwise", y);
    kernels.limited_swiglu(a.data(), b.data(), 0.5F, n, y.data());
    print("limited_swiglu", y);
    kernels.geglu(a.data(), b.data(), n, y.data());
    print("geglu", y);
    kernels.add_scaled(0.7F, a.data(), n, y.data());
    kernels.soft_cap(1.5F, n, y.data());
    print("soft_cap", y);
    kernels.relu_squared(y.data(), n, y.data());
    print("relu_squared", y);
    kernels.layer_norm(a.data(), b.data(), b.data(), n, 1e-6F, y.data());
    print("layer_norm", y);
    const std::vector<float> weights = numbers.values(15);
    std::vector<float> streams = numbers.values(3 * n);
    kernels.read_streams(streams.data(), weights.data(), 3, n, y.data());
    kernels.write_streams(y.data(), weights.data() + 3, weights.data() + 6, 3, n, streams.data());
    print("streams", streams);
    const float* history[] = {a.data(), b.data(), a.data(), y.data()};
    std::vector<float> convolved(static_cast<size_t>(n));
    const std::vector<float> taps = numbers.values(4 * n);
    kernels.convolve(history, taps.data(), taps.data(), 4, n, convolved.data());
    print("convolve", convolved);
  }
}

void mixers(const KernelTable& kernels, Numbers& numbers) {
  for (const int64_t dim : {20, 64, 128}) {
    const int64_t value_dim = dim + 12;
    std::vector<float> state = numbers.values(dim * value_dim);
    const std::vector<float> query = numbers.values(dim);
    const std::vector<float> key = numbers.values(dim);
    const std::vector<float> value = numbers.values(value_dim);
    std::vector<float> y(static_cast<size_t>(value_dim));
    std::vector<float> scan(static_cast<size_t>(value_dim));
    std::vector<float> scanned = state;
    kernels.mamba_step({scanned.data(), state.data(), value.data(), query.data(), key.data(), 0.9F, 0.4F, 1.1F,
                        value_dim, dim, scan.data()});
    print("mamba_step", scan);
    print("mamba_state", scanned);
    std::vector<float> decays;
    for (const float number : key) decays.push_back(0.5F + 0.1F * number);
    for (const float* each : {static_cast<const float*>(nullptr), static_cast<const float*>(decays.data())}) {
      kernels.delta_step({.state = state.data(),
                          .source = state.data(),
                          .query = query.data(),
                          .key = key.data(),
                          .value = value.data(),
                          .decay = 0.9F,
                          .decays = each,
                          .beta = 0.4F,
                          .key_dim = dim,
                          .value_dim = value_dim,
                          .output = y.data()});
      print("delta_step", y);
      print("delta_state", state);
    }
    kernels.channel_decay(query.data(), key.data(), 0.7F, -5.0F, dim, decays.data());
    print("channel_decay", decays);

    const int64_t heads = 7;
    const std::vector<float> cache = numbers.values(150 * (dim + value_dim));
    std::vector<const float*> keys;
    for (int64_t j = 0; j < 150; ++j) keys.push_back(cache.data() + j * (dim + value_dim));
    const std::vector<float> queries = numbers.values(heads * dim);
    std::vector<float> results(static_cast<size_t>(heads * (value_dim + 2)));
    kernels.attend(
        {keys.data(), 37, 150, 0, dim, dim, value_dim, heads, queries.data(), 0.1F, results.data(), value_dim + 2});
    print("attend", results);
    std::vector<float> pooled(static_cast<size_t>(dim / 2));
    kernels.pool_mean(keys.data(), 4, dim / 2, pooled.data());
    print("pool_mean", pooled);
    kernels.pool_gated(keys.data(), queries.data(), 4, dim / 2, pooled.data());
    print("pool_gated", pooled);
    std::vector<float> scores(150);
    kernels.score_blocks({keys.data(), 150, queries.data(), value.data(), heads, dim, 0.1F, scores.data()});
    print("score_blocks", scores);
    kernels.merge(results.data(), heads, value_dim + 2, value_dim, y.data());
    print("merge", y);
  }
}

void scalars(Numbers& numbers) {
  std::vector<float> y;
  for (int i = 0; i < 1000; ++i) {
    const auto x = static_cast<double>(numbers.value());
    const SineCosine turn = portable_sine_cosine(x * 1e4);
    y.insert(y.end(), {turn.sine, turn.cosine, static_cast<float>(portable_decay(x, x * 7.0)),
                       static_cast<float>(portable_sigmoid(x * 9.0))});
  }
  print("scalars", y);
}

}  // namespace
}  // namespace tensorfold::backend::cpu

int main(int count, char** arguments) {
  using namespace tensorfold::backend::cpu;
  try {
    const KernelTable& kernels = select_kernels(count > 1 ? arguments[1] : "");
    std::fprintf(stderr, "level %s\n", kernels.level);
    Numbers numbers;
    products(kernels, numbers);
    rows(kernels, numbers);
    mixers(kernels, numbers);
    scalars(numbers);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
