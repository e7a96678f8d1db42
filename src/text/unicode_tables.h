// The raw tables that scripts/make-unicode-tables.py generates. Read them through unicode.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold::text::unicode_tables {

/// A code point and where its full decomposition lies in decomposition_pool.
struct Decomposition {
  std::uint32_t code_point;
  std::uint32_t offset;
  std::uint32_t length;
};

/// first + second compose to `composed` (composition exclusions are left out; Hangul is computed).
struct Composition {
  std::uint32_t first;
  std::uint32_t second;
  std::uint32_t composed;
};

/// Lower case of a code point: one or two code points (second is 0 when there is one).
struct LowerCase {
  std::uint32_t code_point;
  std::uint32_t first;
  std::uint32_t second;
};

// Runs: (first code point of the run << 8) | value. A run reaches to the next one's start.
extern const std::uint32_t category_runs[];  // value: Category; Unicode 16.0
extern const std::size_t category_runs_size;
extern const std::uint32_t combining_runs[];  // value: canonical combining class; Unicode 9.0
extern const std::size_t combining_runs_size;
extern const std::uint32_t changed_since_14_runs[];  // value: 1 where 16.0's category is not 14.0's
extern const std::size_t changed_since_14_runs_size;
extern const std::uint32_t new_since_9_runs[];  // value: 1 where 9.0 had no character
extern const std::size_t new_since_9_runs_size;

extern const std::uint32_t decomposition_pool[];
extern const std::size_t decomposition_pool_size;
extern const Decomposition canonical_decompositions[];  // sorted; Unicode 9.0
extern const std::size_t canonical_decompositions_size;
extern const Decomposition compatibility_decompositions[];  // sorted, only where it differs from the canonical one
extern const std::size_t compatibility_decompositions_size;
extern const Composition compositions[];  // sorted by (first, second)
extern const std::size_t compositions_size;
extern const LowerCase lower_cases[];  // sorted; Unicode 17.0
extern const std::size_t lower_cases_size;

}  // namespace tensorfold::text::unicode_tables
