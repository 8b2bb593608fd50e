// A plan split into the parts of owners of consecutive buckets, and the form in which a part is sent: one array of
// words.
//
// Splitting copies nothing: an owner's ids, and the values of its rows, are contiguous in the plan's order. Ranks send
// a part as
//
//   num_keys, num_cells, has_counts | keys i64 [num_keys] | cells (cell u32, count u32) [num_cells]
//   | counts i32 [num_keys] if there are any, padded to a multiple of 8 bytes
//
// and as no word at all if an owner gets no id. Pure functions over values; the plan outlives its parts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/buffer.h"
#include "table/distinct_ids.h"
#include "table/plan.h"

namespace monolith {

struct PlanSlice {
  std::span<const CellCount> cells;
  std::span<const int64_t> keys;
  int64_t first_key = 0, first_value = 0, num_values = 0;
};

class SlicedPlan {
 public:
  // dims[t]: floats of a row of table t. Throws kInvalidArgument unless the owners cover all buckets, one after
  // another.
  SlicedPlan(const Plan& plan, std::span<const int> dims, std::span<const BucketRange> owners);
  const PlanSlice& at(int owner) const { return slices_[static_cast<size_t>(owner)]; }
  int num_owners() const { return static_cast<int>(slices_.size()); }
  int64_t num_values() const { return num_values_; }

 private:
  std::vector<CellCount> cells_;
  std::vector<PlanSlice> slices_;
  int64_t num_values_ = 0;
};

// Throws kInvalidArgument unless the ranges cover all buckets, one after another; some may be empty.
void RequireAllBuckets(std::span<const BucketRange> owners);

// The parts of all owners, end to end.
struct PlanParts {
  Buffer<int64_t> words;
  std::vector<int64_t> num_words, num_keys, num_values;  // of each owner; values: floats of its rows
};
PlanParts PartsOf(const Plan& plan, std::span<const int> dims, std::span<const BucketRange> owners, bool with_counts);

// View of the ids of a part. The cells are copied, since the words may belong to another process. Throws
// kInvalidArgument for words whose sizes do not fit; the ids themselves are not checked.
struct ReadPart {
  std::vector<CellCount> cells;
  std::span<const int64_t> keys;
  std::span<const int32_t> counts;
};
ReadPart ReadPartOf(std::span<const int64_t> words);

}  // namespace monolith
