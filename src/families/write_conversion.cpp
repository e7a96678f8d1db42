// The work of a conversion: rows are read, packed by all threads and written to their places, a block at a time.
#include <algorithm>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/thread_pool.h"
#include "families/conversion.h"
#include "format/affine_encoder.h"
#include "format/floats.h"
#include "format/safetensors_writer.h"

namespace tensorfold::families {
namespace {

using format::DataType;
using format::TensorInfo;

/// Bytes of the original that are held at once.
constexpr uint64_t kBlockBytes = uint64_t{64} << 20;

DataType type_of(const ConvertedTensor& tensor) { return tensor.sources.front().tensor->type; }

/// The files' tensors that a converted one becomes.
std::vector<TensorInfo> outputs_of(const ConvertedTensor& tensor) {
  if (!tensor.packing) return {{tensor.name, type_of(tensor), tensor.shape}};
  std::vector<int64_t> words = tensor.shape;
  std::vector<int64_t> pairs = tensor.shape;
  words.back() = words.back() * tensor.packing->bits / 32;
  pairs.back() /= tensor.packing->group_size;
  return {{tensor.name + ".weight", DataType::u32, words},
          {tensor.name + ".scales", type_of(tensor), pairs},
          {tensor.name + ".biases", type_of(tensor), pairs}};
}

uint64_t bytes_of(const TensorInfo& tensor) {
  auto bytes = static_cast<uint64_t>(format::size_of(tensor.type));
  for (const int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

struct Shard {
  std::string file;
  std::vector<const ConvertedTensor*> tensors;
};

/// Tensors in order, a new shard where one would grow beyond `most`. A draft head that has no prefix of its own goes to
/// a side file, as its readers expect.
std::vector<Shard> divide(const std::vector<ConvertedTensor>& tensors, uint64_t most) {
  std::vector<Shard> shards(1);
  Shard head;
  uint64_t filled = 0;
  for (const ConvertedTensor& tensor : tensors) {
    if (tensor.draft_head && tensor.name.starts_with("layers.")) {
      head.tensors.push_back(&tensor);
      continue;
    }
    uint64_t bytes = 0;
    for (const TensorInfo& output : outputs_of(tensor)) bytes += bytes_of(output);
    if (filled > 0 && filled + bytes > most) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().tensors.push_back(&tensor);
    filled += bytes;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1 ? "model.safetensors"
                                        : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  if (!head.tensors.empty()) {
    const auto packed = std::find_if(head.tensors.begin(), head.tensors.end(),
                                     [](const ConvertedTensor* tensor) { return tensor->packing.has_value(); });
    head.file = packed == head.tensors.end() ? "mtp.safetensors"
                                             : fmt::format("mtp-{}bit.safetensors", (*packed)->packing->bits);
    shards.push_back(std::move(head));
  }
  return shards;
}

class Converter {
 public:
  Converter(const format::TensorStore& store, const std::function<void(uint64_t, uint64_t)>& progress, uint64_t all)
      : store_(store), progress_(progress), all_(all) {}

  void convert(const ConvertedTensor& tensor, format::SafetensorsWriter& writer) {
    int64_t done = 0;  // rows of the result
    for (const SourceRows& source : tensor.sources) {
      const int64_t width = source.tensor->shape.empty() ? 1 : source.tensor->shape.back();
      const auto row_bytes = static_cast<uint64_t>(width * format::size_of(source.tensor->type));
      const auto step = static_cast<int64_t>(std::max<uint64_t>(1, kBlockBytes / row_bytes));
      for (int64_t row = 0; row < source.count; row += step) {
        const int64_t count = std::min(step, source.count - row);
        bytes_.resize(static_cast<size_t>(count) * row_bytes);
        store_.read(*source.tensor, static_cast<uint64_t>(source.first + row) * row_bytes, bytes_);
        tensor.packing ? pack(tensor, source.tensor->type, width, count, done, writer)
                       : keep(tensor, source.tensor->type, done * static_cast<int64_t>(row_bytes), writer);
        done += count;
        read_ += bytes_.size();
        if (progress_) progress_(read_, all_);
      }
      if (&source == &tensor.sources.back() || (&source)[1].tensor != source.tensor) store_.release(*source.tensor);
    }
  }

 private:
  void keep(const ConvertedTensor& tensor, DataType type, int64_t offset, format::SafetensorsWriter& writer) {
    const auto size = static_cast<size_t>(format::size_of(type));
    if (type != type_of(tensor) || tensor.shift != 0.0F) {
      std::vector<float> values(bytes_.size() / size);
      format::widen(type, bytes_, values);
      for (float& value : values) value += tensor.shift;
      check(type == type_of(tensor), "sources of one type");
      format::narrow(type, values, bytes_);
    }
    writer.write(tensor.name, static_cast<uint64_t>(offset), bytes_);
  }

  void pack(const ConvertedTensor& tensor, DataType type, int64_t width, int64_t rows, int64_t first,
            format::SafetensorsWriter& writer) {
    const auto inputs = static_cast<size_t>(width);
    const size_t code_bytes = inputs * static_cast<size_t>(tensor.packing->bits) / 8;
    const size_t groups = inputs / static_cast<size_t>(tensor.packing->group_size);
    const size_t source_bytes = inputs * static_cast<size_t>(format::size_of(type));
    const size_t pair_bytes = groups * static_cast<size_t>(format::size_of(type_of(tensor)));
    const auto count = static_cast<size_t>(rows);
    codes_.resize(count * code_bytes);
    scales_.resize(count * pair_bytes);
    biases_.resize(count * pair_bytes);
    threads_.run(rows, [&](int64_t begin, int64_t end, int) {
      std::vector<float> values(inputs);
      std::vector<float> scales(groups);
      std::vector<float> biases(groups);
      for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
        format::widen(type, std::span(bytes_).subspan(row * source_bytes, source_bytes), values);
        format::encode_affine_row(values, *tensor.packing, std::span(codes_).subspan(row * code_bytes, code_bytes),
                                  scales, biases);
        format::narrow(type_of(tensor), scales, std::span(scales_).subspan(row * pair_bytes, pair_bytes));
        format::narrow(type_of(tensor), biases, std::span(biases_).subspan(row * pair_bytes, pair_bytes));
      }
    });
    const auto done = static_cast<uint64_t>(first);
    writer.write(tensor.name + ".weight", done * code_bytes, codes_);
    writer.write(tensor.name + ".scales", done * pair_bytes, scales_);
    writer.write(tensor.name + ".biases", done * pair_bytes, biases_);
  }

  const format::TensorStore& store_;
  const std::function<void(uint64_t, uint64_t)>& progress_;
  uint64_t all_;
  uint64_t read_ = 0;
  ThreadPool threads_;
  std::vector<std::byte> bytes_, codes_, scales_, biases_;
};

void write_index(const std::map<std::string, std::string>& files, uint64_t bytes, const std::filesystem::path& path) {
  const nlohmann::json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", files}};
  std::ofstream out(path);
  out << index.dump(4) << '\n';
  if (!out.flush()) fail(ErrorKind::io, "{}: cannot write", path.string());
}

}  // namespace

ConversionResult write_conversion(const std::vector<ConvertedTensor>& tensors, const format::TensorStore& store,
                                  const std::filesystem::path& directory, uint64_t shard_bytes,
                                  const std::function<void(uint64_t, uint64_t)>& progress) {
  uint64_t all = 0;
  ConversionResult result;
  for (const ConvertedTensor& tensor : tensors) {
    for (const SourceRows& source : tensor.sources) {
      const int64_t width = source.tensor->shape.empty() ? 1 : source.tensor->shape.back();
      all += static_cast<uint64_t>(source.count * width * format::size_of(source.tensor->type));
    }
    ++(tensor.packing ? result.packed : result.plain);
  }
  Converter converter(store, progress, all);
  std::map<std::string, std::string> files;
  uint64_t indexed = 0;
  for (const Shard& shard : divide(tensors, shard_bytes)) {
    std::vector<TensorInfo> outputs;
    for (const ConvertedTensor* tensor : shard.tensors) {
      const std::vector<TensorInfo> own = outputs_of(*tensor);
      outputs.insert(outputs.end(), own.begin(), own.end());
    }
    format::SafetensorsWriter writer(directory / shard.file, outputs);
    for (const ConvertedTensor* tensor : shard.tensors) converter.convert(*tensor, writer);
    writer.finish();
    result.bytes += writer.data_bytes();
    ++result.shards;
    if (shard.file.starts_with("mtp")) continue;  // beside the index, as published ones are
    indexed += writer.data_bytes();
    for (const TensorInfo& output : outputs) files[output.name] = shard.file;
  }
  write_index(files, indexed, directory / "model.safetensors.index.json");
  return result;
}

}  // namespace tensorfold::families
