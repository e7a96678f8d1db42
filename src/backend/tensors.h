// What operations work on: activations, weights as a backend keeps them, and which rows of a plan are meant.
#pragma once

#include <cstdint>
#include <memory>

namespace tensorfold::backend {

/// Device memory; what lies inside is the backend's business.
class Buffer {
 public:
  virtual ~Buffer() = default;
};

/// How activations are kept. `full`: fp32 everywhere; the residual stream, logits, and whatever a caller is unsure of.
/// `product`: values that only pass between two operations of a layer (product outputs, attention and delta outputs,
/// the MLP's inner rows): a backend whose products read bf16 keeps them as bf16, the others as fp32.
enum class Precision { full, product };

/// Activations: one row a plan row (or a logit row), `width` values of the backend's activation type, from column
/// `offset` of rows that are `stride` values apart.
struct Tensor {
  Buffer* buffer = nullptr;
  int64_t width = 0;
  int64_t stride = 0;
  int64_t offset = 0;
  [[nodiscard]] Tensor columns(int64_t first, int64_t count) const { return {buffer, count, stride, offset + first}; }
  explicit operator bool() const { return buffer != nullptr; }
};

/// A tensor that owns its buffer.
struct OwnedTensor {
  std::unique_ptr<Buffer> memory;
  Tensor view;
  operator Tensor() const { return view; }
};

/// One or more matrices over the same input, stacked along the outputs and repacked for this backend.
class Projection {
 public:
  virtual ~Projection() = default;
  [[nodiscard]] virtual int64_t outputs() const = 0;
  [[nodiscard]] virtual int64_t inputs() const = 0;
  /// Bytes that one product reads.
  [[nodiscard]] virtual uint64_t bytes() const = 0;
};

/// A table of rows looked up by token id.
class Embedding {
 public:
  virtual ~Embedding() = default;
};

/// A small fp32 vector or matrix: norm weights, convolution taps, decays, rotary frequencies.
class Vector {
 public:
  virtual ~Vector() = default;
  [[nodiscard]] virtual int64_t size() const = 0;
};

/// Which rows of the plan an operation covers. `logits`: the rows in Plan::logit_rows, output row j from plan row
/// logit_rows[j].
enum class RowSet { all, logits };

}  // namespace tensorfold::backend
