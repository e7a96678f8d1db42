#include "engine/rounds.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace tensorfold::engine {
namespace {

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

/// The tokens that the constraint forces after the pending one, at most `most`.
std::vector<int32_t> forced_run(const Sequence& sequence, int32_t most) {
  std::vector<int32_t> run;
  if (!sequence.request.constraint) return run;
  while (static_cast<int32_t>(run.size()) < most) {
    const int32_t token = sequence.request.constraint->forced(run);
    if (token < 0) break;
    run.push_back(token);
  }
  return run;
}

}  // namespace

Rounds::Rounds(CachePool& pool, ForwardRunner& forward, DraftPlanner& drafts, PrefixStore* store,
               const RoundOptions& options)
    : pool_(pool),
      forward_(forward),
      drafts_(drafts),
      store_(store),
      options_(options),
      share_(options.decode_share),
      draw_rows_(forward.vocabulary()),
      lanes_(static_cast<size_t>(options.lanes), false) {
  check(options.window_rows >= 1 && options.prefill_rows >= 1, "a round needs rows");
  check(options.lanes <= forward.most_logit_rows(), "more lanes than logit rows");
}

bool Rounds::admit(const std::shared_ptr<Sequence>& sequence) {
  const auto free_lane = std::find(lanes_.begin(), lanes_.end(), false);
  if (free_lane == lanes_.end()) return false;
  Sequence& s = *sequence;
  if (!pool_.open(s.lane)) return false;
  const int32_t cached = store_ != nullptr ? store_->resume(s.tokens, s.lane) : 0;
  const int32_t needed = pool_.pages_needed(s.lane, s.size() + 1);
  const bool fits = pool_.free_pages() >= needed || (store_ != nullptr && store_->make_room(needed));
  if (!fits && !running_.empty()) {
    pool_.close(s.lane);
    return false;
  }
  *free_lane = true;
  s.lane_index = static_cast<int32_t>(free_lane - lanes_.begin());
  if (s.started == Clock::time_point{}) {
    s.started = Clock::now();
    s.statistics.cached_tokens = cached;
    totals_.prompt_tokens += static_cast<uint64_t>(s.prompt_size());
    totals_.cached_tokens += static_cast<uint64_t>(cached);
    if (s.has_penalties()) s.counts.add_prompt(s.request.prompt);
  }
  if (s.request.draft) drafts_.open(s, cached);
  running_.push_back(sequence);
  return true;
}

void Rounds::leave(const std::shared_ptr<Sequence>& sequence) {
  Sequence& s = *sequence;
  if (s.request.draft) drafts_.close(s);
  pool_.close(s.lane);
  lanes_[static_cast<size_t>(s.lane_index)] = false;
  s.lane_index = -1;
  std::erase(running_, sequence);
}

void Rounds::give_up(const std::shared_ptr<Sequence>& sequence) {
  if (store_ != nullptr && sequence->lane.committed > 0) {
    pool_.trim(sequence->lane);
    store_->keep(sequence->tokens, sequence->lane, false);
  }
  leave(sequence);
}

void Rounds::finish(const std::shared_ptr<Sequence>& sequence, FinishReason reason, const std::string& error) {
  Sequence& s = *sequence;
  const Clock::time_point now = Clock::now();
  if (s.lane_index >= 0) {
    if (store_ != nullptr && reason != FinishReason::failed && s.lane.committed > 0) {
      pool_.trim(s.lane);
      store_->keep(s.tokens, s.lane, false);
    }
    leave(sequence);
  }
  ReplyStatistics& statistics = s.statistics;
  statistics.prompt_tokens = s.prompt_size();
  statistics.reply_tokens = s.reply_size();
  const bool started = s.started != Clock::time_point{};
  const bool answered = s.first_token != Clock::time_point{};
  statistics.queue_seconds = seconds_between(s.submitted, started ? s.started : now);
  if (started) statistics.prefill_seconds = seconds_between(s.started, answered ? s.first_token : now);
  if (answered) statistics.decode_seconds = seconds_between(s.first_token, now);
  if (s.request.on_finish) s.request.on_finish({.reason = reason, .error = error, .statistics = statistics});
}

void Rounds::finish_all(FinishReason reason, const std::string& error) {
  while (!running_.empty()) finish(std::shared_ptr<Sequence>(running_.back()), reason, error);
}

