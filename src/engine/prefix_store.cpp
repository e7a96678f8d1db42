#include "engine/prefix_store.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tensorfold::engine {

PrefixStore::PrefixStore(CachePool& pool, const PrefixStoreOptions& options, SnapshotFiles* files)
    : pool_(pool), options_(options), files_(files) {}

PrefixStore::~PrefixStore() { clear(); }

PrefixStore::Page::~Page() {
  // A chain may be longer than the stack is deep.
  std::shared_ptr<Page> next = std::move(before);
  while (next && next.use_count() == 1) next = std::exchange(next->before, nullptr);
}

void PrefixStore::clear() {
  while (!snapshots_.empty()) drop(*snapshots_.begin()->second);
}

PrefixStore::Snapshot* PrefixStore::find(PrefixName name) {
  const auto found = snapshots_.find(name);
  return found == snapshots_.end() ? nullptr : found->second.get();
}

std::vector<PrefixStore::Page*> PrefixStore::chain_of(const std::shared_ptr<Page>& last) {
  std::vector<Page*> chain;
  for (Page* page = last.get(); page != nullptr; page = page->before.get()) chain.push_back(page);
  std::reverse(chain.begin(), chain.end());
  return chain;
}

bool PrefixStore::begins(const Snapshot& snapshot, std::span<const int32_t> tokens) {
  size_t place = 0;
  for (const Page* page : chain_of(snapshot.last)) {
    if (place + page->tokens.size() > tokens.size()) return false;
    if (!std::equal(page->tokens.begin(), page->tokens.end(), tokens.begin() + static_cast<std::ptrdiff_t>(place))) {
      return false;
    }
    place += page->tokens.size();
  }
  return place == static_cast<size_t>(snapshot.length);
}

PrefixStore::Snapshot* PrefixStore::longest_in_memory(std::span<const int32_t> tokens,
                                                      std::span<const PrefixName> names) {
  // At least one token must be left to feed.
  for (auto length = lengths_.lower_bound(static_cast<int32_t>(tokens.size())); length != lengths_.begin();) {
    --length;
    Snapshot* snapshot = find(names[static_cast<size_t>(length->first)]);
    if (snapshot != nullptr && snapshot->length == length->first && begins(*snapshot, tokens)) return snapshot;
  }
  return nullptr;
}

int32_t PrefixStore::resume(std::span<const int32_t> tokens, CacheLane& lane) {
  check(lane.committed == 0 && lane.pages.empty(), "only an empty lane can resume");
  if (tokens.size() < 2) return 0;
  const std::vector<PrefixName> names = prefix_names(tokens);
  Snapshot* best = longest_in_memory(tokens, names);
  if (Snapshot* longer = load_longer(tokens, names, best == nullptr ? 0 : best->length)) best = longer;
  const int32_t length = best == nullptr ? 0 : best->length;
  if (!pool_.has_state()) {
    // Without recurrent state every page boundary is a place to go on from.
    if (const int32_t reached = resume_pages(tokens, names, length, lane); reached > 0) return reached;
  }
  if (best == nullptr) return 0;
  best->used = ++clock_;
  if (!best->on_device && !promote(*best)) {
    fit_host(nullptr);
    return 0;
  }
  for (const Page* page : chain_of(best->last)) {
    pool_.pages().retain(page->device_page);
    lane.pages.push_back(page->device_page);
  }
  if (pool_.has_state()) pool_.copy_state(best->state_slot, lane.state_slot);
  lane.committed = best->length;
  ++totals_.resumed;
  return best->length;
}

bool PrefixStore::awaits_disk(std::span<const int32_t> tokens) {
  if (files_ == nullptr || tokens.size() < 2) return false;
  const std::vector<PrefixName> names = prefix_names(tokens);
  const Snapshot* best = longest_in_memory(tokens, names);
  for (const int32_t length : files_->lengths_above(best == nullptr ? 0 : best->length)) {
    if (length >= static_cast<int32_t>(tokens.size())) continue;
    const PrefixName name = names[static_cast<size_t>(length)];
    if (!files_->holds(name) || find(name) != nullptr) continue;
    switch (files_->fetch(name)) {
      case SnapshotFiles::Fetch::reading:
        return true;
      case SnapshotFiles::Fetch::ready:
        return false;
      case SnapshotFiles::Fetch::none:
        break;
    }
  }
  return false;
}

