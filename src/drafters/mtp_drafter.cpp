#include "drafters/mtp_drafter.h"

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace tensorfold::drafters {
namespace {

// Lanes that may draft in one round; the head's logits are vocabulary wide, so their rows are bounded.
constexpr int32_t kMostLanes = 64;
// Rows wait unread as long as there is room: many are never needed, since no draft is wanted behind them.
constexpr int64_t kWaitingBytes = 16 << 20;
constexpr int64_t kMostWaiting = 8192;
// Keys of backend::Backend::run: one forward shape each.
constexpr uint64_t kAbsorbShape = 0x4D54502D41ULL;
constexpr uint64_t kChainShape = 0x4D54502D43ULL;

}  // namespace

MtpDrafter::MtpDrafter(backend::Backend& backend, families::Model& model, const MtpOptions& options)
    : backend_(backend),
      model_(model),
      options_(options),
      capacity_(static_cast<int32_t>(
          std::clamp<int64_t>(kWaitingBytes / (4 * model.info().hidden_width()), model.max_rows(), kMostWaiting))),
      waiting_inputs_(backend.allocate(capacity_, model.info().hidden_width())),
      inputs_(backend.allocate(model.max_rows(), model.info().hidden_width())),
      outputs_(backend.allocate(model.max_rows(), model.info().hidden_width())),
      logits_(backend.allocate(std::min(kMostLanes, model.max_rows()), model.info().vocabulary_size)) {
  check(model.draft_head() != nullptr, "an MTP drafter needs a model with a draft head");
}

backend::CacheLayout MtpDrafter::cache_layout() const { return model_.draft_head()->cache_layout(); }

void MtpDrafter::open(int32_t lane, std::span<const int32_t> /*context*/, int32_t /*cached*/) {
  lanes_.insert_or_assign(lane, Lane{});
}

void MtpDrafter::close(int32_t lane) {
  const auto found = lanes_.find(lane);
  if (found == lanes_.end()) return;
  // A kept prefix should hold the head's entries too, unless nothing but drafts that were never wanted would use them.
  if (found->second.proposed && waiting_rows(lane) > 0) run_queue({}, {});
  std::erase_if(queue_, [lane](const Queued& row) { return row.lane == lane; });
  lanes_.erase(found);
}

int32_t MtpDrafter::waiting_rows(int32_t lane) const {
  return static_cast<int32_t>(
      std::count_if(queue_.begin(), queue_.end(), [lane](const Queued& row) { return row.lane == lane; }));
}

void MtpDrafter::absorb(std::span<const KeptRows> kept, backend::Tensor hidden, backend::Tensor /*taps*/) {
  for (const KeptRows& rows : kept) {
    const auto lane = lanes_.find(rows.lane);
    if (lane == lanes_.end()) continue;
    lane->second.pages.assign(rows.pages.begin(), rows.pages.end());
    size_t done = 0;
    while (done < rows.next_tokens.size()) {
      int32_t place = queue_.empty() ? 0 : queue_.back().input + 1;
      if (place == capacity_) {
        run_queue({}, {});
        place = 0;
      }
      const size_t count = std::min(static_cast<size_t>(capacity_ - place), rows.next_tokens.size() - done);
      for (size_t k = 0; k < count; ++k) {
        queue_.push_back({rows.lane, rows.first_position + static_cast<int32_t>(done + k), rows.next_tokens[done + k],
                          place + static_cast<int32_t>(k)});
      }
      backend_.gather_rows(rows.rows.subspan(done, count), hidden, waiting_inputs_.view, place);
      done += count;
    }
  }
}

backend::Plan MtpDrafter::run_rows(std::span<const Queued> rows, std::span<const bool> wanted) {
  backend::Plan plan;
  std::vector<int32_t> sources;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Queued& row = rows[i];
    const bool follows = i > 0 && rows[i - 1].lane == row.lane && rows[i - 1].entry + 1 == row.entry;
    if (!follows) plan.begin_sequence(row.entry, -1, lanes_.at(row.lane).pages, true);
    plan.add_row(row.token, row.entry, follows ? plan.rows() - 1 : -1, wanted[i]);
    sources.push_back(row.input);
  }
  backend_.gather_rows(sources, waiting_inputs_.view, inputs_.view, 0);
  backend_.run(plan, kAbsorbShape,
               [&] { model_.draft_head()->forward(plan, *cache_, inputs_.view, outputs_.view, logits_.view); });
  return plan;
}