void Rounds::drop_cancelled() {
  const std::vector<std::shared_ptr<Sequence>> before = running_;
  for (const auto& sequence : before) {
    if (sequence->cancelled) finish(sequence, FinishReason::cancelled, "");
  }
}

bool Rounds::make_pages(Sequence& sequence, int32_t tokens, std::vector<std::shared_ptr<Sequence>>& yielded) {
  while (!pool_.reserve(sequence.lane, tokens)) {
    if (store_ != nullptr && store_->make_room(pool_.pages_needed(sequence.lane, tokens))) continue;
    // Background before foreground, then the newest; never one that stands before the sequence itself.
    std::shared_ptr<Sequence> victim;
    for (const auto& candidate : running_) {
      if (!victim || candidate->request.priority == Priority::background ||
          victim->request.priority == Priority::foreground) {
        victim = candidate;
      }
    }
    if (victim.get() == &sequence && running_.size() == 1) {
      fail(ErrorKind::capacity, "the cache has no room for {} tokens", tokens);
    }
    const bool self = victim.get() == &sequence;
    give_up(victim);
    yielded.push_back(victim);
    if (self) return false;
  }
  return true;
}

int32_t Rounds::most_drafts(const Sequence& sequence) const {
  if (!sequence.request.draft || sequence.cancelled) return 0;
  return std::min(options_.window_rows - 1, sequence.reply_left() - 1);
}

void Rounds::add_decode_windows(Round& round, std::vector<std::shared_ptr<Sequence>>& yielded) {
  // Every decoding sequence's own row first: drafts only take what is left.
  std::vector<std::shared_ptr<Sequence>> decoding;
  for (const auto& sequence : std::vector<std::shared_ptr<Sequence>>(running_)) {
    if (sequence->lane_index < 0 || !sequence->decodes()) continue;
    if (make_pages(*sequence, sequence->size(), yielded)) decoding.push_back(sequence);
  }
  std::erase_if(decoding, [](const auto& sequence) { return sequence->lane_index < 0; });
  std::vector<Sequence*> drafting;
  std::vector<int32_t> most;
  std::vector<std::vector<int32_t>> forced(decoding.size());
  std::vector<size_t> place(decoding.size());
  const auto row_limit = std::min(forward_.most_logit_rows(), forward_.most_rows());
  int32_t rows = static_cast<int32_t>(decoding.size());
  for (size_t i = 0; i < decoding.size(); ++i) {
    const int32_t allowed = std::min(most_drafts(*decoding[i]), row_limit - rows);
    if (allowed <= 0) continue;
    forced[i] = forced_run(*decoding[i], allowed);
    if (!forced[i].empty()) {
      if (!pool_.reserve(decoding[i]->lane, decoding[i]->size() + static_cast<int32_t>(forced[i].size()))) {
        forced[i].clear();
      }
      rows += static_cast<int32_t>(forced[i].size());
    } else if (!drafts_.empty()) {
      place[i] = drafting.size() + 1;
      drafting.push_back(decoding[i].get());
      most.push_back(allowed);
    }
  }
  const int32_t draft_rows = row_limit - rows + static_cast<int32_t>(drafting.size());
  std::vector<Proposal> proposals = drafts_.propose(drafting, most, draft_rows, pool_);
  for (size_t i = 0; i < decoding.size(); ++i) {
    Sequence& sequence = *decoding[i];
    SequenceWindow window{.sequence = &sequence,
                          .tokens = {sequence.tokens.back()},
                          .parents = {},
                          .draws = true,
                          .first_drawn = 0,
                          .drafter = -1,
                          .first_draw = 0,
                          .decode = true};
    drafters::Draft draft;
    if (!forced[i].empty()) {
      window.tokens.insert(window.tokens.end(), forced[i].begin(), forced[i].end());
    } else if (place[i] > 0) {
      Proposal& proposal = proposals[place[i] - 1];
      draft = std::move(proposal.draft);
      if (sequence.request.constraint && draft.parents.empty() && !draft.empty()) {
        cut_draft(draft, sequence.request.constraint->accepts({}, draft.tokens));
      }
      window.drafter = draft.empty() ? -1 : proposal.drafter;
      window.tokens.insert(window.tokens.end(), draft.tokens.begin(), draft.tokens.end());
      if (!draft.parents.empty()) {
        window.parents.push_back(-1);
        for (const int32_t parent : draft.parents) window.parents.push_back(parent + 1);
      }
    }
    round.decode_rows += window.rows();
    round.logit_rows += window.rows();
    round.windows.push_back(std::move(window));
    round.drafts.push_back(std::move(draft));
  }
}

