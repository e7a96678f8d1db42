// The rule of draw_token (keyed_sampling.h) for many workers on one row: what a GPU runs. Same logits, same token.
//
// A row's order (logit descending, id ascending) is the descending order of one 64-bit number a candidate, its place.
// A kept set is then all places from some end on, and the end is found by cutting the range of places in four, again
// and again, with sums of integer weights (ones for top_k and ranks, fixed-point mass for top_p): sums of integers and
// maxima do not depend on who adds what, so neither does the token.
//
// A Team is the workers of a row. Members call everything in step:
//   rank(), size()                    which member this is, of how many
//   maximum(uint64_t)                 the largest of all members' values, for all
//   add(int64_t (&values)[n])         sums over all members, for all
//   begin_list(), append(place), end_list()
//                                     gathers places in any order; then list()[0..n) holds them, n = end_list()
//   list(), sorted(), shares()        room for kMostListed values each, shared by a part of the team
//   values()                          room for the logits this part of the team looks at, slot j * local_size() +
//                                     local_rank() for a member's j-th; or null: they are read again at every pass
//   local_rank(), local_size(), local_barrier()
//                                     the members that share this room
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/keyed_sampling.h"
#include "base/host_device.h"

namespace tensorfold::backend::row_draw {

constexpr int32_t kMostListed = 1024;
/// A range of at most so many candidates is ended by comparing each with each.
constexpr int32_t kFewCandidates = 128;

/// One row of logits as a draw sees it.
struct Row {
  const float* logits = nullptr;
  int32_t vocabulary = 0;
  const uint32_t* mask = nullptr;  ///< one bit a token, set = allowed; null: all allowed
  int32_t mask_words = 0;
};

TENSORFOLD_HOST_DEVICE inline float lowest() {
  const uint32_t bits = 0xFF800000U;
  float value = 0.0F;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

/// Minus infinity where the mask forbids the token and for NaN.
TENSORFOLD_HOST_DEVICE inline float logit_at(const Row& row, int32_t id) {
  if (row.mask != nullptr) {
    const int32_t word = id / 32;
    if (word >= row.mask_words || ((row.mask[word] >> (id % 32)) & 1U) == 0) return lowest();
  }
  const float logit = row.logits[id];
  return logit == logit ? logit : lowest();
}

TENSORFOLD_HOST_DEVICE inline uint64_t place_of(float logit, int32_t id) {
  return static_cast<uint64_t>(keyed::order_key(logit + 0.0F)) << 32 | ~static_cast<uint32_t>(id);
}

TENSORFOLD_HOST_DEVICE inline int32_t id_of(uint64_t place) {
  return static_cast<int32_t>(~static_cast<uint32_t>(place));
}

/// The logit of a place (+0 for -0).
TENSORFOLD_HOST_DEVICE inline float logit_of(uint64_t place) {
  const auto key = static_cast<uint32_t>(place >> 32);
  const uint32_t bits = (key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key;
  float value = 0.0F;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

/// Unsigned integers in the order of the doubles, -0 equal to +0.
TENSORFOLD_HOST_DEVICE inline uint64_t order_key(double value) {
  const uint64_t bits = keyed::bits_of(keyed::add(value, 0.0));
  return (bits >> 63) != 0 ? ~bits : bits | uint64_t{1} << 63;
}

/// Takes up a row: later passes find its logits in team.values(). Returns the place of the first of the order.
template <typename Team>
TENSORFOLD_HOST_DEVICE uint64_t read_row(Team& team, const Row& row) {
  constexpr int batch = 16;  // loads under way at a time
  uint64_t best = 0;
  float* slot = team.values() == nullptr ? nullptr : team.values() + team.local_rank();
  for (int32_t from = team.rank(); from < row.vocabulary; from += batch * team.size()) {
    float values[batch];
    for (int i = 0; i < batch; ++i) {
      const int32_t id = from + i * team.size();
      values[i] = id < row.vocabulary ? logit_at(row, id) : lowest();
    }
    for (int i = 0; i < batch; ++i) {
      const int32_t id = from + i * team.size();
      const uint64_t place = id < row.vocabulary ? place_of(values[i], id) : 0;
      best = place > best ? place : best;
      if (slot != nullptr && id < row.vocabulary) {
        *slot = values[i];
        slot += team.local_size();
      }
    }
  }
  return team.maximum(best);
}

/// visit(logit, id) for every token of the row that is this member's to look at.
template <typename Team, typename Visit>
TENSORFOLD_HOST_DEVICE void for_each(Team& team, const Row& row, const Visit& visit) {
  if (const float* slot = team.values(); slot != nullptr) {
    slot += team.local_rank();
    for (int32_t id = team.rank(); id < row.vocabulary; id += team.size(), slot += team.local_size()) visit(*slot, id);
  } else {
    for (int32_t id = team.rank(); id < row.vocabulary; id += team.size()) visit(logit_at(row, id), id);
  }
}

struct UnitWeight {
  TENSORFOLD_HOST_DEVICE int64_t operator()(float) const { return 1; }
};

/// Fixed-point mass at a temperature (keyed::fixed_mass); far below the top without a division.
struct MassWeight {
  double temperature;
  double inverse;
  double top;
  TENSORFOLD_HOST_DEVICE MassWeight(double temperature_, float best)
      : temperature(temperature_),
        inverse(1.0 / (temperature_ > 1e-6 ? temperature_ : 1e-6)),
        top(keyed::scaled_logit(best, temperature_)) {}
  TENSORFOLD_HOST_DEVICE int64_t operator()(float logit) const {
    if (logit == lowest()) return 0;
    const double about = keyed::multiply(static_cast<double>(logit), inverse);
    const double size = about < 0.0 ? -about : about;
    if (about - top < -28.0 - keyed::multiply(size, 1e-12)) return 0;
    return keyed::fixed_mass(keyed::scaled_logit(logit, temperature), top);
  }
};

// What a prefix must reach, of the weight of all.
struct NeededCount {
  int64_t count;
  TENSORFOLD_HOST_DEVICE int64_t operator()(int64_t) const { return count; }
};

struct NeededMass {
  double top_p;
  TENSORFOLD_HOST_DEVICE int64_t operator()(int64_t total) const { return keyed::needed_mass(top_p, total); }
};

/// Range of places that holds the end of a kept set, both ends included, with the weight of all places above it.
struct Range {
  uint64_t low = 0;
  uint64_t high = 0;
  int64_t above = 0;
  int64_t count = 0;  ///< candidates of weight in it
};

/// The end of the set: the highest place at which the weight of it and all before it reaches `need`. Few candidates.
template <typename Team, typename Weight>
TENSORFOLD_HOST_DEVICE uint64_t end_among_few(Team& team, const Row& row, const Range& range, const Weight& weight,
                                              int64_t need) {
  team.begin_list();
  for_each(team, row, [&](float logit, int32_t id) {
    const uint64_t place = place_of(logit, id);
    if (place >= range.low && place <= range.high && weight(logit) > 0) team.append(place);
  });
  const int32_t count = team.end_list();
  auto* weights = reinterpret_cast<int64_t*>(team.shares());
  for (int32_t i = team.local_rank(); i < count; i += team.local_size()) weights[i] = weight(logit_of(team.list()[i]));
  team.local_barrier();
  uint64_t end = 0;
  for (int32_t i = team.local_rank(); i < count; i += team.local_size()) {
    const uint64_t own = team.list()[i];
    int64_t reached = range.above;
    for (int32_t j = 0; j < count; ++j) reached += team.list()[j] >= own ? weights[j] : 0;
    if (reached >= need && own > end) end = own;
  }
  return team.maximum(end);
}

/// Cuts a range in four: by logits for some passes, which spreads candidates better, then by places, which always ends.
TENSORFOLD_HOST_DEVICE inline void cut_range(const Range& range, int pass, uint64_t (&cuts)[3]) {
  constexpr int by_logits = 8;
  const float high = logit_of(range.high);
  const float step = (high - logit_of(range.low)) * 0.25F;
  const uint64_t place_step = (range.high - range.low) / 4;
  const bool spread = pass < by_logits && step > 0.0F && step < 1e30F;
  for (int j = 0; j < 3; ++j) {
    const uint64_t cut = place_of(high - step * static_cast<float>(j + 1), -1);
    cuts[j] = range.high - place_step * static_cast<uint64_t>(j + 1);
    if (spread) cuts[j] = cut < range.low ? range.low : cut > range.high ? range.high : cut;
  }
}

/// The end of the shortest prefix of the order whose weights reach need(total of all weights); candidates without
/// weight do not count. `offsets`: how far below the best logit the first three cuts lie and, where it is known, all
/// candidates of weight end (infinity: not known); ascending.
template <typename Team, typename Weight, typename Need>
TENSORFOLD_HOST_DEVICE uint64_t prefix_end(Team& team, const Row& row, uint64_t first, const Weight& weight,
                                           const Need& need_of, const float (&offsets)[4]) {
  const float floor = logit_of(first) - offsets[3];  // NaN where both are infinite
  Range range{floor == floor ? place_of(floor, -1) : 0, first, 0, row.vocabulary};
  int64_t need = 0;
  uint64_t cuts[3];
  for (int j = 0; j < 3; ++j) cuts[j] = place_of(logit_of(first) - offsets[j], -1);
  for (int pass = 0;; ++pass) {
    if (pass > 0) {
      if (range.low == range.high) return range.low;
      if (range.count <= kFewCandidates) return end_among_few(team, row, range, weight, need);
      cut_range(range, pass, cuts);
    }
    // Weights from each cut up, then of the whole range; counts likewise, two a number.
    int64_t sums[6] = {};
    for_each(team, row, [&](float logit, int32_t id) {
      const uint64_t place = place_of(logit, id);
      if (place < range.low || place > range.high) return;
      const int64_t own = weight(logit);
      if (own == 0) return;
      for (int j = 0; j < 3; ++j) sums[j] += place >= cuts[j] ? own : 0;
      sums[3] += own;
      sums[4] += (place >= cuts[0] ? 1 : 0) + (place >= cuts[1] ? int64_t{1} << 32 : 0);
      sums[5] += (place >= cuts[2] ? 1 : 0) + (int64_t{1} << 32);
    });
    team.add(sums);
    if (pass == 0) need = need_of(sums[3]);
    // The first part whose weights reach `need`; sums grow from cut to cut. (No index that varies: sums stay in
    // registers.)
    const bool past[3] = {range.above + sums[0] < need, range.above + sums[1] < need, range.above + sums[2] < need};
    if (past[2]) {
      range = {range.low, cuts[2] - 1, range.above + sums[2], (sums[5] >> 32) - (sums[5] & 0xFFFFFFFF)};
    } else if (past[1]) {
      range = {cuts[2], cuts[1] - 1, range.above + sums[1], (sums[5] & 0xFFFFFFFF) - (sums[4] >> 32)};
    } else if (past[0]) {
      range = {cuts[1], cuts[0] - 1, range.above + sums[0], (sums[4] >> 32) - (sums[4] & 0xFFFFFFFF)};
    } else {
      range = {cuts[0], range.high, range.above, sums[4] & 0xFFFFFFFF};
    }
  }
}

/// The places from `end` up, in order, in team.sorted(); returns how many. At most kMostListed may be there.
template <typename Team>
TENSORFOLD_HOST_DEVICE int32_t list_in_order(Team& team, const Row& row, uint64_t end) {
  team.begin_list();
  for_each(team, row, [&](float logit, int32_t id) {
    const uint64_t place = place_of(logit, id);
    if (place >= end) team.append(place);
  });
  const int32_t count = team.end_list();
  for (int32_t i = team.local_rank(); i < count; i += team.local_size()) {
    const uint64_t own = team.list()[i];
    int32_t before = 0;
    for (int32_t j = 0; j < count; ++j) before += team.list()[j] > own ? 1 : 0;
    team.sorted()[before] = own;
  }
  team.local_barrier();
  return count;
}

/// The end of the first `count` of the order.
template <typename Team>
TENSORFOLD_HOST_DEVICE uint64_t top_end(Team& team, const Row& row, uint64_t first, int32_t count) {
  const int64_t wanted = count < row.vocabulary ? count : row.vocabulary;
  const float offsets[4] = {4.0F, 7.0F, 10.0F, -lowest()};
  return prefix_end(team, row, first, UnitWeight{}, NeededCount{wanted}, offsets);
}

/// top_k, then top_p of their own mass: fp64, one running sum in order. top_k at most kMostListed.
template <typename Team>
TENSORFOLD_HOST_DEVICE uint64_t share_end(Team& team, const Row& row, uint64_t end, const SamplingSettings& settings) {
  const int32_t count = list_in_order(team, row, end);
  const uint64_t* ordered = team.sorted();
  double* shares = team.shares();
  const double top = keyed::scaled_logit(logit_of(ordered[0]), settings.temperature);
  for (int32_t i = team.local_rank(); i < count; i += team.local_size()) {
    shares[i] = keyed::exponential(keyed::scaled_logit(logit_of(ordered[i]), settings.temperature) - top);
  }
  team.local_barrier();
  // Every member adds all of them: the sum has one order, and no one has to be told.
  double sum = 0.0;
  for (int32_t i = 0; i < count; ++i) sum = keyed::add(sum, shares[i]);
  team.local_barrier();
  for (int32_t i = team.local_rank(); i < count; i += team.local_size()) shares[i] = shares[i] / sum;
  team.local_barrier();
  double running = 0.0;
  int32_t last = count - 1;
  for (int32_t i = 0; i < count; ++i) {
    running = keyed::add(running, shares[i]);
    if (!(running < settings.top_p)) {
      last = i;
      break;
    }
  }
  const uint64_t result = ordered[last];
  team.local_barrier();
  return result;
}

/// What is kept: the places from `end` up, with mass where `mass` says so, at or above the floor of min_p.
struct Kept {
  uint64_t end = 0;
  bool mass = false;
  bool floor = false;
  double floor_z = 0.0;
};

/// argmax of z + G over what is kept; among equal scores the earlier of the order.
template <typename Team>
TENSORFOLD_HOST_DEVICE int32_t draw_among(Team& team, const Row& row, uint64_t first, const Kept& kept,
                                          const SamplingSettings& settings, int64_t position) {
  const uint64_t key = keyed::row_key(settings.seed, position);
  const float best_logit = logit_of(first);
  const MassWeight mass(settings.temperature, best_logit);
  const auto score_of = [&](float logit, uint64_t hash) {
    return keyed::add(keyed::scaled_logit(logit, settings.temperature), keyed::gumbel(hash));
  };
  // The first of the order is always kept; everyone begins with it.
  uint64_t best = first;
  double score = score_of(best_logit, keyed::candidate_hash(key, id_of(first)));
  for_each(team, row, [&](float logit, int32_t id) {
    const uint64_t place = place_of(logit, id);
    if (place < kept.end || place == first || logit == lowest()) return;
    // Whether its noise may lift it (keyed_sampling.cpp), with a gap that errs on the small side.
    const double about = keyed::multiply(static_cast<double>(logit), mass.inverse);
    const double size = about < 0.0 ? -about : about;
    const double gap = score - about - keyed::multiply(size, 1e-12) - 1e-6;
    const uint64_t hash = keyed::candidate_hash(key, id);
    if (gap > 1.5) {
      const double leading = keyed::multiply(gap, 1.44);
      const int ones = static_cast<int>(leading < 53.0 ? leading : 53.0) - 1;
      if (ones > 0 && (~hash >> (64 - ones)) != 0) return;
    }
    if (kept.mass && mass(logit) == 0) return;
    if (kept.floor && logit != best_logit && !(keyed::scaled_logit(logit, settings.temperature) >= kept.floor_z))
      return;
    const double own = score_of(logit, hash);
    if (own > score || (own == score && place > best)) {
      score = own;
      best = place;
    }
  });
  const uint64_t score_key = order_key(score);
  const uint64_t highest = team.maximum(score_key);
  return id_of(team.maximum(score_key == highest ? best : 0));
}

/// What one draw asks for; a row whose host part says `forced` needs no logits.
struct Request {
  SamplingSettings settings;
  int64_t position = 0;
  int32_t forced = -1;    ///< >= 0: this token
  int32_t fallback = 0;   ///< the token of a row in which nothing is above minus infinity
  int32_t reported = -1;  ///< DrawRow::top_logprobs, at most Drawn::most_logprobs
};

/// Rows that the host must draw: a share of more than kMostListed candidates is an ordered sum of all of them.
inline bool too_many_in_order(const SamplingSettings& settings) {
  return settings.temperature > 0.0 && settings.top_k > kMostListed && settings.top_p > 0.0 && settings.top_p < 1.0;
}

/// choose() of keyed_sampling.cpp for a row whose penalties and biases are applied; `first`: what read_row returned.
template <typename Team>
TENSORFOLD_HOST_DEVICE int32_t choose(Team& team, const Row& row, uint64_t first, const Request& request) {
  const SamplingSettings& settings = request.settings;
  if (request.forced >= 0) return request.forced;
  const float best = logit_of(first);
  if (best == lowest()) return request.fallback;
  if (settings.temperature <= 0.0 || best == -lowest() || settings.min_p > 1.0) return id_of(first);
  const bool shares = settings.top_p > 0.0 && settings.top_p < 1.0;
  Kept kept;
  if (settings.top_k > 0) {
    kept.end = top_end(team, row, first, settings.top_k);
    if (shares) kept.end = share_end(team, row, kept.end, settings);
  } else if (shares) {
    const float scale = static_cast<float>(settings.temperature > 1e-6 ? settings.temperature : 1e-6);
    const float offsets[4] = {1.5F * scale, 4.0F * scale, 9.0F * scale, 28.5F * scale};
    kept.end =
        prefix_end(team, row, first, MassWeight(settings.temperature, best), NeededMass{settings.top_p}, offsets);
    kept.mass = true;
  }
  if (settings.min_p > 0.0) {
    kept.floor = true;
    kept.floor_z = keyed::add(keyed::scaled_logit(best, settings.temperature), keyed::logarithm(settings.min_p));
  }
  return draw_among(team, row, first, kept, settings, request.position);
}

/// Fixed-point mass of a whole row at temperature 1 (for reported shares); `best`: its highest logit.
template <typename Team>
TENSORFOLD_HOST_DEVICE int64_t total_mass(Team& team, const Row& row, float best) {
  int64_t sums[1] = {};
  for_each(team, row, [&](float logit, int32_t) {
    if (logit - best < -28.5F) return;  // the difference of two floats is this near
    sums[0] += keyed::fixed_mass(static_cast<double>(logit), static_cast<double>(best));
  });
  team.add(sums);
  return sums[0];
}

}  // namespace tensorfold::backend::row_draw
