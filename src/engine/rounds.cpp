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
std::vector<int32_t> forced_run(Sequence& sequence, int32_t most) {
  std::vector<int32_t> run;
  while (static_cast<int32_t>(run.size()) < most) {
    const int32_t token = sequence.constraint.forced(run);
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
    if (store_ != nullptr) s.snapshot_points = snapshot_points(s.prompt_size(), s.request.snapshot_hints);
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
    store_->keep(sequence->tokens, sequence->lane, KeepReason::gave_up);
  }
  leave(sequence);
}

void Rounds::finish(const std::shared_ptr<Sequence>& sequence, FinishReason reason, const std::string& error) {
  Sequence& s = *sequence;
  const Clock::time_point now = Clock::now();
  if (s.lane_index >= 0) {
    if (store_ != nullptr && reason != FinishReason::failed && s.lane.committed > 0) {
      pool_.trim(s.lane);
      store_->keep(s.tokens, s.lane, KeepReason::reply_end);
    }
    leave(sequence);
    if (reason == FinishReason::stop || reason == FinishReason::length) last_ended_ = s.tokens;
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

std::vector<Sequence*> Rounds::take_decoding(std::vector<std::shared_ptr<Sequence>>& yielded) {
  std::vector<Sequence*> decoding;
  for (const auto& sequence : std::vector<std::shared_ptr<Sequence>>(running_)) {
    if (sequence->lane_index < 0 || !sequence->decodes()) continue;
    if (make_pages(*sequence, sequence->size(), yielded)) decoding.push_back(sequence.get());
  }
  // A later one may have taken an earlier one's place.
  std::erase_if(decoding, [](const Sequence* sequence) { return sequence->lane_index < 0; });
  return decoding;
}

std::vector<Proposal> Rounds::plan_drafts(std::span<Sequence* const> decoding) {
  std::vector<Proposal> plans(decoding.size());
  std::vector<Sequence*> drafting;
  std::vector<size_t> places;
  std::vector<int32_t> most;
  const int32_t row_limit = std::min(forward_.most_logit_rows(), forward_.most_rows());
  auto rows = static_cast<int32_t>(decoding.size());
  for (size_t i = 0; i < decoding.size(); ++i) {
    Sequence& sequence = *decoding[i];
    const int32_t allowed = std::min(most_drafts(sequence), row_limit - rows);
    if (allowed <= 0) continue;
    std::vector<int32_t> forced = forced_run(sequence, allowed);
    if (!forced.empty()) {
      // Forced tokens need no drafter: the constraint knows them.
      const auto count = static_cast<int32_t>(forced.size());
      if (!pool_.reserve(sequence.lane, sequence.size() + count)) continue;
      plans[i].draft.tokens = std::move(forced);
      rows += count;
    } else if (!drafts_.empty()) {
      drafting.push_back(&sequence);
      places.push_back(i);
      most.push_back(allowed);
    }
  }
  const int32_t draft_rows = row_limit - rows + static_cast<int32_t>(drafting.size());
  std::vector<Proposal> proposals = drafts_.propose(drafting, most, draft_rows, pool_);
  for (size_t k = 0; k < drafting.size(); ++k) {
    Proposal& proposal = proposals[k];
    ConstraintGuard& constraint = drafting[k]->constraint;
    if (constraint.active() && proposal.draft.parents.empty() && !proposal.draft.empty()) {
      cut_draft(proposal.draft, constraint.accepts({}, proposal.draft.tokens));
    }
    if (proposal.draft.empty()) proposal.drafter = -1;
    plans[places[k]] = std::move(proposal);
  }
  return plans;
}

void Rounds::add_decode_windows(Round& round, std::vector<std::shared_ptr<Sequence>>& yielded) {
  const std::vector<Sequence*> decoding = take_decoding(yielded);
  std::vector<Proposal> plans = plan_drafts(decoding);
  for (size_t i = 0; i < decoding.size(); ++i) {
    drafters::Draft& draft = plans[i].draft;
    SequenceWindow window{.sequence = decoding[i],
                          .tokens = {decoding[i]->tokens.back()},
                          .parents = {},
                          .draws = true,
                          .first_drawn = 0,
                          .drafter = plans[i].drafter,
                          .first_draw = 0,
                          .decode = true};
    window.tokens.insert(window.tokens.end(), draft.tokens.begin(), draft.tokens.end());
    if (!draft.parents.empty()) {
      window.parents.push_back(-1);
      for (const int32_t parent : draft.parents) window.parents.push_back(parent + 1);
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
    const Sequence& sequence = *window.sequence;
    windows.push_back({.lane = &sequence.lane,
                       .tokens = window.tokens,
                       .past = std::span(sequence.tokens).first(static_cast<size_t>(sequence.lane.committed)),
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
  Round round = compose(yielded);
  if (round.windows.empty()) return;
  const Clock::time_point start = Clock::now();
  run_forward(round);
  draw_rows_.clear();
  for (size_t i = 0; i < round.windows.size(); ++i) {
    SequenceWindow& window = round.windows[i];
    if (window.draws) draw_rows_.add(window, forward_.logit_row(i, window.first_drawn));
  }
  std::vector<backend::Drawn> drawn(draw_rows_.rows().size());
  forward_.draw(draw_rows_.rows(), drawn);
  std::vector<std::vector<TokenLogprobs>> logprobs(round.windows.size());
  std::vector<Acceptance> acceptances = accept(round, drawn, logprobs);
  const double seconds = seconds_between(start, Clock::now());
  ++totals_.rounds;
  // Before the windows are settled: what this round took is charged to its drafts.
  if (round.prompt_rows == 0) {
    drafts_.record_forward(round.decode_rows, static_cast<int32_t>(round.windows.size()), seconds);
  }
  settle(round, acceptances);
  for (size_t i = 0; i < round.windows.size(); ++i) {
    deliver(*round.windows[i].sequence, acceptances[i], logprobs[i]);
  }
  if (round.prompt_rows > 0) {
    share_.prompt_round(seconds);
    const double each = seconds / (round.prompt_rows + round.decode_rows);
    prompt_row_seconds_ = prompt_row_seconds_ > 0.0 ? 0.8 * prompt_row_seconds_ + 0.2 * each : each;
  } else {
    const bool waiting = std::any_of(running_.begin(), running_.end(), [](const auto& s) { return !s->decodes(); });
    if (waiting) share_.decode_round(seconds);
  }
}

std::vector<Acceptance> Rounds::accept(const Round& round, std::span<const backend::Drawn> drawn,
                                       std::vector<std::vector<TokenLogprobs>>& logprobs) {
  std::vector<Acceptance> acceptances;
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
  return acceptances;
}

void Rounds::settle(const Round& round, std::span<const Acceptance> acceptances) {
  std::vector<std::vector<int32_t>> rows(round.windows.size());
  std::vector<drafters::KeptRows> absorbed;
  for (size_t i = 0; i < round.windows.size(); ++i) {
    const SequenceWindow& window = round.windows[i];
    Sequence& sequence = *window.sequence;
    const auto first = static_cast<size_t>(sequence.lane.committed);
    const size_t count = acceptances[i].path.size();
    sequence.lane.committed += static_cast<int32_t>(count);
    if (sequence.request.draft && !drafts_.empty()) {
      for (const int32_t row : acceptances[i].path) rows[i].push_back(forward_.first_row(i) + row);
      absorbed.push_back({.lane = sequence.lane_index,
                          .first_position = static_cast<int32_t>(first),
                          .rows = rows[i],
                          .next_tokens = std::span<const int32_t>(sequence.tokens).subspan(first + 1, count),
                          .pages = sequence.lane.pages});
    }
    if (window.drafter >= 0) count_drafts(window, round.drafts[i], static_cast<int32_t>(count) - 1);
    if (!window.decode) keep_states(sequence);
  }
  drafts_.absorb(absorbed, forward_.hidden(), forward_.taps());
}

void Rounds::count_drafts(const SequenceWindow& window, const drafters::Draft& draft, int32_t accepted) {
  Sequence& sequence = *window.sequence;
  const int32_t drafted = window.rows() - 1;
  drafts_.observe(sequence, window.drafter, draft, accepted);
  auto& [own_drafted, own_accepted] = sequence.statistics.by_drafter[std::string(drafts_.name(window.drafter))];
  own_drafted += drafted;
  own_accepted += accepted;
  sequence.statistics.drafted += drafted;
  sequence.statistics.accepted += accepted;
  totals_.drafted += static_cast<uint64_t>(drafted);
  totals_.accepted += static_cast<uint64_t>(accepted);
}

void Rounds::keep_states(const Sequence& sequence) {
  const auto& points = sequence.snapshot_points;
  const int32_t committed = sequence.lane.committed;
  if (store_ == nullptr || !std::binary_search(points.begin(), points.end(), committed)) return;
  const bool system = committed == sequence.request.system_tokens;
  store_->keep(sequence.tokens, sequence.lane, system ? KeepReason::system_block : KeepReason::prompt_point);
}

void Rounds::deliver(Sequence& sequence, Acceptance& acceptance, std::span<const TokenLogprobs> logprobs) {
  if (acceptance.emitted == 0) return;
  if (sequence.first_token == Clock::time_point{}) sequence.first_token = Clock::now();
  ++sequence.statistics.rounds;
  totals_.reply_tokens += static_cast<uint64_t>(acceptance.emitted);
  const auto emitted = std::span<const int32_t>(sequence.tokens).last(static_cast<size_t>(acceptance.emitted));
  bool goes_on = true;
  if (sequence.request.on_tokens) goes_on = sequence.request.on_tokens(emitted, logprobs);
  if (!goes_on && acceptance.finished != FinishReason::failed) acceptance.finished = FinishReason::stop;
  if (!acceptance.finished) return;
  const auto place =
      std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s.get() == &sequence; });
  check(place != running_.end(), "a finished sequence was not running");
  finish(std::shared_ptr<Sequence>(*place), *acceptance.finished, sequence.constraint.error());
}

}  // namespace tensorfold::engine