int32_t PrefixStore::resume_pages(std::span<const int32_t> tokens, std::span<const PrefixName> names, int32_t than,
                                  CacheLane& lane) {
  const auto page_tokens = static_cast<size_t>(pool_.page_tokens());
  std::vector<int32_t> pages;
  for (size_t end = page_tokens; end <= tokens.size(); end += page_tokens) {
    const auto found = pages_.find(names[end]);
    const std::shared_ptr<Page> page = found == pages_.end() ? nullptr : found->second.lock();
    if (!page || page->device_page < 0) break;
    const auto own = tokens.subspan(end - page_tokens, page_tokens);
    if (!std::equal(own.begin(), own.end(), page->tokens.begin(), page->tokens.end())) break;
    pages.push_back(page->device_page);
  }
  const auto reached = static_cast<int32_t>(std::min(pages.size() * page_tokens, tokens.size() - 1));
  if (reached <= than) return 0;
  for (const int32_t page : pages) pool_.pages().retain(page);
  lane.pages = pages;
  lane.committed = reached;
  pool_.trim(lane);
  ++totals_.resumed;
  return reached;
}

std::shared_ptr<PrefixStore::Page> PrefixStore::pages_for_lane(std::span<const int32_t> tokens,
                                                               std::span<const PrefixName> names,
                                                               const CacheLane& lane) {
  const auto page_tokens = static_cast<size_t>(pool_.page_tokens());
  const auto length = static_cast<size_t>(lane.committed);
  std::shared_ptr<Page> last;
  for (size_t j = 0; j * page_tokens < length; ++j) {
    const size_t end = std::min((j + 1) * page_tokens, length);
    const bool full = end == (j + 1) * page_tokens;
    const auto own = tokens.subspan(j * page_tokens, end - j * page_tokens);
    if (full) {
      if (const auto known = pages_.find(names[end]); known != pages_.end()) {
        std::shared_ptr<Page> page = known->second.lock();
        const bool same = page && page->before == last &&
                          std::equal(own.begin(), own.end(), page->tokens.begin(), page->tokens.end());
        if (same) {
          last = std::move(page);
          continue;
        }
      }
    }
    auto page = std::make_shared<Page>();
    page->before = last;
    page->name = names[end];
    page->tokens.assign(own.begin(), own.end());
    if (full) pages_.insert_or_assign(page->name, page);
    last = std::move(page);
  }
  return last;
}

void PrefixStore::keep(std::span<const int32_t> tokens, const CacheLane& lane, KeepReason reason) {
  if (lane.committed < 1 || options_.device_slots < 1) return;
  const auto kept_tokens = tokens.first(static_cast<size_t>(lane.committed));
  const std::vector<PrefixName> names = prefix_names(kept_tokens);
  if (Snapshot* known = find(names.back()); known != nullptr) {
    known->used = ++clock_;
    known->pinned = known->pinned || reason == KeepReason::system_block;
    return;
  }
  if (pool_.has_state()) {
    while (device_states_ >= options_.device_slots) {
      if (!yield_one(nullptr)) return;
    }
  }
  auto snapshot = std::make_unique<Snapshot>();
  snapshot->name = names.back();
  snapshot->length = lane.committed;
  if (pool_.has_state()) {
    const auto slot = pool_.slots().allocate();
    if (!slot) return;
    snapshot->state_slot = *slot;
    ++device_states_;
    pool_.copy_state(lane.state_slot, *slot);
  }
  snapshot->last = pages_for_lane(kept_tokens, names, lane);
  snapshot->on_device = true;
  snapshot->pinned = reason == KeepReason::system_block;
  snapshot->used = ++clock_;
  size_t j = 0;
  for (Page* page : chain_of(snapshot->last)) {
    if (page->device_page < 0) {
      page->device_page = lane.pages[j];
      pool_.pages().retain(page->device_page);
    }
    ++page->device_users;
    ++j;
  }
  const Snapshot& kept = *snapshot;
  ++lengths_[kept.length];
  snapshots_.insert_or_assign(kept.name, std::move(snapshot));
  ++totals_.kept;
  thin(names, kept.length);
  limit_pins();
  if (reason == KeepReason::system_block || reason == KeepReason::reply_end) write(kept, names);
}

