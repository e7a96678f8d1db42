// Constraints: masks and forced tokens along each row's own path; drafted and serial agree.
#include "engine/constraint.h"

#include "engine_fixture.h"

namespace tensorfold::engine {
namespace {

using namespace testing;  // NOLINT: the fixture of this folder

/// Allows only tokens of one parity, alternating by place in the reply; forces three tokens after the fifth; ends
/// after a number of tokens. It checks that paths always follow what was committed.
class ParityConstraint : public Constraint {
 public:
  explicit ParityConstraint(size_t length) : length_(length) {}
  int32_t forced(std::span<const int32_t> path) override {
    const size_t place = committed_.size() + path.size();
    return place >= 5 && place < 8 ? static_cast<int32_t>(100 + place) : -1;
  }
  bool mask(std::span<const int32_t> path, std::span<uint32_t> bits) override {
    const size_t place = committed_.size() + path.size();
    if (place % 4 == 3) return false;
    for (uint32_t& word : bits) word = place % 2 == 0 ? 0x55555555U : 0xAAAAAAAAU;
    return true;
  }
  size_t accepts(std::span<const int32_t> path, std::span<const int32_t> drafts) override {
    size_t place = committed_.size() + path.size();
    size_t count = 0;
    while (count < drafts.size() && (place % 4 == 3 || static_cast<size_t>(drafts[count]) % 2 == place % 2)) {
      ++place;
      ++count;
    }
    return count;
  }
  void commit(std::span<const int32_t> tokens) override {
    committed_.insert(committed_.end(), tokens.begin(), tokens.end());
  }
  [[nodiscard]] bool finished() const override { return committed_.size() >= length_; }
  [[nodiscard]] const std::vector<int32_t>& committed() const { return committed_; }

 private:
  size_t length_;
  std::vector<int32_t> committed_;
};

Request constrained(const std::shared_ptr<ParityConstraint>& constraint, double temperature) {
  Request request = make_request(golden_cases()[3].prompt, 60, temperature);
  request.end_tokens.clear();
  request.constraint = constraint;
  return request;
}

TEST(Constraint, IsObeyedAndEndsTheReply) {
  const auto constraint = std::make_shared<ParityConstraint>(30);
  const std::vector<int32_t> reply = serial_reply(constrained(constraint, 0.0));
  ASSERT_EQ(reply.size(), 30U);
  EXPECT_EQ(reply, constraint->committed());
  for (size_t i = 0; i < reply.size(); ++i) {
    if (i >= 5 && i < 8) {
      EXPECT_EQ(reply[i], static_cast<int32_t>(100 + i));
    } else if (i % 4 != 3) {
      EXPECT_EQ(static_cast<size_t>(reply[i]) % 2, i % 2) << i;
    }
  }
}

TEST(Constraint, DraftedEqualsSerial) {
  for (const double temperature : {0.0, 1.0}) {
    const auto serial = serial_reply(constrained(std::make_shared<ParityConstraint>(40), temperature));
    for (const int32_t branches : {1, 2}) {
      for (const double acceptance : {0.5, 1.0}) {
        auto drafter = std::make_unique<drafters::ScriptedDrafter>(
            drafters::ScriptOptions{.acceptance = acceptance, .branches = branches, .vocabulary = 4096, .seed = 8});
        drafter->learn(golden_cases()[3].prompt, serial);
        EngineOptions options = small_options();
        options.fixed_drafts = 6;
        const auto engine = start(options, std::move(drafter));
        EXPECT_EQ(generate(*engine, constrained(std::make_shared<ParityConstraint>(40), temperature)), serial);
      }
    }
  }
}

/// Fails at the tenth token.
class FailingConstraint : public ParityConstraint {
 public:
  FailingConstraint() : ParityConstraint(100) {}
  bool mask(std::span<const int32_t> path, std::span<uint32_t> bits) override {
    if (committed().size() + path.size() >= 10) throw std::runtime_error("no rule applies");
    return ParityConstraint::mask(path, bits);
  }
};

TEST(Constraint, OneThatFailsEndsItsOwnReplyOnly) {
  const auto cases = golden_cases();
  const auto engine = start(small_options());
  Request failing = constrained(std::make_shared<ParityConstraint>(100), 0.0);
  failing.constraint = std::make_shared<FailingConstraint>();
  Request other = make_request(cases[0].prompt, 40);
  Reply failed;
  Reply fine;
  failed.attach(failing);
  fine.attach(other);
  engine->submit(std::move(failing));
  engine->submit(std::move(other));
  EXPECT_EQ(failed.wait().reason, FinishReason::failed);
  EXPECT_EQ(failed.wait().error, "no rule applies");
  fine.wait();
  EXPECT_EQ(fine.tokens(), std::vector<int32_t>(cases[0].reply.begin(),
                                                cases[0].reply.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(
                                                                             40, cases[0].reply.size()))));
}

}  // namespace
}  // namespace tensorfold::engine
