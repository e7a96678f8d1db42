// Attention of prepared queries to cached rows: every (row, group of heads) attends partition by partition of 512 keys.
// Few rows are spread over partitions too; the merge order is the same.
#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/selection.h"

namespace tensorfold::backend::cpu {
namespace {

constexpr int64_t kPartition = 512;

/// Which keys a row sees, by absolute position or by place in its selection: [first, last).
struct Span {
  int64_t first = 0;
  int64_t last = 0;
  [[nodiscard]] int64_t first_partition() const { return first / kPartition; }
  [[nodiscard]] int64_t partitions() const { return (last + kPartition - 1) / kPartition - first_partition(); }
};

}  // namespace

void CpuBackend::attend(const Plan& plan, const AttendRows& a) {
  const int64_t result_stride = (a.value_dim + 2 + 15) / 16 * 16;
  std::vector<Span> spans(static_cast<size_t>(a.row_count));
  int64_t most_partitions = 1;
  for (size_t r = 0; r < spans.size(); ++r) {
    const int64_t row = a.first_row + static_cast<int64_t>(r);
    const SequenceRows& sequence = plan.sequences[static_cast<size_t>(plan.owner[static_cast<size_t>(row)])];
    const int64_t own = own_position(plan, row);
    spans[r].last = a.bidirectional ? sequence.committed + sequence.row_count : own + 1;
    if (a.window > 0) spans[r].first = std::max<int64_t>(0, own - a.window + 1);
    if (a.selection != nullptr) spans[r].last = a.selection->keys(row, own + 1);
    most_partitions = std::max(most_partitions, spans[r].partitions());
  }
  const int64_t units = a.row_count * a.groups;
  const bool spread = most_partitions > 1 && units < 4LL * threads_.size();
  // Results of a unit: [partition][head of the group][result_stride].
  const int64_t unit_floats = most_partitions * a.heads * result_stride;
  float* shared = spread ? results_.floats(units * unit_floats) : nullptr;

  const auto attend_partition = [&](int64_t unit, int64_t index, float* results) {
    const int64_t r = unit / a.groups;
    const int64_t group = unit % a.groups;
    const Span& span = spans[static_cast<size_t>(r)];
    if (index >= span.partitions()) return;
    const int64_t partition = span.first_partition() + index;
    const float* rows[kPartition];
    AttendPartition p;
    p.first_position = std::max(span.first, partition * kPartition);
    p.count = std::min(span.last, (partition + 1) * kPartition) - p.first_position;
    if (a.selection != nullptr && a.selection->is_sparse(a.first_row + r)) {
      for (int64_t j = 0; j < p.count; ++j)
        rows[j] = seen_row(plan, *a.cache, a.entry, a.first_row + r,
                           a.selection->position(a.first_row + r, p.first_position + j));
    } else {
      seen_rows(plan, *a.cache, a.entry, a.first_row + r, p.first_position, p.count, a.bidirectional, rows);
    }
    p.rows = rows;
    p.key_offset = group * a.key_step;
    p.value_offset = a.value_offset + group * a.value_step;
    p.key_dim = a.key_dim;
    p.value_dim = a.value_dim;
    p.heads = a.heads;
    p.queries = a.queries + unit * a.heads * a.key_dim;
    p.scale = a.scale;
    p.results = results + index * a.heads * result_stride;
    p.result_stride = result_stride;
    kernels_.attend(p);
  };
  const auto finish = [&](int64_t unit, const float* results) {
    const int64_t r = unit / a.groups;
    float* to = a.output + r * a.output_stride + unit % a.groups * a.heads * a.value_dim;
    for (int64_t h = 0; h < a.heads; ++h) {
      kernels_.merge(results + h * result_stride, spans[static_cast<size_t>(r)].partitions(), a.heads * result_stride,
                     a.value_dim, to + h * a.value_dim);
    }
  };

  if (spread) {
    threads_.run(units * most_partitions, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i)
        attend_partition(i / most_partitions, i % most_partitions, shared + i / most_partitions * unit_floats);
    });
    threads_.run(units, [&](int64_t begin, int64_t end, int) {
      for (int64_t unit = begin; unit < end; ++unit) finish(unit, shared + unit * unit_floats);
    });
    return;
  }
  threads_.run(units, [&](int64_t begin, int64_t end, int worker) {
    float* results = worker_floats(worker, unit_floats);
    for (int64_t unit = begin; unit < end; ++unit) {
      for (int64_t index = 0; index < spans[static_cast<size_t>(unit / a.groups)].partitions(); ++index)
        attend_partition(unit, index, results);
      finish(unit, results);
    }
  });
}

}  // namespace tensorfold::backend::cpu
