#include "backend/keyed_sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "base/sha256.h"

namespace tensorfold::backend {
namespace {

using keyed::add;

constexpr float lowest = -std::numeric_limits<float>::infinity();

struct Candidate {
  float logit = lowest;
  int32_t id = 0;
  int64_t mass = 0;
};

/// The order of candidates: logit descending, id ascending.
bool before(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

float maximum(std::span<const float> values) {
  constexpr size_t lanes = 32;
  std::array<float, lanes> best;
  best.fill(lowest);
  size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) {
      const float value = values[i + lane];
      best[lane] = value > best[lane] ? value : best[lane];
    }
  }
  float result = lowest;
  for (; i < values.size(); ++i) result = values[i] > result ? values[i] : result;
  for (const float value : best) result = value > result ? value : result;
  return result;
}

int32_t first_index_of(std::span<const float> values, float wanted) {
  const auto found = std::find(values.begin(), values.end(), wanted);
  return found == values.end() ? 0 : static_cast<int32_t>(found - values.begin());
}

bool allowed(std::span<const uint32_t> mask, int32_t id) {
  const auto word = static_cast<size_t>(id) / 32;
  return mask.empty() || (word < mask.size() && ((mask[word] >> (id % 32)) & 1U) != 0);
}

/// The answer for a row in which nothing is above minus infinity.
int32_t lowest_allowed(const DrawRow& row, size_t vocabulary) {
  for (int32_t id = 0; static_cast<size_t>(id) < vocabulary; ++id) {
    if (allowed(row.mask, id)) return id;
  }
  return 0;
}

/// The logits after penalties, bias and mask: `logits` itself where nothing changes, else a copy in `scratch`.
std::span<const float> adjusted(std::span<const float> logits, const DrawRow& row, std::vector<float>& scratch) {
  const Penalties& penalties = row.penalties;
  const bool counts = !penalties.counts.empty() &&
                      (penalties.repetition != 1.0F || penalties.frequency != 0.0F || penalties.presence != 0.0F);
  if (!counts && penalties.biases.empty() && row.mask.empty()) return logits;
  scratch.assign(logits.begin(), logits.end());
  const auto inside = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < scratch.size(); };
  if (counts) {
    for (const TokenCount& count : penalties.counts) {
      if (!inside(count.token)) continue;
      float& logit = scratch[static_cast<size_t>(count.token)];
      logit = keyed::penalised(logit, count, penalties.repetition, penalties.frequency, penalties.presence);
    }
  }
  for (const LogitBias& bias : penalties.biases) {
    if (inside(bias.token)) scratch[static_cast<size_t>(bias.token)] += bias.bias;
  }
  if (!row.mask.empty()) {
    for (size_t word = 0; word * 32 < scratch.size(); ++word) {
      const uint32_t bits = word < row.mask.size() ? row.mask[word] : 0;
      if (bits == 0xFFFFFFFFU) continue;
      const size_t end = std::min(scratch.size(), word * 32 + 32);
      for (size_t id = word * 32; id < end; ++id) {
        if (((bits >> (id % 32)) & 1U) == 0) scratch[id] = lowest;
      }
    }
  }
  return scratch;
}

/// The first `count` of the order, in order. Skips blocks whose maximum cannot enter.
std::vector<Candidate> select_top(std::span<const float> logits, size_t count) {
  std::vector<Candidate> top;
  count = std::min(count, logits.size());
  if (count > 512) {
    top.reserve(logits.size());
    for (size_t id = 0; id < logits.size(); ++id) {
      const float logit = std::isnan(logits[id]) ? lowest : logits[id];
      top.push_back({.logit = logit, .id = static_cast<int32_t>(id)});
    }
    if (count < top.size()) {
      std::nth_element(top.begin(), top.begin() + static_cast<std::ptrdiff_t>(count), top.end(), before);
      top.resize(count);
    }
  } else {
    constexpr size_t block = 256;
    for (size_t first = 0; first < logits.size(); first += block) {
      const auto values = logits.subspan(first, std::min(block, logits.size() - first));
      if (top.size() == count && !(maximum(values) > top.front().logit)) continue;
      for (size_t i = 0; i < values.size(); ++i) {
        const Candidate candidate{.logit = std::isnan(values[i]) ? lowest : values[i],
                                  .id = static_cast<int32_t>(first + i)};
        if (top.size() == count) {
          if (!(candidate.logit > top.front().logit)) continue;
          std::pop_heap(top.begin(), top.end(), before);
          top.pop_back();
        }
        top.push_back(candidate);
        std::push_heap(top.begin(), top.end(), before);
      }
    }
  }
  std::sort(top.begin(), top.end(), before);
  return top;
}

