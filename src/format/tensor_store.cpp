#include "format/tensor_store.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tensorfold::format {
namespace {

/// A tensor in memory.
class CopiedTensor final : public TensorBytes {
 public:
  explicit CopiedTensor(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  void read(uint64_t offset, std::span<std::byte> out) const override {
    check(offset <= bytes_.size() && out.size() <= bytes_.size() - offset, "a read stays inside its tensor");
    const auto first = bytes_.begin() + static_cast<std::ptrdiff_t>(offset);
    std::copy(first, first + static_cast<std::ptrdiff_t>(out.size()), out.begin());
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

std::shared_ptr<const TensorBytes> TensorStore::keep_open(const TensorInfo& tensor) const {
  std::vector<std::byte> bytes(tensor.bytes);
  read(tensor, 0, bytes);
  return std::make_shared<CopiedTensor>(std::move(bytes));
}

}  // namespace tensorfold::format
