#include "backend/cuda/device_array.h"

#include <atomic>

namespace tensorfold::backend::cuda {
namespace {

std::atomic<uint64_t> changes{0};

}  // namespace

void count_memory_change() { changes += 1; }
uint64_t memory_changes() { return changes; }

}  // namespace tensorfold::backend::cuda