void PrefixStore::thin(std::span<const PrefixName> names, int32_t length) {
  std::vector<Snapshot*> behind;
  for (const auto& [other, count] : lengths_) {
    if (other > length) break;
    Snapshot* snapshot = find(names[static_cast<size_t>(other)]);
    if (snapshot != nullptr && snapshot->length == other) behind.push_back(snapshot);
  }
  // The newest stays until a newer one stands; behind it, least_state_gap apart.
  int32_t before = 0;
  std::vector<Snapshot*> kept;
  for (Snapshot* snapshot : behind) {
    const bool newest = snapshot->length == length;
    if (!newest && !snapshot->pinned && snapshot->length - before < least_state_gap) {
      if (files_ != nullptr) files_->supersede(snapshot->name);
      drop(*snapshot);
      continue;
    }
    before = snapshot->length;
    kept.push_back(snapshot);
  }
  while (static_cast<int32_t>(kept.size()) > most_states_a_conversation) {
    // The one whose loss costs the least: the smallest gap between its neighbours.
    size_t victim = 0;
    int32_t smallest = INT32_MAX;
    for (size_t i = 0; i + 1 < kept.size(); ++i) {
      if (kept[i]->pinned) continue;
      const int32_t gap = kept[i + 1]->length - (i == 0 ? 0 : kept[i - 1]->length);
      if (gap >= smallest) continue;
      smallest = gap;
      victim = i;
    }
    if (smallest == INT32_MAX) return;
    drop(*kept[victim]);
    kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(victim));
  }
}

void PrefixStore::limit_pins() {
  std::vector<Snapshot*> pinned;
  for (const auto& [name, snapshot] : snapshots_) {
    if (snapshot->pinned) pinned.push_back(snapshot.get());
  }
  std::sort(pinned.begin(), pinned.end(), [](const Snapshot* a, const Snapshot* b) { return a->used > b->used; });
  for (size_t i = static_cast<size_t>(options_.pinned); i < pinned.size(); ++i) pinned[i]->pinned = false;
}

PrefixStore::Bytes PrefixStore::read_page(const Page& page) {
  Bytes bytes(static_cast<size_t>(pool_.page_bytes()));
  pool_.read_page(page.device_page, bytes);
  return bytes;
}

void PrefixStore::leave_device(Snapshot& snapshot) {
  if (!snapshot.on_device) return;
  for (Page* page : chain_of(snapshot.last)) {
    if (--page->device_users > 0) continue;
    if (page->host_users > 0 && !page->bytes) {
      page->bytes = std::make_shared<const Bytes>(read_page(*page));
      host_bytes_ += page->bytes->size();
    }
    pool_.pages().release(page->device_page);
    page->device_page = -1;
  }
  if (snapshot.state_slot >= 0) {
    pool_.slots().release(snapshot.state_slot);
    snapshot.state_slot = -1;
    --device_states_;
  }
  snapshot.on_device = false;
}

void PrefixStore::leave_host(Snapshot& snapshot) {
  if (!snapshot.state) return;
  for (Page* page : chain_of(snapshot.last)) {
    if (--page->host_users > 0 || !page->bytes) continue;
    host_bytes_ -= page->bytes->size();
    page->bytes.reset();
  }
  host_bytes_ -= snapshot.state->size();
  snapshot.state.reset();
}

void PrefixStore::demote(Snapshot& snapshot) {
  auto state = std::make_shared<Bytes>(static_cast<size_t>(pool_.state_bytes()));
  if (pool_.has_state()) pool_.read_state(snapshot.state_slot, *state);
  host_bytes_ += state->size();
  snapshot.state = std::move(state);
  for (Page* page : chain_of(snapshot.last)) ++page->host_users;
  leave_device(snapshot);
  ++totals_.demoted;
}

void PrefixStore::drop(Snapshot& snapshot) {
  leave_device(snapshot);
  leave_host(snapshot);
  const auto length = lengths_.find(snapshot.length);
  if (--length->second == 0) lengths_.erase(length);
  ++totals_.dropped;
  for (const Page* page : chain_of(snapshot.last)) {
    if (page->device_users > 0 || page->host_users > 0) continue;
    const auto named = pages_.find(page->name);
    if (named != pages_.end() && named->second.lock().get() == page) pages_.erase(named);
  }
  snapshots_.erase(snapshot.name);
}

bool PrefixStore::yield_one(const Snapshot* except) {
  Snapshot* victim = nullptr;
  for (const auto& [name, snapshot] : snapshots_) {
    if (!snapshot->on_device || snapshot.get() == except) continue;
    const auto rank = [](const Snapshot& s) { return std::pair(s.pinned, s.used); };
    if (victim == nullptr || rank(*snapshot) < rank(*victim)) victim = snapshot.get();
  }
  if (victim == nullptr) return false;
  if (options_.host_bytes > 0) {
    demote(*victim);
    fit_host(except);
  } else {
    drop(*victim);
  }
  return true;
}

