// Seconds of something by a count (rows of a forward, drafts of a proposal): running means where measured, straight
// lines between, never falling with the count.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace tensorfold::drafters {

class CostTable {
 public:
  /// An unmeasured table is taken to cost 1 + slope * (n - 1) of something.
  explicit CostTable(double slope) : slope_(slope) {}
  /// One more measurement; the first of a count stands as it is. A later one moves its mean by a small step towards it,
  /// at most a thirtieth at first and a hundredth once many were seen, so that hiccups do not count for more than any
  /// round. Returns the step that everything else
  /// should take too (a factor near 1): what changes slowly, a longer context or a busier machine, changes all costs;
  /// the other counts have taken it.
  double record(int32_t count, double seconds);
  /// Takes a step that another table measured.
  void scale(double factor);
  /// What `count` costs from now on (a calibration's median).
  void set(int32_t count, double seconds);
  [[nodiscard]] double at(int32_t count) const;
  [[nodiscard]] bool measured() const { return !means_.empty(); }
  [[nodiscard]] bool measured_at(int32_t count) const { return means_.contains(count); }

 private:
  [[nodiscard]] double between_means(int32_t count) const;
  void fill_known() const;

  struct Mean {
    double seconds = 0.0;
    int32_t times = 1;  ///< measurements, or what a calibration counts for
  };

  double slope_;
  std::map<int32_t, Mean> means_;
  mutable std::vector<double> known_;  ///< at(0), at(1), ..., made when first asked for; empty: means_ changed since
};

}  // namespace tensorfold::drafters
