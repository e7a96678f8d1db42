// Compares what a checkpoint holds with what its family reads, and gives the family its tensors.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "families/model.h"
#include "format/quantization.h"
#include "format/synthetic_store.h"
#include "format/tensor_store.h"

namespace tensorfold::families {

/// Checks every tensor of `store`: missing, unknown, wrong shape, wrong dtype, packing that contradicts config.json.
/// Throws one Error(corrupt_file) that names all of it; returns notes on what is skipped, one a kind.
std::vector<std::string> check_inventory(std::span<const TensorSpec> inventory, std::span<const SkippedTensors> skipped,
                                         const format::TensorStore& store, const format::Quantization& quantization);

/// How a converter with this quantisation stores a module: packed where the inputs are whole groups, routers and other
/// matrices that converters leave alone only where config.json names them.
std::optional<format::AffineFormat> packing_of(const TensorSpec& spec, const format::Quantization& quantization);

/// Random weights for an inventory (bench --synthetic, tests), packed as `quantization` says; modules whose inputs are
/// not whole groups, and routers and other modules that it excludes, are bf16.
std::unique_ptr<format::SyntheticStore> make_synthetic_store(std::span<const TensorSpec> inventory,
                                                             const format::Quantization& quantization, uint64_t seed);

/// Bytes that the weights of an inventory take, from shapes and the config alone.
struct WeightBytes {
  uint64_t total = 0;
  uint64_t resident = 0;  ///< without what stays on disk
  uint64_t read = 0;      ///< by one row: all but embedding tables
};
WeightBytes count_bytes(std::span<const TensorSpec> inventory, const format::Quantization& quantization);

/// Loads a checked checkpoint's tensors by module name.
class WeightLoader {
 public:
  /// All of these outlive the loader.
  WeightLoader(std::span<const TensorSpec> inventory, const format::TensorStore& store,
               const format::Quantization& quantization, backend::Backend& backend);

  [[nodiscard]] bool has(std::string_view module) const;
  /// The matrices of `modules` over the same input, stacked in this order.
  std::unique_ptr<backend::Projection> projection(std::span<const std::string> modules);
  std::unique_ptr<backend::Projection> projection(std::initializer_list<std::string> modules) {
    return projection(std::span(modules.begin(), modules.size()));
  }
  std::unique_ptr<backend::Embedding> embedding(const std::string& module);
  /// The tensor `name` in fp32, plus `shift` (zero-centred norms store w of a multiplier 1 + w).
  std::unique_ptr<backend::Vector> vector(const std::string& name, float shift = 0.0F);
  /// The same on the host.
  std::vector<float> values(const std::string& name);
  /// 64-bit constants, or nothing where the checkpoint has none of this name.
  [[nodiscard]] std::optional<std::vector<int64_t>> integers(const std::string& name) const;
  /// The table whose rows `modules` hold one after the other.
  std::unique_ptr<backend::NgramTable> ngram_table(const backend::NgramHashing& hashing,
                                                   std::span<const std::string> modules);
  /// Bytes that the projections loaded so far read for one row.
  [[nodiscard]] uint64_t projection_bytes() const { return projection_bytes_; }

 private:
  [[nodiscard]] const TensorSpec& spec_of(const std::string& module) const;
  [[nodiscard]] format::Linear linear(const std::string& module) const;
  /// Says which tensors come next (in the inventory's order, which families load in), so that a disk works on while one
  /// is repacked.
  void reach(const std::string& module);

  /// A tensor of the inventory and the bytes of all before it.
  struct Ahead {
    const format::TensorInfo* tensor = nullptr;
    uint64_t before = 0;
  };
  std::vector<Ahead> order_;
  std::map<std::string_view, size_t> first_;  ///< of a module's or vector's tensors in order_
  size_t expected_ = 0;                       ///< how many of order_ have been named to the store
  std::map<std::string_view, const TensorSpec*> modules_;
  const format::TensorStore& store_;
  const format::Quantization& quantization_;
  backend::Backend& backend_;
  uint64_t projection_bytes_ = 0;
};

}  // namespace tensorfold::families
