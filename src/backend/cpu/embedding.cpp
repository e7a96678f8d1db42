// Tables of rows that are looked up: token embeddings, in memory as they lie on disk, and hashed n-gram tables, on
// disk. A row is dequantised when it is looked up: value = fma(code, scale, bias).
#include <algorithm>
#include <exception>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/lanes_portable.h"
#include "base/error.h"
#include "format/floats.h"

namespace tensorfold::backend::cpu {
namespace {

/// Bytes of one row.
struct PackedRow {
  std::span<const std::byte> codes, scales, biases;
};

/// Room for decoding rows, used again from one to the next.
struct DecodeRoom {
  std::vector<std::byte> bytes;
  std::vector<uint8_t> codes;
  std::vector<float> pairs;
};

void decode_row(const TableFormat& table, const PackedRow& row, DecodeRoom& room, float* to) {
  const auto width = static_cast<size_t>(table.width);
  if (table.bits == 0) return format::widen(table.type, row.codes, {to, width});
  const auto groups = static_cast<size_t>(table.width / table.group);
  room.codes.resize(width);
  room.pairs.resize(2 * groups);
  unpack_affine_codes(row.codes, table.bits, room.codes);
  const std::span<float> pairs(room.pairs);
  format::widen(table.type, row.scales, pairs.first(groups));
  format::widen(table.type, row.biases, pairs.last(groups));
  for (size_t k = 0; k < width; ++k) {
    const size_t group = k / static_cast<size_t>(table.group);
    to[k] = fused_multiply_add(static_cast<float>(room.codes[k]), pairs[group], pairs[group + groups]);
  }
}

TableFormat format_of(const format::Linear& linear) {
  check_linear(linear);
  TableFormat table;
  table.rows = linear.outputs;
  table.width = linear.inputs;
  table.type = linear.affine ? linear.scales->type : linear.weight->type;
  table.row_bytes = static_cast<int64_t>(linear.weight->bytes) / linear.outputs;
  if (linear.affine) {
    table.bits = linear.affine->bits;
    table.group = linear.affine->group_size;
    table.pair_row_bytes = static_cast<int64_t>(linear.scales->bytes) / linear.outputs;
  }
  return table;
}

/// A table of several tensors whose rows follow one another.
struct CpuNgramTable final : NgramTable {
  struct Shard {
    int64_t first_row = 0;
    TableFormat format;
    std::shared_ptr<const format::TensorBytes> codes, scales, biases;
  };

  [[nodiscard]] int64_t width() const override {
    return static_cast<int64_t>(hashing.sizes.size()) * shards.front().format.width;
  }
  void look_up(int64_t row, DecodeRoom& room, float* to) const {
    const auto after = std::upper_bound(shards.begin(), shards.end(), row,
                                        [](int64_t wanted, const Shard& shard) { return wanted < shard.first_row; });
    const Shard& shard = *std::prev(after);
    const auto place = static_cast<uint64_t>(row - shard.first_row);
    const auto codes = static_cast<size_t>(shard.format.row_bytes);
    const auto pairs = static_cast<size_t>(shard.format.pair_row_bytes);
    room.bytes.resize(codes + 2 * pairs);
    const std::span<std::byte> bytes(room.bytes);
    const PackedRow packed{bytes.first(codes), bytes.subspan(codes, pairs), bytes.last(pairs)};
    shard.codes->read(place * codes, bytes.first(codes));
    if (shard.format.bits != 0) {
      shard.scales->read(place * pairs, bytes.subspan(codes, pairs));
      shard.biases->read(place * pairs, bytes.last(pairs));
    }
    decode_row(shard.format, packed, room, to);
  }

