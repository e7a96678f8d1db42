// What sequences leave behind: a family describes it as a table, a backend allocates and interprets it, the engine
// counts pages and slots without knowing the family.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tensorfold::backend {

/// Per token and layer: `width` values in pages (keys and values, latents, index keys, ...).
struct PagedEntry {
  std::string name;
  int64_t width = 0;
};

/// Gated delta rule with its causal convolution (specs: Qwen3.8-27B A.5). State of one sequence:
/// S [value_heads][value_dim][key_dim] in fp32, then the last kernel-1 raw input rows [kernel-1][channels].
struct GatedDeltaShape {
  int32_t key_heads = 0;
  int32_t value_heads = 0;
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  int32_t kernel = 4;
  [[nodiscard]] int64_t channels() const { return 2LL * key_heads * key_dim + 1LL * value_heads * value_dim; }
  /// Values of one sequence's state.
  [[nodiscard]] int64_t state_values() const {
    return 1LL * value_heads * value_dim * key_dim + (kernel - 1) * channels();
  }
};

/// Mamba-2 with its causal convolution (specs: Nemotron 3.5, 3). State of one sequence: S [heads][head_dim][state] in
/// fp32, then the last kernel-1 raw input rows [kernel-1][channels]; channels: x [heads][head_dim], B and C
/// [groups][state] each.
struct Mamba2Shape {
  int32_t heads = 0;
  int32_t head_dim = 0;
  int32_t state = 0;
  int32_t groups = 1;  ///< head h reads B and C of group h / (heads / groups)
  int32_t kernel = 4;
  [[nodiscard]] int64_t values() const { return 1LL * heads * head_dim; }
  [[nodiscard]] int64_t channels() const { return values() + 2LL * groups * state; }
  [[nodiscard]] int64_t state_values() const { return values() * state + (kernel - 1) * channels(); }
};

/// A causal convolution whose taps lie `dilation` positions apart. State of one sequence: its last rows() input rows
/// [rows()][channels], oldest first.
struct DilatedConvolutionShape {
  int64_t channels = 0;
  int32_t kernel = 4;
  int32_t dilation = 1;
  [[nodiscard]] int64_t rows() const { return 1LL * (kernel - 1) * dilation; }
  [[nodiscard]] int64_t state_values() const { return rows() * channels; }
};

/// Kimi Delta Attention with its causal convolution (specs: GLM-5.3-Flash 6.3). State of one sequence: S [heads][dim
/// of the value][dim of the key] in fp32, then the last kernel-1 raw input rows [kernel-1][channels]; channels: q, k
/// and v, [heads][dim] each.
struct KimiDeltaShape {
  int32_t heads = 0;
  int32_t dim = 0;
  int32_t kernel = 4;
  [[nodiscard]] int64_t values() const { return 1LL * heads * dim; }
  [[nodiscard]] int64_t channels() const { return 3 * values(); }
  [[nodiscard]] int64_t state_values() const { return values() * dim + (kernel - 1) * channels(); }
};

/// A recurrent state: one a sequence, replaced at every token. `shape` selects the step function; a further recurrence
/// is a further alternative here and a further case in each backend.
struct StateEntry {
  std::string name;
  std::variant<GatedDeltaShape, Mamba2Shape, DilatedConvolutionShape, KimiDeltaShape> shape;
};

using CacheEntry = std::variant<PagedEntry, StateEntry>;

/// Everything a model (or a draft head) keeps for a sequence; operations name an entry by its index.
struct CacheLayout {
  std::vector<CacheEntry> entries;
};

/// How much to allocate.
struct CacheSize {
  int32_t page_tokens = 64;  ///< tokens a page; any value >= 1 gives the same bits
  int32_t pages = 0;
  int32_t state_slots = 0;
  int32_t window_rows = 0;  ///< most rows one plan may have
};

/// Memory of one layout; owned by the engine, interpreted by the backend that made it.
class Cache {
 public:
  virtual ~Cache() = default;
  [[nodiscard]] virtual const CacheLayout& layout() const = 0;
  [[nodiscard]] virtual const CacheSize& size() const = 0;
  /// Bytes of one page over all paged entries, and of one state slot over all state entries, as read_page and
  /// read_state deliver them.
  [[nodiscard]] virtual int64_t page_bytes() const = 0;
  [[nodiscard]] virtual int64_t state_bytes() const = 0;
};

}  // namespace tensorfold::backend
