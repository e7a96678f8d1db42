#include "engine/reference_pool.h"

#include "base/error.h"

namespace tensorfold::engine {

ReferencePool::ReferencePool(int32_t count) : references_(static_cast<size_t>(count), 0) {
  for (int32_t id = count; id-- > 0;) free_.push_back(id);
}

std::optional<int32_t> ReferencePool::allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t id = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(id)] = 1;
  return id;
}

void ReferencePool::retain(int32_t id) {
  check(references(id) > 0, "a free page was retained");
  ++references_[static_cast<size_t>(id)];
}

bool ReferencePool::release(int32_t id) {
  check(references(id) > 0, "a free page was released");
  if (--references_[static_cast<size_t>(id)] > 0) return false;
  free_.push_back(id);
  return true;
}

int32_t ReferencePool::references(int32_t id) const {
  check(id >= 0 && id < size(), "a page id is out of range");
  return references_[static_cast<size_t>(id)];
}

}  // namespace tensorfold::engine
