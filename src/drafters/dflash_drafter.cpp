#include "drafters/dflash_drafter.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tensorfold::drafters {
namespace {

// Keys of backend::Backend::run: one forward shape each.
constexpr uint64_t kContextShape = 0x44464C2D43ULL;
constexpr uint64_t kBlockShape = 0x44464C2D42ULL;
// Logit rows are vocabulary wide: so many lanes draft in one pass.
constexpr int32_t kMostLanes = 8;

}  // namespace

DflashDrafter::DflashDrafter(backend::Backend& backend, families::Model& model, const nlohmann::json& config,
                             const format::TensorStore& store, const DflashOptions& options)
    : backend_(backend),
      model_(model),
      options_(options),
      network_(backend, read_dflash_config(config, model.info()), store, options.bits, model.max_rows()),
      waiting_(backend, network_.config().hidden_size * static_cast<int64_t>(network_.config().tap_layers.size()),
               model.max_rows()) {
  const DflashConfig& sizes = network_.config();
  if (sizes.block_size > model.max_rows())
    fail(ErrorKind::unsupported, "the drafter's block of {} rows exceeds the {} rows of a forward", sizes.block_size,
         model.max_rows());
  if (sizes.selector_rank > 0) selector_ = CandidateSelector(store, model.info().vocabulary_size, sizes.selector_rank);
  lanes_a_plan_ = std::clamp(model.max_rows() / sizes.block_size, 1, kMostLanes);
  const int64_t hidden = sizes.hidden_size;
  const int64_t drafted = int64_t{lanes_a_plan_} * drafted_rows();
  taps_ = backend.allocate(model.max_rows(), hidden * static_cast<int64_t>(sizes.tap_layers.size()));
  hidden_ = backend.allocate(int64_t{lanes_a_plan_} * sizes.block_size, hidden);
  normed_ = backend.allocate(int64_t{lanes_a_plan_} * sizes.block_size, hidden);
  if (sizes.selector_rank > 0) projected_ = backend.allocate(drafted, sizes.selector_rank);
  logits_ = backend.allocate(drafted, model.info().vocabulary_size);
}

void DflashDrafter::open(int32_t lane, std::span<const int32_t> /*context*/, int32_t /*cached*/) {
  lanes_.insert_or_assign(lane, Lane{});
}

void DflashDrafter::close(int32_t lane) {
  const auto found = lanes_.find(lane);
  if (found == lanes_.end()) return;
  // A kept prefix should hold the context's entries too, where drafts are likely to be wanted behind it.
  const int32_t waiting = waiting_.count(lane);
  if (waiting > 0 && waiting <= most_rows_read_at_the_end && found->second.proposed) {
    read(waiting_.take([lane](int32_t other) { return other == lane; }));
  }
  waiting_.drop(lane);
  lanes_.erase(found);
}

void DflashDrafter::absorb(std::span<const KeptRows> kept, backend::Tensor /*hidden*/, backend::Tensor taps) {
  for (const KeptRows& rows : kept) {
    const auto lane = lanes_.find(rows.lane);
    if (lane == lanes_.end()) continue;
    lane->second.pages.assign(rows.pages.begin(), rows.pages.end());
    for (size_t done = 0; done < rows.rows.size();) {
      const size_t added =
          waiting_.add(rows.lane, rows.first_position + static_cast<int32_t>(done), rows.rows.subspan(done), {}, taps);
      if (added == 0) read(waiting_.take([](int32_t) { return true; }));
      done += added;
    }
  }
}

void DflashDrafter::read(std::span<const WaitingRows::Row> rows) {
  while (!rows.empty()) {
    const auto some = rows.first(std::min(rows.size(), static_cast<size_t>(model_.max_rows())));
    backend::Plan plan;
    for (size_t i = 0; i < some.size(); ++i) {
      const bool follows = i > 0 && some[i - 1].lane == some[i].lane && some[i - 1].position + 1 == some[i].position;
      if (!follows) plan.begin_sequence(some[i].position, -1, lanes_.at(some[i].lane).pages, true);
      plan.add_row(0, some[i].position, follows ? plan.rows() - 1 : -1, false);
    }
    waiting_.gather(some, taps_.view);
    backend_.run(plan, kContextShape, [&] { network_.absorb(plan, *cache_, taps_.view); });
    rows = rows.subspan(some.size());
  }
}

