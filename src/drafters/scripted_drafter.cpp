#include "drafters/scripted_drafter.h"

#include <algorithm>

#include "backend/keyed_sampling.h"

namespace tensorfold::drafters {

void ScriptedDrafter::learn(std::span<const int32_t> prompt, std::span<const int32_t> reply) {
  const std::lock_guard lock(mutex_);
  std::vector<int32_t> script(prompt.begin(), prompt.end());
  script.insert(script.end(), reply.begin(), reply.end());
  scripts_.push_back(std::move(script));
}

void ScriptedDrafter::open(int32_t lane, std::span<const int32_t> context, int32_t /*cached*/) {
  const std::lock_guard lock(mutex_);
  auto& candidates = lanes_[lane];
  candidates.clear();
  for (size_t i = 0; i < scripts_.size(); ++i) {
    const std::vector<int32_t>& script = scripts_[i];
    if (script.size() >= context.size() && std::equal(context.begin(), context.end(), script.begin())) {
      candidates.push_back(i);
    }
  }
}

int32_t ScriptedDrafter::truth(std::span<const int32_t> context) {
  for (const auto& [lane, candidates] : lanes_) {
    for (const size_t i : candidates) {
      const std::vector<int32_t>& script = scripts_[i];
      if (script.size() > context.size() && std::equal(context.begin(), context.end(), script.begin())) {
        return script[context.size()];
      }
    }
  }
  return -1;
}

uint64_t ScriptedDrafter::next_random() { return backend::keyed::finalise(options_.seed + ++draws_ * 0x9E3779B9ULL); }

void ScriptedDrafter::propose(std::span<const DraftRequest> requests, std::span<Draft> out) {
  const std::lock_guard lock(mutex_);
  const auto other = [&](int32_t than) {
    const auto token = static_cast<int32_t>(next_random() % static_cast<uint64_t>(options_.vocabulary));
    return token == than ? (token + 1) % options_.vocabulary : token;
  };
  for (size_t i = 0; i < requests.size(); ++i) {
    Draft& draft = out[i];
    draft = {};
    std::vector<int32_t> context(requests[i].context.begin(), requests[i].context.end());
    const auto room = [&] { return static_cast<int32_t>(draft.tokens.size()) < requests[i].most; };
    int32_t parent = -1;
    while (room()) {
      const int32_t wanted = truth(context);
      const uint64_t luck = options_.by_position
                                ? backend::keyed::finalise(options_.seed + context.size() * 0x9E3779B9ULL)
                                : next_random();
      const bool right = wanted >= 0 && static_cast<double>(luck >> 11) * 0x1p-53 < options_.acceptance;
      const int32_t main_token = right ? wanted : other(wanted);
      // The main token stands at a random place among its siblings.
      const auto branches = static_cast<uint64_t>(std::max(1, options_.branches));
      const uint64_t place = next_random() % branches;
      int32_t main_row = -1;
      for (uint64_t branch = 0; branch < branches && room(); ++branch) {
        if (branch == place) main_row = static_cast<int32_t>(draft.tokens.size());
        draft.tokens.push_back(branch == place ? main_token : other(wanted));
        draft.parents.push_back(parent);
      }
      if (main_row < 0) break;
      parent = main_row;
      context.push_back(main_token);
    }
    if (options_.branches <= 1) draft.parents.clear();
  }
}

}  // namespace tensorfold::drafters
