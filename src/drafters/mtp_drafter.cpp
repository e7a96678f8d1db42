#include "drafters/mtp_drafter.h"

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace tensorfold::drafters {
namespace {

// Lanes that may draft in one round; the head's logits are vocabulary wide, so their rows are bounded.
constexpr int32_t kMostLanes = 64;
// Keys of backend::Backend::run: one forward shape each.
constexpr uint64_t kAbsorbShape = 0x4D54502D41ULL;
constexpr uint64_t kChainShape = 0x4D54502D43ULL;

}  // namespace

MtpDrafter::MtpDrafter(backend::Backend& backend, families::Model& model, const MtpOptions& options)
    : backend_(backend),
      model_(model),
      options_(options),
      waiting_(backend, model.info().hidden_width(), model.max_rows()),
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
  // A kept prefix should hold the head's entries too, where drafts are likely to be wanted behind it.
  const int32_t waiting = waiting_.count(lane);
  if (waiting > 0 && waiting <= most_rows_read_at_the_end && found->second.proposed) {
    read(waiting_.take([lane](int32_t other) { return other == lane; }), {}, {});
  }
  waiting_.drop(lane);
  lanes_.erase(found);
}

void MtpDrafter::absorb(std::span<const KeptRows> kept, backend::Tensor hidden, backend::Tensor /*taps*/) {
  for (const KeptRows& rows : kept) {
    const auto lane = lanes_.find(rows.lane);
    if (lane == lanes_.end()) continue;
    lane->second.pages.assign(rows.pages.begin(), rows.pages.end());
    for (size_t done = 0; done < rows.next_tokens.size();) {
      const size_t left = rows.next_tokens.size() - done;
      const size_t added = waiting_.add(rows.lane, rows.first_position + static_cast<int32_t>(done),
                                        rows.rows.subspan(done, left), rows.next_tokens.subspan(done), hidden);
      if (added == 0) read(waiting_.take([](int32_t) { return true; }), {}, {});
      done += added;
    }
  }
}

backend::Plan MtpDrafter::run_rows(std::span<const Row> rows, std::span<const bool> wanted) {
  backend::Plan plan;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const bool follows = i > 0 && rows[i - 1].lane == row.lane && rows[i - 1].position + 1 == row.position;
    if (!follows) plan.begin_sequence(row.position, -1, lanes_.at(row.lane).pages, true);
    plan.add_row(row.token, row.position, follows ? plan.rows() - 1 : -1, wanted[i]);
  }
  waiting_.gather(rows, inputs_.view);
  backend_.run(plan, kAbsorbShape,
               [&] { model_.draft_head()->forward(plan, *cache_, inputs_.view, outputs_.view, logits_.view); });
  return plan;
}

std::vector<MtpDrafter::Chain> MtpDrafter::read(const std::vector<Row>& waited, std::span<const DraftRequest> requests,
                                                std::span<Draft> out) {
  std::vector<Chain> chains;
  if (waited.empty()) return chains;
  // What drafts, a lane's last row, stands at the end of all.
  std::vector<Row> rows;
  std::vector<Row> last;
  for (size_t i = 0; i < waited.size(); ++i) {
    const Row& row = waited[i];
    const bool ends = i + 1 == waited.size() || waited[i + 1].lane != row.lane;
    const auto request = std::find_if(requests.begin(), requests.end(),
                                      [&](const DraftRequest& r) { return r.lane == row.lane && r.most > 0; });
    if (ends && request != requests.end() && last.size() < static_cast<size_t>(kMostLanes)) {
      chains.push_back({static_cast<size_t>(request - requests.begin()), row.position, 0, nullptr});
      chains.back().draft = &out[chains.back().request];
      last.push_back(row);
    } else {
      rows.push_back(row);
    }
  }
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
    rows[i].position = chains[i].position + 2;
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
  const auto wanted = [&](int32_t lane) {
    return std::any_of(requests.begin(), requests.end(),
                       [lane](const DraftRequest& request) { return request.lane == lane && request.most > 0; });
  };
  std::vector<Chain> chains = read(waiting_.take(wanted), requests, out);
  while (!chains.empty()) {
    backend::Plan plan;
    std::vector<int32_t> sources;
    for (Chain& chain : chains) {
      const DraftRequest& request = requests[chain.request];
      sources.push_back(chain.hidden_row);
      chain.position += 1;
      plan.begin_sequence(chain.position, -1, request.pages, true);
      chain.hidden_row = plan.add_row(chain.draft->tokens.back(), chain.position, -1, true);
    }
    backend_.gather_rows(sources, outputs_.view, inputs_.view, 0);
    backend_.run(plan, kChainShape,
                 [&] { model_.draft_head()->forward(plan, *cache_, inputs_.view, outputs_.view, logits_.view); });
    extend_chains(plan, requests, chains);
  }
}

}  // namespace tensorfold::drafters
