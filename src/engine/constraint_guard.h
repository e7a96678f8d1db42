// A constraint that cannot take others down: what it throws ends its own reply.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "engine/constraint.h"

namespace tensorfold::engine {

/// Wraps a request's constraint, which may be null (then nothing is constrained). After the first exception it
/// constrains nothing more and error() says why.
class ConstraintGuard {
 public:
  ConstraintGuard() = default;
  explicit ConstraintGuard(std::shared_ptr<Constraint> constraint) : constraint_(std::move(constraint)) {}

  [[nodiscard]] bool active() const { return constraint_ != nullptr; }
  [[nodiscard]] const std::string& error() const { return error_; }

  int32_t forced(std::span<const int32_t> path) {
    return guarded(-1, [&] { return constraint_->forced(path); });
  }
  bool mask(std::span<const int32_t> path, std::span<uint32_t> bits) {
    return guarded(false, [&] { return constraint_->mask(path, bits); });
  }
  size_t accepts(std::span<const int32_t> path, std::span<const int32_t> drafts) {
    return guarded(drafts.size(), [&] { return constraint_->accepts(path, drafts); });
  }
  void commit(std::span<const int32_t> tokens) {
    guarded(0, [&] {
      constraint_->commit(tokens);
      return 0;
    });
  }
  bool finished() {
    return guarded(false, [&] { return constraint_->finished(); });
  }

 private:
  template <typename Value, typename Call>
  Value guarded(Value otherwise, const Call& call) {
    if (!constraint_) return otherwise;
    try {
      return call();
    } catch (const std::exception& problem) {
      error_ = problem.what();
      constraint_.reset();
      return otherwise;
    }
  }

  std::shared_ptr<Constraint> constraint_;
  std::string error_;
};

}  // namespace tensorfold::engine
