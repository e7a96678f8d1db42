#include "backend/backend.h"

#include "base/error.h"

namespace tensorfold::backend {
namespace {

[[noreturn]] void refuse(const Backend& backend, const char* operation) {
  fail(ErrorKind::unsupported, "the {} backend has no {} yet", backend.info().name, operation);
}

}  // namespace

void Backend::norm_add(const Plan&, const NormAdd&) { refuse(*this, "normed addition"); }
void Backend::soft_cap(const Plan&, const SoftCap&) { refuse(*this, "soft cap"); }
void Backend::experts(const Plan&, const Experts&) { refuse(*this, "mixture of experts"); }
void Backend::mamba2(const Plan&, const Mamba2&) { refuse(*this, "Mamba-2 step"); }

}  // namespace tensorfold::backend