void Rounds::add_prompt_windows(Round& round, std::vector<std::shared_ptr<Sequence>>& yielded) {
  std::vector<std::shared_ptr<Sequence>> filling;
  std::vector<PromptWork> work;
  for (const auto& sequence : running_) {
    if (sequence->decodes()) continue;
    filling.push_back(sequence);
    work.push_back({.rows_left = sequence->rows_left(),
                    .passed_over = sequence->passed_over,
                    .background = sequence->request.priority == Priority::background,
                    .arrival = sequence->id});
  }
  if (filling.empty() || (!round.windows.empty() && !share_.prompts_may_run())) return;
  int32_t budget = std::min(options_.prefill_rows, forward_.most_rows() - round.decode_rows);
  for (const size_t i : prompt_order(work)) {
    Sequence& sequence = *filling[i];
    if (sequence.lane_index < 0) continue;
    if (budget <= 0 || round.logit_rows >= forward_.most_logit_rows()) {
      ++sequence.passed_over;
      continue;
    }
    int32_t rows = std::min(sequence.rows_left(), budget);
    // A kept state is that of a chunk's end.
    for (const int32_t point : sequence.snapshot_points) {
      if (point <= sequence.lane.committed) continue;
      rows = std::min(rows, point - sequence.lane.committed);
      break;
    }
    if (!make_pages(sequence, sequence.lane.committed + rows, yielded)) continue;
    sequence.passed_over = 0;
    const auto first = sequence.tokens.begin() + sequence.lane.committed;
    const bool last = rows == sequence.rows_left();
    round.windows.push_back({.sequence = &sequence,
                             .tokens = std::vector<int32_t>(first, first + rows),
                             .parents = {},
                             .draws = last,
                             .first_drawn = last ? rows - 1 : 0,
                             .drafter = -1,
                             .first_draw = 0,
                             .decode = false});
    round.drafts.emplace_back();
    round.prompt_rows += rows;
    round.logit_rows += last ? 1 : 0;
    budget -= rows;
  }
}