void DflashDrafter::propose(std::span<const DraftRequest> requests, std::span<Draft> out) {
  for (Draft& draft : out) draft = {};
  std::vector<DraftRequest> wanted;
  std::vector<size_t> places;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].most <= 0 || !lanes_.contains(requests[i].lane)) continue;
    lanes_.at(requests[i].lane).proposed = true;
    wanted.push_back(requests[i]);
    places.push_back(i);
  }
  if (wanted.empty()) return;
  read(waiting_.take([&](int32_t lane) {
    return std::any_of(wanted.begin(), wanted.end(),
                       [lane](const DraftRequest& request) { return request.lane == lane; });
  }));
  std::vector<Draft> drafts(wanted.size());
  const auto step = static_cast<size_t>(lanes_a_plan_);
  for (size_t i = 0; i < wanted.size(); i += step) {
    const size_t count = std::min(step, wanted.size() - i);
    propose_some(std::span(wanted).subspan(i, count), std::span(drafts).subspan(i, count));
  }
  for (size_t i = 0; i < places.size(); ++i) out[places[i]] = std::move(drafts[i]);
}

void DflashDrafter::propose_some(std::span<const DraftRequest> requests, std::span<Draft> out) {
  const DflashConfig& sizes = network_.config();
  backend::Plan plan;
  for (const DraftRequest& request : requests) {
    const auto position = static_cast<int32_t>(request.context.size()) - 1;
    plan.begin_sequence(position, -1, request.pages, false);
    plan.add_row(request.context.back(), position, -1, false);
    for (int32_t j = 1; j < sizes.block_size; ++j) plan.add_row(sizes.mask_token, position + j, plan.rows() - 1, true);
  }
  const auto logit_rows = static_cast<size_t>(plan.logit_rows.size());
  backend_.run(plan, kBlockShape, [&] {
    model_.embed(plan, hidden_.view);
    network_.block(plan, *cache_, hidden_.view, normed_.view, projected_.view);
    model_.head(plan, normed_.view, logits_.view);
  });
  const auto width = static_cast<int32_t>(std::min<int64_t>(sizes.selector_top, model_.info().vocabulary_size));
  backend_.top_candidates(plan, logits_.view, width);
  std::vector<float> values(logit_rows * static_cast<size_t>(width));
  std::vector<int32_t> ids(values.size());
  backend_.read_candidates(values, ids);
  for (float& value : values) {
    value *= sizes.output_multiplier;
    if (sizes.logit_softcap > 0.0F) value = sizes.logit_softcap * std::tanh(value / sizes.logit_softcap);
  }
  std::vector<float> projected(logit_rows * static_cast<size_t>(sizes.selector_rank));
  if (!projected.empty()) backend_.read_rows(projected_.view, 0, static_cast<int64_t>(logit_rows), projected);

  const auto rows = static_cast<size_t>(drafted_rows());
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    const auto rank = static_cast<size_t>(sizes.selector_rank);
    const size_t at = i * rows * static_cast<size_t>(width);
    const size_t size = rows * static_cast<size_t>(width);
    const Lattice lattice{drafted_rows(), width, std::span(ids).subspan(at, size), std::span(values).subspan(at, size),
                          std::span(projected).subspan(i * rows * rank, rows * rank)};
    const auto next = static_cast<int64_t>(request.context.size());
    out[i] = options_.tree
                 ? grow_tree(lattice, selector_, request.context.back(), request.sampling, next, request.most,
                             options_.weights)
                 : walk_chain(lattice, selector_, request.context.back(), request.sampling, next, request.most);
  }
}

}  // namespace tensorfold::drafters
