// The distinct ids of a plan in the form that is sent between processes: cell by cell, and a plan rebuilt from them.
//
//   cells [C]     the cells of the plan that have ids, ascending, and the number of ids in each
//   keys [U]      the ids of these cells, end to end
//   counts [U]    occurrences of each id in the batch; empty where no reader needs them
//
// Pure functions over values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"
#include "memory/buffer.h"
#include "table/plan.h"
#include "table/slot_keys.h"

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

// Returns the cells of a plan that have ids, ascending.
std::vector<CellCount> CellsOf(const Plan& plan);

struct BucketRange {
  uint32_t begin, end;
};

// Returns the splits of a plan that has these cells. Throws kInvalidArgument unless the cells ascend, lie in these
// buckets and their counts add up to the number of keys. Reads each cell once.
Buffer<int64_t> SplitsOf(std::span<const CellCount> cells, size_t num_keys, size_t num_tables, BucketRange buckets);

// Whether a key may lie in a bucket; `may_be_wide`: the table may have wide keys, which do not determine their bucket.
inline bool BelongsTo(uint32_t bucket, int64_t key, bool may_be_wide) {
  return BucketOf(key) == bucket || (may_be_wide && IsWideKey(key));
}
[[noreturn]] void RefuseBucket(int64_t key, uint32_t bucket);
[[noreturn]] void RefuseCount();

// Makes the distinct ids of a plan, which has `unique` and `splits`, its input: each once, in the order of the tables
// and then of the cells.
void LinkDistinct(Plan& plan);

// Returns a plan whose input is its distinct ids. has_wide[t]: keys of table t may not determine their bucket
// (table/slot_keys.h); the plan then stores the buckets of all ids. Throws kInvalidArgument unless the cells ascend,
// lie in these buckets, their counts add up to the number of keys, and every key that determines its bucket lies in it.
Plan PlanOfDistinct(const DistinctIds& ids, std::span<const uint8_t> has_wide, BucketRange buckets);

}  // namespace monolith
