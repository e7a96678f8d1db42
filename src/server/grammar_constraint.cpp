#include "server/grammar_constraint.h"

#include <algorithm>
#include <optional>
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
      : matcher_(std::move(matcher)),
        placement_(std::move(placement)),
        cursor_(matcher_->begin()),
        committed_{.parts = ReplyParts(placement_)} {}

  int32_t forced(std::span<const int32_t> path) override {
    if (!placement_.call) return -1;
    const Place place = after(path);
    return place.state == State::goes_on && place.call ? place.call->forced() : -1;
  }

  bool mask(std::span<const int32_t> path, std::span<uint32_t> bits) override {
    const Place place = after(path);
    if (place.state != State::goes_on) return false;
    switch (place.parts.now()) {
      case ReplyPart::reasoning:
      case ReplyPart::marker:
        if (placement_.end_tokens.empty()) return false;
        allow_all_but(placement_.end_tokens, bits);
        return true;
      case ReplyPart::call:
        return place.call && place.call->mask(bits);
      case ReplyPart::answer:
        return mask_answer(place, bits);
    }
    return false;
  }

  size_t accepts(std::span<const int32_t> path, std::span<const int32_t> drafts) override {
    Place place = after(path);
    for (size_t i = 0; i < drafts.size(); ++i) {
      if (place.state != State::goes_on) return i;
      step(place, drafts[i]);
      if (place.state == State::dead) return i;
    }
    return drafts.size();
  }

  void commit(std::span<const int32_t> tokens) override {
    for (const int32_t token : tokens) {
      step(committed_, token);
      check(committed_.state != State::dead, "a token was drawn that the grammar refuses");
      if (committed_.state != State::goes_on || committed_.parts.now() != ReplyPart::answer) continue;
      matcher_->advance(cursor_, std::exchange(committed_.text, {}));
      finished_ = matcher_->standing(cursor_) == Standing::exhausted;
    }
  }

  [[nodiscard]] bool finished() const override { return finished_; }

 private:
  enum class State { goes_on, ended, dead };
  struct Place {
    State state = State::goes_on;
    ReplyParts parts;
    std::string text = {};                   ///< of the answer, behind the cursor
    std::optional<CallGateState> call = {};  ///< the call that the reply stands in or behind
  };

  static bool may_end(Standing standing) { return standing == Standing::complete || standing == Standing::exhausted; }
  [[nodiscard]] bool is_end(int32_t token) const {
    const auto& ends = placement_.end_tokens;
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }

  bool mask_answer(const Place& place, std::span<uint32_t> bits) {
    const Standing standing = matcher_->mask(cursor_, place.text, bits);
    if (standing == Standing::dead) return false;  // below a draft that is refused
    if (may_end(standing)) {
      for (const int32_t token : placement_.end_tokens) allow_token(token, bits);
    }
    if (place.parts.may_call()) allow_token(placement_.call_opener, bits);
    if (place.parts.may_think()) allow_token(placement_.think_open, bits);
    if (place.parts.may_be_blank()) allow_token(placement_.blank_line, bits);
    if (std::all_of(bits.begin(), bits.end(), [](uint32_t word) { return word == 0; })) {
      fail(ErrorKind::unsupported, "no token of this model's vocabulary goes on with the grammar");
    }
    return true;
  }

  [[nodiscard]] Place after(std::span<const int32_t> path) {
    Place place = committed_;
    for (const int32_t token : path) step(place, token);
    return place;
  }

  void step(Place& place, int32_t token) {
    if (place.state != State::goes_on) {
      place.state = State::dead;
      return;
    }
    if (is_end(token)) {
      place.state = end_fits(place) ? State::ended : State::dead;
      return;
    }
    switch (place.parts.step(token)) {
      case ReplyPart::reasoning:
      case ReplyPart::marker:
        break;
      case ReplyPart::call:
        step_call(place, token);
        break;
      case ReplyPart::answer:
        step_answer(place, token);
        break;
    }
  }

  [[nodiscard]] bool end_fits(const Place& place) {
    if (place.parts.now() == ReplyPart::answer) return may_end(matcher_->standing(cursor_, place.text));
    return place.parts.now() == ReplyPart::call && (!place.call || place.call->closed());
  }

  /// Behind a closed call the next one is held to the same form.
  void step_call(Place& place, int32_t token) {
    if (!placement_.call) return;
    if (token == placement_.call_opener && (!place.call || place.call->closed())) {
      place.call.emplace(placement_.call, *placement_.tokens);
    } else if (!place.call->allows(token)) {
      place.state = State::dead;
    } else {
      place.call->advance(token);
    }
  }

  void step_answer(Place& place, int32_t token) {
    const std::string_view bytes = matcher_->vocabulary().bytes(token);
    place.text += bytes;
    if (bytes.empty() || matcher_->standing(cursor_, place.text) == Standing::dead) place.state = State::dead;
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
