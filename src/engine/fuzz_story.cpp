#include "engine/fuzz_story.h"

#include <algorithm>
#include <cmath>

#include "base/digest.h"
#include "base/error.h"

namespace tensorfold::engine {

FuzzProbe::FuzzProbe(CachePool& pool, ForwardRunner& forward)
    : pool_(pool),
      forward_(forward),
      row_(static_cast<size_t>(forward.vocabulary())),
      state_(static_cast<size_t>(pool.state_bytes())),
      page_(static_cast<size_t>(pool.page_bytes())) {}

uint64_t FuzzProbe::logits(int32_t logit_row) {
  forward_.read_logits(logit_row, 1, row_);
  finite_ = std::all_of(row_.begin(), row_.end(), [](float value) { return std::isfinite(value); });
  return digest_of(std::as_bytes(std::span(row_)));
}

uint64_t FuzzProbe::state(const CacheLane& lane) {
  pool_.read_state(lane.state_slot, state_);
  return digest_of(state_);
}

uint64_t FuzzProbe::page(int32_t page) {
  pool_.read_page(page, page_);
  return digest_of(page_);
}

void FuzzProbe::poison() {
  std::fill(page_.begin(), page_.end(), std::byte{0xFF});
  std::fill(state_.begin(), state_.end(), std::byte{0xFF});
  for (int32_t page = 0; page < pool_.size().pages; ++page) {
    if (pool_.pages().references(page) == 0) pool_.write_page(page, page_);
  }
  for (int32_t slot = 0; slot < pool_.size().state_slots; ++slot) {
    if (pool_.slots().references(slot) == 0) pool_.write_state(slot, state_);
  }
}

std::vector<FuzzStory> make_stories(int32_t long_story, int64_t vocabulary, std::mt19937_64& random) {
  const auto token = [&] { return static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)); };
  const auto extend = [&](FuzzStory& story, size_t size) {
    while (story.tokens.size() < size) story.tokens.push_back(token());
  };
  std::vector<FuzzStory> stories(4);
  const auto longest = static_cast<size_t>(long_story);
  extend(stories[0], longest);
  const auto shared = static_cast<std::ptrdiff_t>(longest / 2 + random() % (longest / 4 + 1));
  stories[1].tokens.assign(stories[0].tokens.begin(), stories[0].tokens.begin() + shared);
  extend(stories[1], static_cast<size_t>(shared) + 20 + random() % 40);
  extend(stories[2], 20 + random() % 60);
  stories[3].tokens.assign(stories[2].tokens.begin(), stories[2].tokens.begin() + 11);
  extend(stories[3], 40 + random() % 60);
  return stories;
}

void record_story(FuzzStory& story, CachePool& pool, ForwardRunner& forward) {
  FuzzProbe probe(pool, forward);
  CacheLane lane;
  check(pool.open(lane) && pool.reserve(lane, static_cast<int32_t>(story.tokens.size())),
        "the fuzzer's reference found no room");
  story.states.push_back(probe.state(lane));
  for (const int32_t& token : story.tokens) {
    const Window window{.lane = &lane,
                        .tokens = {&token, 1},
                        .past = std::span(story.tokens).first(static_cast<size_t>(lane.committed)),
                        .parents = {},
                        .keep_all = true,
                        .logits = WantedLogits::last};
    forward.run(std::span(&window, 1));
    ++lane.committed;
    story.logits.push_back(probe.logits(0));
    // NaN agrees with itself bit for bit: no schedule would ever differ.
    if (!probe.finite()) {
      fail(ErrorKind::corrupt_file, "the model computes NaN or infinity behind {} tokens: its weights are damaged",
           lane.committed);
    }
    story.states.push_back(probe.state(lane));
  }
  for (size_t j = 0; (j + 1) * static_cast<size_t>(pool.page_tokens()) <= story.tokens.size(); ++j) {
    story.pages.push_back(probe.page(lane.pages[j]));
  }
  pool.close(lane);
}

}  // namespace tensorfold::engine
