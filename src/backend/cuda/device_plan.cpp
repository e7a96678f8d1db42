#include "backend/cuda/device_plan.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace tensorfold::backend::cuda {
namespace {

template <typename T>
int32_t append(std::vector<int32_t>& words, const std::vector<T>& values) {
  static_assert(sizeof(T) % 4 == 0);
  const auto at = words.size();
  words.resize(at + std::max<size_t>(values.size() * sizeof(T) / 4, 1));
  if (!values.empty()) std::memcpy(words.data() + at, values.data(), values.size() * sizeof(T));
  return static_cast<int32_t>(at);
}

bool is_chain(const Plan& plan, const SequenceRows& sequence) {
  for (int32_t i = 0; i < sequence.row_count; ++i) {
    const int32_t row = sequence.first_row + i;
    if (plan.parents[static_cast<size_t>(row)] != (i == 0 ? -1 : row - 1)) return false;
  }
  return true;
}

/// Rows of a group of one sequence that one block takes, with where their window keys lie.
struct Group {
  int32_t first_row;
  int32_t rows;
  int32_t path;
  int32_t first_partition;
  int32_t end_partition;
};

struct Paths {
  std::vector<int32_t> rows;     // of all tree rows, root first
  std::vector<int32_t> path_of;  // a row's start in `rows`; -1: a chain
};

Paths find_paths(const Plan& plan) {
  Paths paths;
  paths.path_of.assign(static_cast<size_t>(plan.rows()), -1);
  for (const SequenceRows& sequence : plan.sequences) {
    if (is_chain(plan, sequence)) continue;
    check(!sequence.keep_all, "a sequence that keeps all rows is a chain");
    for (int32_t i = 0; i < sequence.row_count; ++i) {
      std::vector<int32_t> path;
      for (int32_t row = sequence.first_row + i; row >= 0; row = plan.parents[static_cast<size_t>(row)])
        path.push_back(row);
      paths.path_of[static_cast<size_t>(sequence.first_row + i)] = static_cast<int32_t>(paths.rows.size());
      paths.rows.insert(paths.rows.end(), path.rbegin(), path.rend());
    }
  }
  return paths;
}

std::vector<Group> find_groups(const Plan& plan, const Paths& paths, const AttentionKind& kind) {
  std::vector<Group> groups;
  const int32_t most_rows = std::max(1, (plan.rows() <= kFewRows ? kUnitPairs : kAttentionItems) / kind.group_heads);
  for (const SequenceRows& sequence : plan.sequences) {
    const int32_t end = sequence.first_row + sequence.row_count;
    for (int32_t row = sequence.first_row; row < end;) {
      // A bidirectional row sees every window row in order, whatever the parents say.
      const int32_t path = kind.bidirectional != 0 ? -1 : paths.path_of[static_cast<size_t>(row)];
      const int32_t rows = path >= 0 ? 1 : std::min(most_rows, end - row);
      const int32_t first = plan.positions[static_cast<size_t>(row)];
      const int32_t last = kind.bidirectional != 0 ? sequence.committed + sequence.row_count - 1
                                                   : plan.positions[static_cast<size_t>(row + rows - 1)];
      const int32_t first_key = kind.window > 0 ? std::max(0, first - kind.window + 1) : 0;
      groups.push_back({row, rows, path, first_key / kPartitionKeys, last / kPartitionKeys + 1});
      row += rows;
    }
  }
  return groups;
}

void add_attention(const Plan& plan, const Paths& paths, const AttentionKind& kind, int index, int64_t most_slots,
                   PlanImage& image) {
  std::vector<AttentionItem> items;
  std::vector<AttentionRow> rows(static_cast<size_t>(plan.rows()));
  int64_t slots = 0;
  auto& batches = image.batches[index];
  batches.push_back({0, 0, 0, 0});
  for (const Group& group : find_groups(plan, paths, kind)) {
    const int32_t partitions = group.end_partition - group.first_partition;
    const int64_t wanted = int64_t{partitions} * group.rows;
    check(wanted <= most_slots, "the attention workspace holds one group's partial results");
    if (slots + wanted > most_slots) {
      slots = 0;
      batches.push_back({static_cast<int32_t>(items.size()), 0, group.first_row, 0});
    }
    for (int32_t i = 0; i < group.rows; ++i) {
      const auto row = static_cast<size_t>(group.first_row + i);
      const int32_t position = plan.positions[row];
      const SequenceRows& sequence = plan.sequences[static_cast<size_t>(plan.owner[row])];
      const int32_t last = kind.bidirectional != 0 ? sequence.committed + sequence.row_count - 1 : position;
      const int32_t first_key = kind.window > 0 ? std::max(0, position - kind.window + 1) : 0;
      rows[row] = {static_cast<int32_t>(slots + int64_t{i} * partitions), group.first_partition,
                   first_key / kPartitionKeys, last / kPartitionKeys + 1};
    }
    for (int32_t partition = group.first_partition; partition < group.end_partition; ++partition)
      items.push_back({group.first_row, group.rows, partition,
                       static_cast<int32_t>(slots) + partition - group.first_partition, partitions, group.path});
    slots += wanted;
    batches.back().items = static_cast<int32_t>(items.size()) - batches.back().first_item;
    batches.back().rows = group.first_row + group.rows - batches.back().first_row;
  }
  // Groups of rows that read the same keys at the same time find them in the cache.
  for (const PlanImage::Batch& batch : batches)
    std::stable_sort(items.begin() + batch.first_item, items.begin() + batch.first_item + batch.items,
                     [](const AttentionItem& x, const AttentionItem& y) { return x.partition < y.partition; });
  AttentionList& list = image.header.attention[index];
  list.items = static_cast<int32_t>(items.size());
  list.items_at = append(image.words, items);
  list.rows_at = append(image.words, rows);
  list.batches = static_cast<int32_t>(batches.size());
}

}  // namespace

PlanImage make_plan_image(const Plan& plan, const std::vector<AttentionKind>& kinds, int64_t most_slots) {
  PlanImage image;
  PlanHeader& header = image.header;
  image.words.resize(sizeof(PlanHeader) / 4);
  header.rows = plan.rows();
  header.logit_rows = static_cast<int32_t>(plan.logit_rows.size());
  header.sequences = static_cast<int32_t>(plan.sequences.size());
  std::vector<DeviceSequence> sequences;
  std::vector<int32_t> records(static_cast<size_t>(plan.rows()), -1);
  for (const SequenceRows& s : plan.sequences) {
    sequences.push_back({s.first_row, s.row_count, s.committed, s.state_slot, s.first_page, s.keep_all ? 1 : 0});
    header.longest_sequence = std::max(header.longest_sequence, s.row_count);
    if (s.keep_all) continue;
    for (int32_t i = 0; i < s.row_count; ++i) records[static_cast<size_t>(s.first_row + i)] = image.window_rows++;
  }
  const Paths paths = find_paths(plan);
  header.tokens_at = append(image.words, plan.tokens);
  header.positions_at = append(image.words, plan.positions);
  header.parents_at = append(image.words, plan.parents);
  header.owner_at = append(image.words, plan.owner);
  header.logit_rows_at = append(image.words, plan.logit_rows);
  header.records_at = append(image.words, records);
  header.sequences_at = append(image.words, sequences);
  header.pages_at = append(image.words, plan.pages);
  header.paths_at = append(image.words, paths.rows);
  for (size_t i = 0; i < kinds.size(); ++i)
    add_attention(plan, paths, kinds[i], static_cast<int>(i), most_slots, image);
  std::memcpy(image.words.data(), &header, sizeof header);
  return image;
}

}  // namespace tensorfold::backend::cuda
