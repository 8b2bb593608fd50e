// Kernels over batches of ids: distinct ids, row numbers, grouping by owner, splitting and merging ragged batches.
// Pure functions: they own nothing, keep nothing, and are thread-safe.
//
// Terms used below
//   row splits    r+1 offsets, first 0, never decreasing: row i holds the values splits[i] .. splits[i+1]-1
//   distinct      in the order of first occurrence
//   positions     positions[k] is the input position of the k-th output; scattering by it undoes a grouping
//
// Invalid input throws Error(kInvalidArgument); nothing is written then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "table/id_checks.h"

namespace monolith {

struct UniqueIds {
  std::vector<int64_t> ids;      // distinct
  std::vector<int32_t> inverse;  // input position -> index in ids
  std::vector<int32_t> counts;   // occurrences of each of ids
};
// At most 2^31 - 1 ids.
UniqueIds Unique(IdSpan ids);

// Returns the row number of each value.
std::vector<int64_t> RowIds(IdSpan row_splits);

struct Grouping {
  std::vector<int64_t> positions;
  std::vector<int64_t> sizes;  // of each group
};
// Groups positions 0..n-1 by their group number; a group keeps the order of its positions.
Grouping GroupByIndex(IdSpan group_of_each, int64_t num_groups);

// GroupByIndex without checks, for any number of groups. REQUIRES: valid group numbers.
Grouping GroupUnchecked(IdSpan group_of_each, size_t num_groups);

// Exclusive prefix sums, with the total at the end.
std::vector<int64_t> OffsetsOf(IdSpan sizes);

// The remainder of the division that rounds down: in 0..divisor-1 for negative ids too. REQUIRES: divisor > 0.
inline int64_t FloorMod(int64_t id, int64_t divisor) {
  const int64_t remainder = id % divisor;
  return remainder < 0 ? remainder + divisor : remainder;
}

// Which of `num_partitions` owns an id. Persisted in placements: do not change the rules.
enum class PartitionRule {
  kBucket,  // bucket * num_partitions / kNumBuckets: unsplit buckets, as evenly as possible; at most kNumBuckets
            // partitions
  kMod,     // FloorMod(id, num_partitions)
};

struct PartitionedIds {
  std::vector<int64_t> ids;
  std::vector<int64_t> sizes;
  std::vector<int64_t> positions;
};
PartitionedIds Partition(IdSpan ids, int64_t num_partitions, PartitionRule rule);

struct RaggedSplit {
  std::vector<int64_t> values;      // part after part
  std::vector<int64_t> row_splits;  // of every part, rows+1 numbers each, each from 0
  std::vector<int64_t> positions;   // of values in the input
  std::vector<int64_t> sizes;       // values of each part
};
// Sends each value of a ragged batch to one of `num_parts` ragged batches with the same number of rows.
RaggedSplit SplitRagged(IdSpan part_of_each, IdSpan values, IdSpan row_splits, int64_t num_parts);

// Returns the row splits of several batches, given end to end, as the row splits of the concatenated batches.
std::vector<int64_t> NormalizeMergedSplit(IdSpan row_splits, IdSpan sizes);

// Returns the index in `ids` of each wanted id; the first index if an id occurs twice. Throws iff an id is missing.
std::vector<int64_t> FindIds(IdSpan ids, IdSpan wanted);

}  // namespace monolith