/// Cuts an ordered prefix at top_p of its own mass: fp64, one running sum in order.
void cut_by_share(std::vector<Candidate>& ordered, const SamplingSettings& settings) {
  const double top = keyed::scaled_logit(ordered.front().logit, settings.temperature);
  std::vector<double> shares;
  double sum = 0.0;
  for (const Candidate& candidate : ordered) {
    shares.push_back(keyed::exponential(keyed::scaled_logit(candidate.logit, settings.temperature) - top));
    sum = add(sum, shares.back());
  }
  double running = 0.0;
  for (size_t i = 0; i < ordered.size(); ++i) {
    running = add(running, shares[i] / sum);
    if (!(running < settings.top_p)) {
      ordered.resize(i + 1);
      return;
    }
  }
}

/// The shortest prefix of the whole vocabulary whose fixed-point mass reaches top_p; the result is not ordered.
std::vector<Candidate> nucleus(std::span<const float> logits, float best, const SamplingSettings& settings) {
  const double top = keyed::scaled_logit(best, settings.temperature);
  // Mass by distance from the top, in quarters: all but one of the bins are kept or cut whole.
  constexpr size_t bins = 113;
  std::array<int64_t, bins> mass_of{};
  const auto bin_of = [&](double z) { return static_cast<size_t>(std::min((top - z) * 4.0, 112.0)); };
  int64_t total = 0;
  for (const float logit : logits) {
    const double z = keyed::scaled_logit(logit, settings.temperature);
    const int64_t mass = keyed::fixed_mass(z, top);
    if (mass == 0) continue;
    total += mass;
    mass_of[bin_of(z)] += mass;
  }
  const int64_t need = keyed::needed_mass(settings.top_p, total);
  size_t last_bin = 0;
  for (int64_t sum = mass_of[0]; sum < need && last_bin + 1 < bins; sum += mass_of[last_bin]) ++last_bin;
  std::vector<Candidate> found;
  for (size_t id = 0; id < logits.size(); ++id) {
    const double z = keyed::scaled_logit(logits[id], settings.temperature);
    const int64_t mass = top - z < 28.0 && bin_of(z) <= last_bin ? keyed::fixed_mass(z, top) : 0;
    if (mass > 0) found.push_back({.logit = logits[id], .id = static_cast<int32_t>(id), .mass = mass});
  }
  // Halve the range that holds the end of the prefix: linear time however flat the distribution is.
  size_t first = 0;
  size_t last = found.size();
  int64_t reached = 0;
  const auto at = [&](size_t i) { return found.begin() + static_cast<std::ptrdiff_t>(i); };
  while (last - first > 32) {
    const size_t middle = first + (last - first) / 2;
    std::nth_element(at(first), at(middle), at(last), before);
    int64_t half = 0;
    for (size_t i = first; i < middle; ++i) half += found[i].mass;
    if (reached + half >= need) {
      last = middle;
    } else {
      reached += half;
      first = middle;
    }
  }
  std::sort(at(first), at(last), before);
  while (first < last) {
    reached += found[first++].mass;
    if (reached >= need) break;
  }
  found.resize(first);
  return found;
}

/// Keeps the candidates at or above min_p of the best; at least the best itself.
void cut_by_minimum(std::vector<Candidate>& kept, float best, const SamplingSettings& settings) {
  const double floor = add(keyed::scaled_logit(best, settings.temperature), keyed::logarithm(settings.min_p));
  std::erase_if(kept, [&](const Candidate& candidate) {
    return candidate.logit != best && !(keyed::scaled_logit(candidate.logit, settings.temperature) >= floor);
  });
  if (settings.min_p > 1.0) {  // above 1 not even the best passes: only the first of the order stays
    const auto first = std::min_element(kept.begin(), kept.end(), before);
    kept = {*first};
  }
}

/// The kept set of a sampled row, in no order; `best` is the highest logit and finite.
std::vector<Candidate> kept_set(std::span<const float> logits, float best, const SamplingSettings& settings) {
  const bool shares = settings.top_p > 0.0 && settings.top_p < 1.0;
  std::vector<Candidate> kept;
  if (settings.top_k > 0) {
    kept = select_top(logits, static_cast<size_t>(settings.top_k));
    if (shares) cut_by_share(kept, settings);
  } else if (shares) {
    kept = nucleus(logits, best, settings);
  } else {
    kept.reserve(logits.size());
    for (size_t id = 0; id < logits.size(); ++id) {
      kept.push_back({.logit = std::isnan(logits[id]) ? lowest : logits[id], .id = static_cast<int32_t>(id)});
    }
  }
  if (settings.min_p > 0.0) cut_by_minimum(kept, best, settings);
  return kept;
}

