#include "server/reply_constraint.h"

#include <algorithm>
#include <utility>

namespace tensorfold::server {
namespace {

/// A constraint that is a small state machine over tokens: State::forced, allowed and advance say it all, and a path is
/// walked from a copy of the committed state.
template <typename State>
class Automaton final : public engine::Constraint {
 public:
  explicit Automaton(State state) : state_(std::move(state)) {}

  int32_t forced(std::span<const int32_t> path) override { return after(path).forced(); }
  bool mask(std::span<const int32_t> path, std::span<uint32_t> bits) override { return after(path).mask(bits); }
  size_t accepts(std::span<const int32_t> path, std::span<const int32_t> drafts) override {
    State state = after(path);
    for (size_t i = 0; i < drafts.size(); ++i) {
      if (!state.allows(drafts[i])) return i;
      state.advance(drafts[i]);
    }
    return drafts.size();
  }
  void commit(std::span<const int32_t> tokens) override {
    for (const int32_t token : tokens) state_.advance(token);
  }
  [[nodiscard]] bool finished() const override { return false; }

 private:
  [[nodiscard]] State after(std::span<const int32_t> path) const {
    State state = state_;
    for (const int32_t token : path) state.advance(token);
    return state;
  }
  State state_;
};

class BudgetState {
 public:
  BudgetState(int32_t budget, std::vector<int32_t> close, int32_t think_end)
      : close_(std::make_shared<const std::vector<int32_t>>(std::move(close))), left_(budget), think_end_(think_end) {}
  [[nodiscard]] int32_t forced() const {
    if (!thinking_) return -1;
    if (closing_ > 0) return (*close_)[closing_];
    return left_ <= 1 ? close_->front() : -1;
  }
  bool mask(std::span<uint32_t>) const { return false; }
  [[nodiscard]] bool allows(int32_t token) const { return forced() < 0 || forced() == token; }
  void advance(int32_t token) {
    if (!thinking_) return;
    if (closing_ > 0 || left_ <= 1) {
      thinking_ = ++closing_ < close_->size();
      return;
    }
    --left_;
    if (token == think_end_) thinking_ = false;
  }

 private:
  std::shared_ptr<const std::vector<int32_t>> close_;
  int32_t left_;
  int32_t think_end_;
  size_t closing_ = 0;
  bool thinking_ = true;
};

class All final : public engine::Constraint {
 public:
  explicit All(std::vector<std::unique_ptr<engine::Constraint>> parts) : parts_(std::move(parts)) {}
  int32_t forced(std::span<const int32_t> path) override {
    for (const auto& part : parts_) {
      if (const int32_t token = part->forced(path); token >= 0) return token;
    }
    return -1;
  }
  bool mask(std::span<const int32_t> path, std::span<uint32_t> bits) override {
    bool masked = false;
    std::vector<uint32_t> other;
    for (const auto& part : parts_) {
      if (!masked) {
        masked = part->mask(path, bits);
        continue;
      }
      other.assign(bits.size(), 0U);
      if (!part->mask(path, other)) continue;
      for (size_t i = 0; i < bits.size(); ++i) bits[i] &= other[i];
    }
    return masked;
  }
  size_t accepts(std::span<const int32_t> path, std::span<const int32_t> drafts) override {
    size_t accepted = drafts.size();
    for (const auto& part : parts_) accepted = std::min(accepted, part->accepts(path, drafts.first(accepted)));
    return accepted;
  }
  void commit(std::span<const int32_t> tokens) override {
    for (const auto& part : parts_) part->commit(tokens);
  }
  [[nodiscard]] bool finished() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->finished(); });
  }

 private:
  std::vector<std::unique_ptr<engine::Constraint>> parts_;
};

}  // namespace

std::unique_ptr<engine::Constraint> thinking_budget(int32_t budget, std::vector<int32_t> close, int32_t think_end) {
  return std::make_unique<Automaton<BudgetState>>(BudgetState(budget, std::move(close), think_end));
}

std::unique_ptr<engine::Constraint> call_gate(CallGate gate, const TokensByBytes& tokens) {
  return std::make_unique<Automaton<CallGateState>>(
      CallGateState(std::make_shared<const CallGate>(std::move(gate)), tokens));
}

std::unique_ptr<engine::Constraint> all_of(std::vector<std::unique_ptr<engine::Constraint>> parts) {
  if (parts.empty()) return nullptr;
  if (parts.size() == 1) return std::move(parts.front());
  return std::make_unique<All>(std::move(parts));
}

}  // namespace tensorfold::server
