#include "drafters/mtp_drafter.h"

#include <algorithm>

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
      inputs_(backend.allocate(model.max_rows(), model.info().hidden_width())),
      outputs_(backend.allocate(model.max_rows(), model.info().hidden_width())),
      logits_(backend.allocate(std::min(kMostLanes, model.max_rows()), model.info().vocabulary_size)) {
  check(model.draft_head() != nullptr, "an MTP drafter needs a model with a draft head");
}

backend::CacheLayout MtpDrafter::cache_layout() const { return model_.draft_head()->cache_layout(); }

void MtpDrafter::open(int32_t lane, std::span<const int32_t> /*context*/, int32_t /*cached*/) {
  std::erase_if(queue_, [lane](const Queued& row) { return row.lane == lane; });
  lanes_.insert(lane);
}

void MtpDrafter::absorb(std::span<const KeptRows> kept, backend::Tensor hidden, backend::Tensor /*taps*/) {
  for (const KeptRows& rows : kept) {
    if (!lanes_.contains(rows.lane)) continue;
    size_t done = 0;
    while (done < rows.next_tokens.size()) {
      if (queue_.size() == static_cast<size_t>(model_.max_rows())) run_queue({}, {});
      const size_t room = static_cast<size_t>(model_.max_rows()) - queue_.size();
      const size_t count = std::min(room, rows.next_tokens.size() - done);
      for (size_t k = 0; k < count; ++k) {
        Queued row{rows.lane, rows.first_position + static_cast<int32_t>(done + k), rows.next_tokens[done + k], {}};
        if (k == 0) row.pages.assign(rows.pages.begin(), rows.pages.end());
        queue_.push_back(std::move(row));
      }
      backend_.gather_rows(rows.rows.subspan(done, count), hidden, inputs_.view,
                           static_cast<int32_t>(queue_.size() - count));
      done += count;
    }
  }
}

std::vector<MtpDrafter::Chain> MtpDrafter::run_queue(std::span<const DraftRequest> requests, std::span<Draft> out) {
  std::vector<Chain> chains;
  if (queue_.empty()) return chains;
  backend::Plan plan;
  for (size_t i = 0; i < queue_.size(); ++i) {
    const Queued& row = queue_[i];
    if (!row.pages.empty()) plan.begin_sequence(row.entry, -1, row.pages, true);
    const bool last = i + 1 == queue_.size() || queue_[i + 1].lane != row.lane;
    const auto wanted = std::find_if(requests.begin(), requests.end(),
                                     [&](const DraftRequest& r) { return r.lane == row.lane && r.most > 0; });
    const bool drafts = last && wanted != requests.end() && chains.size() < static_cast<size_t>(kMostLanes);
    const int32_t index =
        plan.add_row(row.token, row.entry, plan.sequences.back().row_count == 0 ? -1 : plan.rows() - 1, drafts);
    if (drafts) {
      const auto request = static_cast<size_t>(wanted - requests.begin());
      chains.push_back({request, row.entry, index, &out[request]});
    }
  }
  backend_.run(plan, kAbsorbShape,
               [&] { model_.draft_head()->forward(plan, *cache_, inputs_.view, outputs_.view, logits_.view); });
  queue_.clear();
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
