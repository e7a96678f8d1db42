#include "server/grammar_constraint.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"

namespace tensorfold::server {
namespace {

using text::grammar::Matcher;
using Standing = Matcher::Standing;

class GrammarConstraint final : public engine::Constraint {
 public:
  GrammarConstraint(std::shared_ptr<Matcher> matcher, GrammarPlacement placement)
      : matcher_(std::move(matcher)), placement_(std::move(placement)), cursor_(matcher_->begin()) {
    if (placement_.starts_in_reasoning) committed_.phase = Phase::reasoning;
  }

  int32_t forced(std::span<const int32_t>) override { return -1; }

  bool mask(std::span<const int32_t> path, std::span<uint32_t> bits) override {
    const Place place = after(path);
    if (place.phase != Phase::answer) return false;
    const Standing standing = matcher_->mask(cursor_, place.text, bits);
    if (standing == Standing::dead) return false;  // below a draft that is refused
    const auto allow = [bits](int32_t token) {
      const auto index = static_cast<size_t>(token);
      if (token >= 0 && index / 32 < bits.size()) bits[index / 32] |= 1U << (index % 32);
    };
    if (may_end(standing)) {
      for (const int32_t token : placement_.end_tokens) allow(token);
    }
    if (place.fresh) allow(placement_.call_opener);
    if (place.first) allow(placement_.think_open);
    if (place.blank_line_allowed) allow(placement_.blank_line);
    if (std::all_of(bits.begin(), bits.end(), [](uint32_t word) { return word == 0; })) {
      fail(ErrorKind::unsupported, "no token of this model's vocabulary goes on with the grammar");
    }
    return true;
  }

  size_t accepts(std::span<const int32_t> path, std::span<const int32_t> drafts) override {
    Place place = after(path);
    for (size_t i = 0; i < drafts.size(); ++i) {
      if (place.phase == Phase::ended) return i;
      step(place, drafts[i]);
      if (place.phase == Phase::dead) return i;
    }
    return drafts.size();
  }

  void commit(std::span<const int32_t> tokens) override {
    for (const int32_t token : tokens) {
      step(committed_, token);
      check(committed_.phase != Phase::dead, "a token was drawn that the grammar refuses");
      if (committed_.phase != Phase::answer) continue;
      matcher_->advance(cursor_, std::exchange(committed_.text, {}));
      finished_ = matcher_->standing(cursor_) == Standing::exhausted;
    }
  }

  [[nodiscard]] bool finished() const override { return finished_; }

 private:
  enum class Phase { reasoning, answer, free, ended, dead };
  struct Place {
    Phase phase = Phase::answer;
    std::string text;   ///< of the answer, behind the cursor
    bool fresh = true;  ///< nothing of the answer stands yet
    bool first = true;  ///< nothing of the reply stands yet
    bool blank_line_allowed = false;
  };

  static bool may_end(Standing standing) { return standing == Standing::complete || standing == Standing::exhausted; }

  [[nodiscard]] Place after(std::span<const int32_t> path) {
    Place place = committed_;
    for (const int32_t token : path) step(place, token);
    return place;
  }

  void step(Place& place, int32_t token) {
    const bool first = std::exchange(place.first, false);
    if (place.phase == Phase::reasoning) {
      if (token != placement_.think_end) return;
      place.phase = Phase::answer;
      place.blank_line_allowed = placement_.blank_line >= 0;
    } else if (place.phase == Phase::answer) {
      step_answer(place, token, first);
    } else if (place.phase == Phase::ended) {
      place.phase = Phase::dead;
    }
  }

  void step_answer(Place& place, int32_t token, bool first) {
    if (first && token == placement_.think_open) {
      place.phase = Phase::reasoning;
      return;
    }
    if (place.fresh && token == placement_.call_opener) {
      place.phase = Phase::free;
      return;
    }
    const bool blank_line_allowed = std::exchange(place.blank_line_allowed, false);
    if (blank_line_allowed && token == placement_.blank_line) return;
    const auto& ends = placement_.end_tokens;
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
      place.phase = may_end(matcher_->standing(cursor_, place.text)) ? Phase::ended : Phase::dead;
      return;
    }
    const std::string_view bytes = matcher_->vocabulary().bytes(token);
    place.fresh = false;
    place.text += bytes;
    if (bytes.empty() || matcher_->standing(cursor_, place.text) == Standing::dead) place.phase = Phase::dead;
  }

  std::shared_ptr<Matcher> matcher_;
  GrammarPlacement placement_;
  Matcher::Cursor cursor_;
  Place committed_;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<engine::Constraint> grammar_constraint(std::shared_ptr<Matcher> matcher, GrammarPlacement placement) {
  return std::make_unique<GrammarConstraint>(std::move(matcher), std::move(placement));
}

}  // namespace tensorfold::server
