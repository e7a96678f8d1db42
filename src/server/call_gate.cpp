#include "server/call_gate.h"

#include <algorithm>

#include "text/call_reader.h"

namespace tensorfold::server {

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

void allow_token(int32_t token, std::span<uint32_t> bits) {
  const auto index = static_cast<size_t>(token);
  if (token >= 0 && index / 32 < bits.size()) bits[index / 32] |= 1U << (index % 32);
}

void allow_all_but(std::span<const int32_t> tokens, std::span<uint32_t> bits) {
  std::fill(bits.begin(), bits.end(), ~0U);
  for (const int32_t token : tokens) {
    const auto index = static_cast<size_t>(token);
    if (token >= 0 && index / 32 < bits.size()) bits[index / 32] &= ~(1U << (index % 32));
  }
}

CallGateState::CallGateState(std::shared_ptr<const CallGate> gate, const TokensByBytes& tokens)
    : gate_(std::move(gate)), tokens_(&tokens), place_(gate_->think_end >= 0 ? Place::thinking : Place::opening) {
  if (place_ == Place::opening && gate_->opening.empty()) place_ = Place::name;
}

int32_t CallGateState::forced() const {
  switch (place_) {
    case Place::after_thinking:
      return gate_->after_thinking[step_];
    case Place::opening:
      return gate_->opening[step_];
    case Place::thinking:
    case Place::name:
    case Place::arguments:
    case Place::closed:
      return -1;
  }
  return -1;
}

bool CallGateState::mask(std::span<uint32_t> bits) const {
  if (place_ == Place::thinking || place_ == Place::arguments) {
    if (gate_->end_tokens.empty()) return false;
    allow_all_but(gate_->end_tokens, bits);
    return true;
  }
  if (place_ != Place::name) return false;
  std::fill(bits.begin(), bits.end(), 0U);
  for (const int32_t token : name_tokens()) allow_token(token, bits);
  return true;
}

bool CallGateState::allows(int32_t token) const {
  const auto is_among = [token](const std::vector<int32_t>& tokens) {
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
  };
  if (place_ == Place::name) return is_among(name_tokens());
  if (place_ == Place::thinking || place_ == Place::arguments) return !is_among(gate_->end_tokens);
  return forced() < 0 || forced() == token;
}

void CallGateState::advance(int32_t token) {
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
    case Place::arguments:
      advance_arguments(token);
      break;
    case Place::closed:
      break;
  }
}

void CallGateState::enter(Place place) {
  place_ = place;
  step_ = 0;
}

std::vector<int32_t> CallGateState::name_tokens() const {
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

void CallGateState::advance_name(int32_t token) {
  written_ += tokens_->bytes_of(token);
  const bool unfinished = std::any_of(gate_->names.begin(), gate_->names.end(), [this](const std::string& name) {
    return fits(name) && written_.size() < name.size();
  });
  if (unfinished) return;
  enter(gate_->closer.empty() ? Place::closed : Place::arguments);
  find_closer();
}

void CallGateState::advance_arguments(int32_t token) {
  if (token == gate_->closer_token) return enter(Place::closed);
  written_ += tokens_->bytes_of(token);
  find_closer();
}

void CallGateState::find_closer() {
  if (place_ != Place::arguments) return;
  if (text::find_tag(written_, gate_->closer, 0) != std::string_view::npos) return enter(Place::closed);
  if (written_.size() >= gate_->closer.size()) written_.erase(0, written_.size() - gate_->closer.size() + 1);
}

}  // namespace tensorfold::server
