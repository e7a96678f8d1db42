#include "cli/synthetic_checkpoint.h"

#include <algorithm>
#include <exception>
#include <fstream>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "families/checkpoint.h"
#include "format/quantization.h"
#include "format/safetensors_writer.h"

namespace tensorfold::cli {
namespace {

constexpr uint64_t kShardBytes = uint64_t{2} << 30;
constexpr size_t kPieceBytes = size_t{16} << 20;

void write_shard(const format::TensorStore& store, std::span<const format::TensorInfo> tensors,
                 const std::filesystem::path& path) {
  format::SafetensorsWriter writer(path, tensors);
  std::vector<std::byte> piece;
  for (const format::TensorInfo& tensor : tensors) {
    for (uint64_t at = 0; at < tensor.bytes; at += piece.size()) {
      piece.resize(std::min<uint64_t>(kPieceBytes, tensor.bytes - at));
      store.read(tensor, at, piece);
      writer.write(tensor.name, at, piece);
    }
  }
  writer.finish();
}

/// Tensors in order of their names, in shards of about kShardBytes.
std::vector<std::vector<format::TensorInfo>> deal(const format::TensorStore& store) {
  std::vector<std::vector<format::TensorInfo>> shards(1);
  uint64_t bytes = 0;
  for (const std::string& name : store.names()) {
    const format::TensorInfo& tensor = *store.find(name);
    if (bytes > 0 && bytes + tensor.bytes > kShardBytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(tensor);
    bytes += tensor.bytes;
  }
  return shards;
}

}  // namespace

uint64_t save_synthetic(const nlohmann::json& config, uint64_t seed, const std::filesystem::path& directory) {
  if (std::filesystem::exists(directory) && !std::filesystem::is_empty(directory))
    fail(ErrorKind::invalid_request, "{} is there and not empty", directory.string());
  std::filesystem::create_directories(directory);
  const families::Family& family = families::require_family(config);
  const std::vector<families::TensorSpec> inventory = family.inventory(config, {});
  const auto store = families::make_synthetic_store(inventory, format::Quantization::parse(config), seed);
  const auto shards = deal(*store);
  std::vector<std::exception_ptr> errors(shards.size());
  {
    std::vector<std::jthread> threads;  // a shard each: making the values takes longer than writing them
    for (size_t i = 0; i < shards.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          write_shard(*store, shards[i],
                      directory / fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  std::ofstream out(directory / "config.json");
  out << config.dump(2) << '\n';
  out.close();
  if (!out) fail(ErrorKind::io, "{}: cannot write config.json", directory.string());
  uint64_t bytes = 0;
  for (const std::string& name : store->names()) bytes += store->find(name)->bytes;
  return bytes;
}

}  // namespace tensorfold::cli