/// Whether the noise of `hash` may lift a candidate that lies `gap` > 0 below the best score so far: G <= -ln(1 - U),
/// so 1 - U must not exceed e^-gap, which needs about gap / ln 2 leading ones. Errs on the side of true.
bool may_win(uint64_t hash, double gap) {
  if (!(gap > 1.5)) return true;
  const int ones = static_cast<int>(std::min(gap * 1.44, 53.0)) - 1;
  return ones <= 0 || (~hash >> (64 - ones)) == 0;
}

/// argmax of z + G; among equal scores the earlier of the order.
int32_t draw_among(std::span<const Candidate> kept, uint64_t key, double temperature) {
  Candidate winner = kept.front();
  double best = -std::numeric_limits<double>::infinity();
  bool none = true;
  for (const Candidate& candidate : kept) {
    const double z = keyed::scaled_logit(candidate.logit, temperature);
    const uint64_t hash = keyed::candidate_hash(key, candidate.id);
    if (!none && !may_win(hash, best - z)) continue;
    const double score = add(z, keyed::gumbel(hash));
    if (none || score > best || (score == best && before(candidate, winner))) {
      winner = candidate;
      best = score;
      none = false;
    }
  }
  return winner.id;
}

void report_shares(std::span<const float> logits, const DrawRow& row, Drawn& out) {
  const float best = maximum(logits);
  int64_t total = 0;
  for (const float logit : logits) total += keyed::fixed_mass(static_cast<double>(logit), static_cast<double>(best));
  out.logprob = row_logprob(logits[static_cast<size_t>(out.token)], best, total);
  out.probability = static_cast<float>(keyed::exponential(static_cast<double>(out.logprob)));
  const auto wanted = static_cast<size_t>(std::clamp(row.top_logprobs, 0, Drawn::most_logprobs));
  const std::vector<Candidate> top = wanted > 0 ? select_top(logits, wanted) : std::vector<Candidate>{};
  out.ranked = static_cast<int32_t>(top.size());
  for (size_t i = 0; i < top.size(); ++i) {
    out.top[i] = {.token = top[i].id, .logprob = row_logprob(top[i].logit, best, total)};
  }
}

int32_t choose(std::span<const float> logits, const DrawRow& row) {
  if (row.forced >= 0) return row.forced;
  thread_local std::vector<float> scratch;
  const std::span<const float> values = adjusted(logits, row, scratch);
  const float best = maximum(values);
  if (best == lowest) return lowest_allowed(row, logits.size());
  if (row.settings.temperature <= 0.0 || best == -lowest) return first_index_of(values, best);
  const std::vector<Candidate> kept = kept_set(values, best, row.settings);
  return draw_among(kept, keyed::row_key(row.settings.seed, row.position), row.settings.temperature);
}

}  // namespace

float row_logprob(float logit, float best, int64_t total) {
  constexpr float least_logprob = -9999.0F;
  const double normaliser = keyed::logarithm(static_cast<double>(total) * 0x1p-40);
  const double logprob = add(add(static_cast<double>(logit), -static_cast<double>(best)), -normaliser);
  return logprob > static_cast<double>(least_logprob) ? static_cast<float>(logprob) : least_logprob;
}

int32_t draw_token(std::span<const float> logits, const DrawRow& row, Drawn& out) {
  out = {};
  out.token = choose(logits, row);
  if (row.top_logprobs >= 0 && static_cast<size_t>(out.token) < logits.size()) report_shares(logits, row, out);
  return out.token;
}

std::vector<int32_t> kept_candidates(std::span<const float> logits, const DrawRow& row) {
  std::vector<float> scratch;
  const std::span<const float> values = adjusted(logits, row, scratch);
  const float best = maximum(values);
  if (row.forced >= 0) return {row.forced};
  if (best == lowest) return {lowest_allowed(row, logits.size())};
  if (row.settings.temperature <= 0.0 || best == -lowest) return {first_index_of(values, best)};
  std::vector<Candidate> kept = kept_set(values, best, row.settings);
  std::sort(kept.begin(), kept.end(), before);
  std::vector<int32_t> ids;
  for (const Candidate& candidate : kept) ids.push_back(candidate.id);
  return ids;
}

uint64_t default_seed(std::span<const int32_t> prompt, int64_t salt) {
  std::string text;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (i > 0) text.push_back(',');
    text += std::to_string(prompt[i]);
  }
  text.push_back('|');
  text += std::to_string(salt);
  const Sha256Digest digest = sha256(text);
  uint64_t seed = 0;
  for (size_t i = 8; i-- > 0;) seed = seed << 8 | digest[i];
  return seed & 0x7FFFFFFFFFFFFFFF;
}

}  // namespace tensorfold::backend
