// The loops that make a plan (table/plan.h): free functions over plain arrays, each run by one thread.
//
// A part is a range of buckets with all ids of the batch that belong to them: the ids of a table lie together there, in
// input order. Only its distinct ids are ever sorted. Whether an id is new is unpredictable, and a misprediction costs
// as much as all other work per id, so nothing branches on it.
#pragma once

#include <cstdint>

#include "memory/buffer.h"

namespace monolith {

// Reads each id once: own[i] = ids[i], and buckets[i] is its bucket.
void FindBuckets(const int64_t* ids, int64_t count, int64_t* own, uint16_t* buckets);

// ++counts[buckets[i] >> shift] for each id.
void CountParts(const uint16_t* buckets, int64_t count, int shift, uint32_t* counts);

// Destination of ids distributed to parts. `buckets` is null if the ids determine them.
struct DealtIds {
  int64_t* ids;
  int32_t* positions;
  uint16_t* buckets;
};
// Distributes ids whose positions are first_position and the following ones; begins[p] is the destination of the first
// id of part p.
void DealOut(const int64_t* ids, const uint16_t* buckets, int64_t count, int32_t first_position, int shift,
             const uint32_t* begins, const DealtIds& out);
// The inverse: out[i] = firsts[p] + dealt[index to which DealOut() wrote id i], with p the part of the id.
void GatherDealt(const uint16_t* buckets, int64_t count, int shift, const uint32_t* begins, const uint32_t* dealt,
                 const int32_t* firsts, int32_t* out);

// The ids of table t are ids[table_ends[t - 1] .. table_ends[t]), with 0 for table_ends[-1].
struct Part {
  const int64_t* ids;
  const uint16_t* buckets;  // null if the ids determine them
  const uint32_t* table_ends;
  int num_tables;
  uint32_t first_bucket, num_buckets;

  uint32_t size() const { return table_ends[num_tables - 1]; }
};

// The distinct ids of a part: table by table, in order of first occurrence.
struct DistinctOfPart {
  Buffer<int64_t> ids;
  Buffer<uint16_t> buckets;  // of the ids; empty if the ids determine them
  Buffer<uint32_t> counts;   // occurrences of each id
  Buffer<uint32_t> table_ends;
  uint32_t size = 0;
};
// Finds the distinct ids. Reads each id once. numbers[j]: the number of ids[j] among the distinct ones.
DistinctOfPart NumberIds(const Part& part, uint32_t* numbers);
// Replaces NumberIds() without dedup: each occurrence counts as a separate id.
DistinctOfPart NumberEach(const Part& part, uint32_t* numbers);

// Destination of the distinct ids of a part: by bucket, then table, then number.
struct PartOut {
  int64_t* unique;
  uint16_t* buckets;  // may be null
  int32_t* starts;    // of the positions of each id in the plan's `order`
  int64_t* splits;    // [num_buckets * num_tables]: end of the ids of each cell
};
struct PlaceOfId {
  int32_t next;    // destination of the id's next position in the plan's `order`
  int32_t number;  // in the plan
};
// Returns the places of the distinct ids. `begin`: start of the part in the plan's `order`; `first`: the number of the
// first of its distinct ids.
Buffer<PlaceOfId> SortDistinct(const Part& part, const DistinctOfPart& distinct, int32_t begin, int32_t first,
                               const PartOut& out);

// Writes the positions of one id after another, in input order, to `order`. Changes numbers[j] from the number of the
// id among the distinct ones to its number in the plan. `positions` may be null: j is at position j.
void LinkIds(const int32_t* positions, uint32_t size, PlaceOfId* places, int32_t* order, uint32_t* numbers);

}  // namespace monolith