  NgramHashing hashing;
  std::vector<Shard> shards;
};

}  // namespace

std::unique_ptr<Embedding> CpuBackend::load_embedding(const format::Linear& linear) {
  auto table = std::make_unique<CpuEmbedding>();
  table->format = format_of(linear);
  const auto read = [&](const format::TensorInfo& tensor) {
    AlignedBytes bytes(tensor.bytes, "an embedding table");
    linear.store->read(tensor, 0, {bytes.data(), bytes.size()});
    return bytes;
  };
  table->codes = read(*linear.weight);
  if (linear.affine) {
    table->scales = read(*linear.scales);
    table->biases = read(*linear.biases);
  }
  return table;
}

void CpuBackend::embed(const Plan& plan, const Embedding& any, float scale, Tensor output) {
  const auto& table = static_cast<const CpuEmbedding&>(any);
  const TableFormat& format = table.format;
  for (const int32_t token : plan.tokens) check(token >= 0 && token < format.rows, "a token outside the vocabulary");
  const auto row_of_bytes = [](const AlignedBytes& bytes, int64_t row, int64_t row_bytes) {
    return std::span<const std::byte>(bytes.data() + row * row_bytes, static_cast<size_t>(row_bytes));
  };
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    DecodeRoom room;
    for (int64_t row = begin; row < end; ++row) {
      const int32_t token = plan.tokens[static_cast<size_t>(row)];
      PackedRow packed{row_of_bytes(table.codes, token, format.row_bytes), {}, {}};
      if (format.bits != 0) {
        packed.scales = row_of_bytes(table.scales, token, format.pair_row_bytes);
        packed.biases = row_of_bytes(table.biases, token, format.pair_row_bytes);
      }
      float* to = row_of(output, row);
      decode_row(format, packed, room, to);
      if (scale != 1.0F) kernels_.scale(scale, format.width, to);
    }
  });
}

std::unique_ptr<NgramTable> CpuBackend::load_ngram_table(const NgramHashing& hashing,
                                                         std::span<const format::Linear> shards) {
  check(!shards.empty() && !hashing.sizes.empty(), "an n-gram table of nothing");
  auto table = std::make_unique<CpuNgramTable>();
  table->hashing = hashing;
  int64_t rows = 0;
  for (const format::Linear& linear : shards) {
    check(linear.inputs == shards.front().inputs, "shards of different widths");
    CpuNgramTable::Shard shard{rows, format_of(linear), linear.store->keep_open(*linear.weight), nullptr, nullptr};
    if (linear.affine) {
      shard.scales = linear.store->keep_open(*linear.scales);
      shard.biases = linear.store->keep_open(*linear.biases);
    }
    table->shards.push_back(std::move(shard));
    rows += linear.outputs;
  }
  for (size_t j = 0; j < hashing.sizes.size(); ++j) {
    check(hashing.sizes[j] > 0 && hashing.offsets[j] >= 0 && hashing.offsets[j] + hashing.sizes[j] <= rows,
          "an n-gram head outside its table");
  }
  return table;
}

void CpuBackend::ngram_embed(const Plan& plan, const NgramTable& any, Tensor output) {
  const auto& table = static_cast<const CpuNgramTable&>(any);
  check(output.width == table.width(), "n-grams into rows of another width");
  const auto look_up_rows = [&](int64_t begin, int64_t end) {
    DecodeRoom room;
    std::vector<int64_t> rows(table.hashing.sizes.size());
    for (int64_t row = begin; row < end; ++row) {
      hash_ngrams(table.hashing, plan, static_cast<int32_t>(row), rows);
      float* to = row_of(output, row);
      for (const int64_t found : rows) {
        table.look_up(found, room, to);
        to += table.shards.front().format.width;
      }
    }
  };
  // Reading files may fail, and no exception may leave a worker.
  std::vector<std::exception_ptr> failures(static_cast<size_t>(threads_.size()));
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int worker) {
    try {
      look_up_rows(begin, end);
    } catch (...) {
      failures[static_cast<size_t>(worker)] = std::current_exception();
    }
  });
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace tensorfold::backend::cpu