Rounds::Round Rounds::compose(std::vector<std::shared_ptr<Sequence>>& yielded) {
  Round round;
  add_decode_windows(round, yielded);
  add_prompt_windows(round, yielded);
  // Making pages may have taken the place of a sequence whose window stands already.
  for (size_t i = round.windows.size(); i-- > 0;) {
    const SequenceWindow& window = round.windows[i];
    if (window.sequence->lane_index >= 0) continue;
    (window.decode ? round.decode_rows : round.prompt_rows) -= window.rows();
    round.windows.erase(round.windows.begin() + static_cast<std::ptrdiff_t>(i));
    round.drafts.erase(round.drafts.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return round;
}

void Rounds::run_forward(const Round& round) {
  std::vector<Window> windows;
  for (const SequenceWindow& window : round.windows) {
    // Rows that are sure to stay are committed by the forward itself: chunks, and single rows.
    const bool sure = window.rows() == 1 || !window.decode;
    windows.push_back({.lane = &window.sequence->lane,
                       .tokens = window.tokens,
                       .parents = window.parents,
                       .keep_all = sure,
                       .logits = !window.draws            ? WantedLogits::none
                                 : window.first_drawn > 0 ? WantedLogits::last
                                                          : WantedLogits::all});
  }
  forward_.run(windows);
}

void Rounds::step(std::vector<std::shared_ptr<Sequence>>& yielded) {
  drop_cancelled();
  const Clock::time_point start = Clock::now();
  Round round = compose(yielded);
  if (round.windows.empty()) return;
  run_forward(round);
  draw_rows_.clear();
  for (size_t i = 0; i < round.windows.size(); ++i) {
    SequenceWindow& window = round.windows[i];
    if (window.draws) draw_rows_.add(window, forward_.logit_row(i, window.first_drawn));
  }
  std::vector<backend::Drawn> drawn(draw_rows_.rows().size());
  forward_.draw(draw_rows_.rows(), drawn);
  ++totals_.rounds;
  settle(round, drawn);
  const double seconds = seconds_between(start, Clock::now());
  if (round.prompt_rows > 0) {
    share_.prompt_round(seconds);
  } else {
    const bool waiting = std::any_of(running_.begin(), running_.end(), [](const auto& s) { return !s->decodes(); });
    if (waiting) share_.decode_round(seconds);
    drafts_.record_forward(round.decode_rows, seconds);
  }
}

void Rounds::settle(Round& round, std::span<const backend::Drawn> drawn) {
  std::vector<Acceptance> acceptances;
  std::vector<std::vector<TokenLogprobs>> logprobs(round.windows.size());
  std::vector<backend::KeptPath> kept;
  for (size_t i = 0; i < round.windows.size(); ++i) {
    const SequenceWindow& window = round.windows[i];
    const auto own = drawn.subspan(window.first_draw, static_cast<size_t>(window.drawn_rows()));
    acceptances.push_back(accept_window(window, own, logprobs[i]));
    if (window.decode && window.rows() > 1) {
      kept.push_back({.sequence = static_cast<int32_t>(i), .rows = acceptances.back().path});
    }
  }
  forward_.commit(kept);

  std::vector<std::vector<int32_t>> rows(round.windows.size());
  std::vector<drafters::KeptRows> absorbed;
  for (size_t i = 0; i < round.windows.size(); ++i) {
    const SequenceWindow& window = round.windows[i];
    Sequence& sequence = *window.sequence;
    const Acceptance& acceptance = acceptances[i];
    const int32_t first = sequence.lane.committed;
    const auto count = static_cast<int32_t>(acceptance.path.size());
    sequence.lane.committed += count;
    if (sequence.request.draft && !drafts_.empty()) {
      for (const int32_t row : acceptance.path) rows[i].push_back(forward_.first_row(i) + row);
      absorbed.push_back({.lane = sequence.lane_index,
                          .first_position = first,
                          .rows = rows[i],
                          .next_tokens = std::span<const int32_t>(sequence.tokens)
                                             .subspan(static_cast<size_t>(first) + 1, static_cast<size_t>(count)),
                          .pages = sequence.lane.pages});
    }
    if (window.drafter >= 0) {
      drafts_.observe(sequence, window.drafter, round.drafts[i], count - 1);
      auto& [drafted, accepted] = sequence.statistics.by_drafter[std::string(drafts_.name(window.drafter))];
      drafted += window.rows() - 1;
      accepted += count - 1;
      sequence.statistics.drafted += window.rows() - 1;
      sequence.statistics.accepted += count - 1;
      totals_.drafted += static_cast<uint64_t>(window.rows() - 1);
      totals_.accepted += static_cast<uint64_t>(count - 1);
    }
    if (!window.decode) keep_states(sequence);
  }
  drafts_.absorb(absorbed, forward_.hidden(), forward_.taps());
  for (size_t i = 0; i < round.windows.size(); ++i) {
    deliver(*round.windows[i].sequence, acceptances[i], logprobs[i]);
  }
}

void Rounds::keep_states(const Sequence& sequence) {
  const auto& points = sequence.snapshot_points;
  if (store_ == nullptr || !std::binary_search(points.begin(), points.end(), sequence.lane.committed)) return;
  store_->keep(sequence.tokens, sequence.lane, sequence.lane.committed == points.front());
}

void Rounds::deliver(Sequence& sequence, Acceptance& acceptance, std::span<const TokenLogprobs> logprobs) {
  if (acceptance.emitted == 0) return;
  if (sequence.first_token == Clock::time_point{}) sequence.first_token = Clock::now();
  ++sequence.statistics.rounds;
  totals_.reply_tokens += static_cast<uint64_t>(acceptance.emitted);
  const auto emitted = std::span<const int32_t>(sequence.tokens).last(static_cast<size_t>(acceptance.emitted));
  bool goes_on = true;
  if (sequence.request.on_tokens) goes_on = sequence.request.on_tokens(emitted, logprobs);
  if (!goes_on) acceptance.finished = FinishReason::stop;
  if (!acceptance.finished) return;
  const auto place =
      std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s.get() == &sequence; });
  check(place != running_.end(), "a finished sequence was not running");
  finish(std::shared_ptr<Sequence>(*place), *acceptance.finished, "");
}

}  // namespace tensorfold::engine
