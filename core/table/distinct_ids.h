// The distinct ids of a plan as they travel between processes: cell by cell, and a plan made of them again.
//
//   cells [C]     those of the plan that have ids, ascending, and how many each has
//   keys [U]      the ids of these cells, end to end
//   counts [U]    occurrences of each id in the batch; empty where nobody will ask
//
// Pure functions over values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "table/plan.h"

namespace monolith {

struct CellCount {
  uint32_t cell;  // bucket * num_tables + table
  uint32_t count;
};

struct DistinctIds {
  std::span<const CellCount> cells;
  std::span<const int64_t> keys;
  std::span<const int32_t> counts;
};

// The cells of a plan that have ids, ascending.
std::vector<CellCount> CellsOf(const Plan& plan);

struct BucketRange {
  uint32_t begin, end;
};
// A plan whose input has each id once, in the order of the tables and then of the cells. has_wide[t]: keys of table t
// may not tell their bucket (table/slot_keys.h), and the plan then says those of all. Throws kInvalidArgument unless
// the cells ascend, lie in these buckets and share out the keys, and every key that tells its bucket lies in it.
Plan PlanOfDistinct(const DistinctIds& ids, std::span<const uint8_t> has_wide, BucketRange buckets);

}  // namespace monolith