void PrefixStore::fit_host(const Snapshot* except) {
  while (host_bytes_ > options_.host_bytes) {
    Snapshot* victim = nullptr;
    for (const auto& [name, snapshot] : snapshots_) {
      if (snapshot->on_device || !snapshot->state || snapshot.get() == except) continue;
      if (victim == nullptr || snapshot->used < victim->used) victim = snapshot.get();
    }
    if (victim == nullptr) return;
    drop(*victim);
  }
}

bool PrefixStore::make_room(int32_t pages) {
  while (pool_.free_pages() < pages) {
    if (!yield_one(nullptr)) return false;
  }
  return true;
}

bool PrefixStore::promote(Snapshot& snapshot) {
  const std::vector<Page*> chain = chain_of(snapshot.last);
  const auto missing = [&] {
    return std::count_if(chain.begin(), chain.end(), [](const Page* page) { return page->device_page < 0; });
  };
  while (pool_.free_pages() < missing() || (pool_.has_state() && device_states_ >= options_.device_slots)) {
    if (!yield_one(&snapshot)) return false;
  }
  if (pool_.has_state()) {
    const auto slot = pool_.slots().allocate();
    if (!slot) return false;
    snapshot.state_slot = *slot;
    ++device_states_;
    pool_.write_state(*slot, *snapshot.state);
  }
  for (Page* page : chain) {
    if (page->device_page < 0) {
      page->device_page = pool_.pages().allocate().value();
      pool_.write_page(page->device_page, *page->bytes);
    }
    ++page->device_users;
  }
  snapshot.on_device = true;
  leave_host(snapshot);
  ++totals_.from_host;
  return true;
}

PrefixStore::Snapshot* PrefixStore::load_longer(std::span<const int32_t> tokens, std::span<const PrefixName> names,
                                                int32_t than) {
  if (files_ == nullptr) return nullptr;
  for (const int32_t length : files_->lengths_above(than)) {
    if (length >= static_cast<int32_t>(tokens.size())) continue;
    const PrefixName name = names[static_cast<size_t>(length)];
    if (!files_->holds(name) || find(name) != nullptr) continue;
    std::optional<SnapshotImage> image = files_->take(name);
    if (!image || image->length != length) continue;
    if (!std::equal(image->tokens.begin(), image->tokens.end(), tokens.begin())) continue;
    const CacheLane places{.pages = {}, .state_slot = -1, .committed = length};
    auto snapshot = std::make_unique<Snapshot>();
    snapshot->name = name;
    snapshot->length = length;
    snapshot->last = pages_for_lane(tokens.first(static_cast<size_t>(length)), names, places);
    snapshot->state = image->state;
    snapshot->pinned = image->pinned;
    snapshot->used = ++clock_;
    host_bytes_ += snapshot->state->size();
    size_t j = 0;
    for (Page* page : chain_of(snapshot->last)) {
      ++page->host_users;
      if (!page->bytes && page->device_page < 0) {
        page->bytes = image->pages[j];
        host_bytes_ += page->bytes->size();
      }
      ++j;
    }
    ++lengths_[length];
    ++totals_.from_disk;
    return snapshots_.insert_or_assign(name, std::move(snapshot)).first->second.get();
  }
  return nullptr;
}

void PrefixStore::write(const Snapshot& snapshot, std::span<const PrefixName> names) {
  if (files_ == nullptr || files_->reclaim(snapshot.name)) return;
  SnapshotImage image{.name = snapshot.name,
                      .length = snapshot.length,
                      .parent = 0,
                      .first_page = 0,
                      .pinned = snapshot.pinned,
                      .tokens = {},
                      .state = nullptr,
                      .pages = {}};
  // The longest kept prefix that is on disk already holds the pages below.
  for (auto length = lengths_.lower_bound(snapshot.length); length != lengths_.begin();) {
    --length;
    const PrefixName name = names[static_cast<size_t>(length->first)];
    if (find(name) == nullptr || !files_->holds(name)) continue;
    image.first_page = length->first / pool_.page_tokens();
    image.parent = image.first_page > 0 ? name : 0;
    break;
  }
  auto state = std::make_shared<Bytes>(static_cast<size_t>(pool_.state_bytes()));
  if (pool_.has_state()) pool_.read_state(snapshot.state_slot, *state);
  image.state = std::move(state);
  const std::vector<Page*> chain = chain_of(snapshot.last);
  for (size_t j = static_cast<size_t>(image.first_page); j < chain.size(); ++j) {
    const Page& page = *chain[j];
    image.tokens.insert(image.tokens.end(), page.tokens.begin(), page.tokens.end());
    image.pages.push_back(page.bytes ? page.bytes : std::make_shared<const Bytes>(read_page(page)));
  }
  files_->write(std::move(image));
}

}  // namespace tensorfold::engine
