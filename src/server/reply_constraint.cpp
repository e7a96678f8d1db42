#include "server/reply_constraint.h"

#include <algorithm>
#include <string_view>
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

class GateState {
 public:
  GateState(std::shared_ptr<const CallGate> gate, const TokensByBytes& tokens)
      : gate_(std::move(gate)), tokens_(&tokens), place_(gate_->think_end >= 0 ? Place::thinking : Place::opening) {
    if (place_ == Place::opening && gate_->opening.empty()) place_ = Place::name;
  }
  [[nodiscard]] int32_t forced() const {
    switch (place_) {
      case Place::after_thinking:
        return gate_->after_thinking[step_];
      case Place::opening:
        return gate_->opening[step_];
      case Place::thinking:
      case Place::name:
      case Place::free:
        return -1;
    }
    return -1;
  }
  bool mask(std::span<uint32_t> bits) const {
    if (place_ != Place::name) return false;
    std::fill(bits.begin(), bits.end(), 0U);
    for (const int32_t token : name_tokens()) {
      const auto index = static_cast<size_t>(token);
      if (index / 32 < bits.size()) bits[index / 32] |= 1U << (index % 32);
    }
    return true;
  }
  [[nodiscard]] bool allows(int32_t token) const {
    if (place_ == Place::name) {
      const std::vector<int32_t> allowed = name_tokens();
      return std::find(allowed.begin(), allowed.end(), token) != allowed.end();
    }
    return forced() < 0 || forced() == token;
  }
  void advance(int32_t token) {
    switch (place_) {
      case Place::thinking:
        if (token == gate_->think_end) enter(gate_->after_thinking.empty() ? Place::opening : Place::after_thinking);
        break;
      case Place::after_thinking:
        if (++step_ == gate_->after_thinking.size()) enter(Place::opening);
        break;
      case Place::opening:
        if (++step_ == gate_->opening.size()) enter(Place::name);
        break;
      case Place::name:
        advance_name(token);
        break;
      case Place::free:
        break;
    }
  }

 private:
  enum class Place { thinking, after_thinking, opening, name, free };
  void enter(Place place) {
    place_ = place;
    step_ = 0;
  }
  /// Names that begin with what was written.
  [[nodiscard]] bool fits(const std::string& name) const { return name.compare(0, written_.size(), written_) == 0; }
  /// Tokens that write on in some name, or to its end and beyond.
  [[nodiscard]] std::vector<int32_t> name_tokens() const {
    std::vector<int32_t> allowed;
    for (const std::string& name : gate_->names) {
      if (!fits(name)) continue;
      const std::string_view rest = std::string_view(name).substr(written_.size());
      for (size_t length = 1; length < rest.size(); ++length) {
        if (const int32_t token = tokens_->find(rest.substr(0, length)); token >= 0) allowed.push_back(token);
      }
      tokens_->append_with_prefix(rest, allowed);
    }
    return allowed;
  }
  void advance_name(int32_t token) {
    written_ += tokens_->bytes_of(token);
    const bool unfinished = std::any_of(gate_->names.begin(), gate_->names.end(), [this](const std::string& name) {
      return fits(name) && written_.size() < name.size();
    });
    if (!unfinished) enter(Place::free);
  }

  std::shared_ptr<const CallGate> gate_;
  const TokensByBytes* tokens_;
  Place place_;
  size_t step_ = 0;
  std::string written_;
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

TokensByBytes::TokensByBytes(const text::Tokenizer& tokenizer) : places_(tokenizer.vocabulary_size(), -1) {
  for (int32_t id = 0; id < static_cast<int32_t>(places_.size()); ++id) {
    if (tokenizer.is_added(id)) continue;
    std::string bytes = tokenizer.token_bytes(id);
    if (!bytes.empty()) sorted_.emplace_back(std::move(bytes), id);
  }
  std::sort(sorted_.begin(), sorted_.end());
  for (size_t i = 0; i < sorted_.size(); ++i) places_[static_cast<size_t>(sorted_[i].second)] = static_cast<int32_t>(i);
}

int32_t TokensByBytes::find(std::string_view bytes) const {
  const auto found = std::lower_bound(sorted_.begin(), sorted_.end(), bytes,
                                      [](const auto& entry, std::string_view key) { return entry.first < key; });
  return found != sorted_.end() && found->first == bytes ? found->second : -1;
}

void TokensByBytes::append_with_prefix(std::string_view prefix, std::vector<int32_t>& tokens) const {
  auto entry = std::lower_bound(sorted_.begin(), sorted_.end(), prefix,
                                [](const auto& one, std::string_view key) { return one.first < key; });
  for (; entry != sorted_.end() && entry->first.compare(0, prefix.size(), prefix) == 0; ++entry) {
    tokens.push_back(entry->second);
  }
}

std::string_view TokensByBytes::bytes_of(int32_t token) const {
  if (token < 0 || static_cast<size_t>(token) >= places_.size()) return {};
  const int32_t place = places_[static_cast<size_t>(token)];
  return place < 0 ? std::string_view() : std::string_view(sorted_[static_cast<size_t>(place)].first);
}

std::unique_ptr<engine::Constraint> thinking_budget(int32_t budget, std::vector<int32_t> close, int32_t think_end) {
  return std::make_unique<Automaton<BudgetState>>(BudgetState(budget, std::move(close), think_end));
}

std::unique_ptr<engine::Constraint> call_gate(CallGate gate, const TokensByBytes& tokens) {
  return std::make_unique<Automaton<GateState>>(GateState(std::make_shared<const CallGate>(std::move(gate)), tokens));
}

std::unique_ptr<engine::Constraint> all_of(std::vector<std::unique_ptr<engine::Constraint>> parts) {
  if (parts.empty()) return nullptr;
  if (parts.size() == 1) return std::move(parts.front());
  return std::make_unique<All>(std::move(parts));
}

}  // namespace tensorfold::server
