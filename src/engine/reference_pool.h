// Which pages and state slots of a cache are in use, and by how many.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tensorfold::engine {

/// Hands out the ids 0..count-1, counted by reference. An id is free again when its last reference is released. Ids are
/// reused last in, first out. Not thread-safe.
class ReferencePool {
 public:
  explicit ReferencePool(int32_t count);
  /// A free id with one reference, or nothing.
  std::optional<int32_t> allocate();
  void retain(int32_t id);
  /// True when this was the last reference.
  bool release(int32_t id);
  [[nodiscard]] int32_t references(int32_t id) const;
  [[nodiscard]] int32_t free() const { return static_cast<int32_t>(free_.size()); }
  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(references_.size()); }

 private:
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;
};

}  // namespace tensorfold::engine