std::vector<MtpDrafter::Chain> MtpDrafter::run_queue(std::span<const DraftRequest> requests, std::span<Draft> out) {
  std::vector<Chain> chains;
  if (queue_.empty()) return chains;
  // A lane's rows side by side; what drafts, its last one, at the end of all.
  std::stable_sort(queue_.begin(), queue_.end(), [](const Queued& a, const Queued& b) { return a.lane < b.lane; });
  std::vector<Queued> rows;
  std::vector<Queued> last;
  std::vector<Queued> others;  // of lanes that want nothing now: they wait on
  for (size_t i = 0; i < queue_.size(); ++i) {
    const Queued& row = queue_[i];
    const bool ends = i + 1 == queue_.size() || queue_[i + 1].lane != row.lane;
    const auto request = std::find_if(requests.begin(), requests.end(),
                                      [&](const DraftRequest& r) { return r.lane == row.lane && r.most > 0; });
    if (ends && request != requests.end() && last.size() < static_cast<size_t>(kMostLanes)) {
      chains.push_back({static_cast<size_t>(request - requests.begin()), row.entry, 0, nullptr});
      chains.back().draft = &out[chains.back().request];
      last.push_back(row);
    } else if (request == requests.end() && !requests.empty()) {
      others.push_back(row);
    } else {
      rows.push_back(row);
    }
  }
  const auto by_place = [](const Queued& a, const Queued& b) { return a.input < b.input; };
  std::sort(others.begin(), others.end(), by_place);
  queue_ = std::move(others);
  rows.insert(rows.end(), last.begin(), last.end());
  const auto most = static_cast<size_t>(model_.max_rows());
  backend::Plan plan;
  for (size_t first = 0; first < rows.size();) {
    // The last pass holds all that drafts.
    const size_t left = rows.size() - first;
    const size_t count = left <= most ? left : std::min(most, left - std::max<size_t>(last.size(), 1));
    const auto wanted = std::make_unique<bool[]>(count);
    for (size_t i = 0; i < count; ++i) wanted[i] = first + i >= rows.size() - last.size();
    plan = run_rows(std::span(rows).subspan(first, count), {wanted.get(), count});
    first += count;
  }
  for (size_t i = 0; i < chains.size(); ++i) {
    chains[i].hidden_row = plan.rows() - static_cast<int32_t>(chains.size() - i);
  }
  if (!chains.empty()) extend_chains(plan, requests, chains);
  return chains;
}

void MtpDrafter::extend_chains(const backend::Plan& plan, std::span<const DraftRequest> requests,
                               std::vector<Chain>& chains) {
  std::vector<backend::DrawRow> rows(chains.size());
  for (size_t i = 0; i < chains.size(); ++i) {
    rows[i].logit_row = static_cast<int32_t>(i);
    rows[i].position = chains[i].entry + 2;
    rows[i].settings = requests[chains[i].request].sampling;
    rows[i].top_logprobs = 0;  // for the token's own probability
  }
  std::vector<backend::Drawn> drawn(chains.size());
  backend_.draw(plan, logits_.view, rows);
  backend_.read_draws(drawn);
  std::vector<Chain> running;
  for (size_t i = 0; i < chains.size(); ++i) {
    Draft& draft = *chains[i].draft;
    if (!draft.empty() && drawn[i].probability < options_.confidence) continue;
    draft.tokens.push_back(drawn[i].token);
    draft.confidence.push_back(drawn[i].probability);
    const int32_t most = std::min(options_.most, requests[chains[i].request].most);
    const bool goes_on =
        static_cast<int32_t>(draft.tokens.size()) < most && drawn[i].probability >= options_.confidence;
    if (goes_on) running.push_back(chains[i]);
  }
  chains = std::move(running);
}

void MtpDrafter::propose(std::span<const DraftRequest> requests, std::span<Draft> out) {
  for (Draft& draft : out) draft = {};
  for (const DraftRequest& request : requests) {
    if (const auto lane = lanes_.find(request.lane); lane != lanes_.end()) lane->second.proposed = true;
  }
  std::vector<Chain> chains = run_queue(requests, out);
  while (!chains.empty()) {
    backend::Plan plan;
    std::vector<int32_t> sources;
    for (Chain& chain : chains) {
      const DraftRequest& request = requests[chain.request];
      sources.push_back(chain.hidden_row);
      chain.entry += 1;
      plan.begin_sequence(chain.entry, -1, request.pages, true);
      chain.hidden_row = plan.add_row(chain.draft->tokens.back(), chain.entry, -1, true);
    }
    backend_.gather_rows(sources, outputs_.view, inputs_.view, 0);
    backend_.run(plan, kChainShape,
                 [&] { model_.draft_head()->forward(plan, *cache_, inputs_.view, outputs_.view, logits_.view); });
    extend_chains(plan, requests, chains);
  }
}

}  // namespace tensorfold::drafters
