// Cost of finding a kept prefix among many, and of writing and reading one on disk.
#include "engine/prefix_store.h"

#include <filesystem>

#include <benchmark/benchmark.h>

#include "base/digest.h"

namespace tensorfold::engine {
namespace {

backend::CacheLayout layout(int64_t width) {
  return {.entries = {backend::PagedEntry{.name = "kv", .width = width},
                      backend::StateEntry{
                          .name = "delta",
                          .shape = backend::GatedDeltaShape{
                              .key_heads = 1, .value_heads = 1, .key_dim = 128, .value_dim = 128, .kernel = 4}}}};
}

std::vector<int32_t> tokens_of(uint64_t seed, int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(mix_bits(seed * 7919 + i) % 100000));
  return tokens;
}

/// A lookup that finds the longest of `entries` kept prefixes for a prompt of 8,192 tokens.
void lookup(benchmark::State& state) {
  const auto entries = static_cast<int32_t>(state.range(0));
  const auto backend = backend::make_cpu_backend(1);
  CachePool pool(*backend, layout(1), {},
                 {.page_tokens = 64, .pages = entries * 5 + 200, .state_slots = entries + 2, .window_rows = 1});
  PrefixStore store(pool, {.device_slots = entries}, nullptr);
  std::vector<int32_t> prompt = tokens_of(0, 8192);
  for (int32_t i = 0; i < entries; ++i) {
    CacheLane lane;
    pool.open(lane);
    const int32_t length = 256 + i % 64;
    const auto tokens = i == entries / 2 ? std::vector<int32_t>(prompt.begin(), prompt.begin() + length)
                                         : tokens_of(static_cast<uint64_t>(i) + 1, length);
    pool.reserve(lane, length);
    lane.committed = length;
    store.keep(tokens, lane, KeepReason::reply_end);
    pool.close(lane);
  }
  for (auto _ : state) {
    CacheLane lane;
    pool.open(lane);
    benchmark::DoNotOptimize(store.resume(prompt, lane));
    pool.close(lane);
  }
}
BENCHMARK(lookup)->Arg(100)->Arg(10000)->Unit(benchmark::kMicrosecond);

/// Writes and reads a prefix of 64 pages of 1 MiB; bytes a second. The floor is the disk's.
void disk(benchmark::State& state, bool reading) {
  const auto folder = std::filesystem::temp_directory_path() / "tensorfold-bench-prefix";
  constexpr uint64_t page_bytes = 1 << 20;
  constexpr int32_t pages = 64;
  const SnapshotFilesOptions options{.directory = folder,
                                     .most_bytes = uint64_t{2} << 30,
                                     .identity = "bench",
                                     .page_tokens = 64,
                                     .page_bytes = page_bytes,
                                     .state_bytes = page_bytes,
                                     .log = nullptr};
  SnapshotFiles files(options);
  const auto bytes = std::make_shared<const std::vector<std::byte>>(page_bytes, std::byte{7});
  uint64_t seed = 1;
  PrefixName name = 0;
  const auto write = [&] {
    SnapshotImage image{.name = 0,
                        .length = pages * 64,
                        .parent = 0,
                        .first_page = 0,
                        .pinned = false,
                        .tokens = tokens_of(seed++, pages * 64),
                        .state = bytes,
                        .pages = {}};
    image.name = prefix_names(image.tokens).back();
    image.pages.assign(pages, bytes);
    name = image.name;
    files.write(std::move(image));
    files.flush();
  };
  write();
  for (auto _ : state) {
    if (reading) {
      benchmark::DoNotOptimize(files.read(name));
    } else {
      write();
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>((pages + 1) * page_bytes));
  std::filesystem::remove_all(folder);
}
BENCHMARK_CAPTURE(disk, write, false)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(disk, read, true)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace tensorfold::engine
