// The loops of which a plan is made (table/plan.h): free functions over plain arrays, each run by one thread.
//
// A part is a range of buckets with all ids of the batch that are theirs: the ids of a table lie together there, in
// input order. Only its distinct ids are ever sorted. Whether an id is new is as good as random, and a wrong guess
// costs as much as all else that is done for an id, so nothing branches on it.
#pragma once

#include <cstdint>

#include "memory/buffer.h"

namespace monolith {

// Reads each id once: own[i] = ids[i], and buckets[i] is its bucket.
void FindBuckets(const int64_t* ids, int64_t count, int64_t* own, uint16_t* buckets);

// ++counts[buckets[i] >> shift] for each id.
void CountParts(const uint16_t* buckets, int64_t count, int shift, uint32_t* counts);

// Where ids are dealt out to. `buckets` is null where the ids tell them.
struct DealtIds {
  int64_t* ids;
  int32_t* positions;
  uint16_t* buckets;
};
// Deals out ids whose positions are first_position and those after it; begins[p] is where the first id of part p goes.
void DealOut(const int64_t* ids, const uint16_t* buckets, int64_t count, int32_t first_position, int shift,
             const uint32_t* begins, const DealtIds& out);
// The way back: out[i] = firsts[p] + dealt[where DealOut() put id i], with p the part of the id.
void GatherDealt(const uint16_t* buckets, int64_t count, int shift, const uint32_t* begins, const uint32_t* dealt,
                 const int32_t* firsts, int32_t* out);

// Its ids of table t are ids[table_ends[t - 1] .. table_ends[t]), with 0 for table_ends[-1].
struct Part {
  const int64_t* ids;
  const uint16_t* buckets;  // null where the ids tell them
  const uint32_t* table_ends;
  int num_tables;
  uint32_t first_bucket, num_buckets;

  uint32_t size() const { return table_ends[num_tables - 1]; }
};

// The distinct ids of a part: table by table, first seen first.
struct DistinctOfPart {
  Buffer<int64_t> ids;
  Buffer<uint16_t> buckets;  // theirs; empty where the ids tell them
  Buffer<uint32_t> counts;   // how often each is there
  Buffer<uint32_t> table_ends;
  uint32_t size = 0;
};
// Reads each id once. numbers[j]: the number of ids[j] among the distinct ones.
DistinctOfPart NumberIds(const Part& part, uint32_t* numbers);
// In place of it: each occurrence counts as an id of its own.
DistinctOfPart NumberEach(const Part& part, uint32_t* numbers);

// Where the distinct ids of a part go: by bucket, then table, then number.
struct PartOut {
  int64_t* unique;
  uint16_t* buckets;  // may be null
  int32_t* starts;    // where in the whole order the positions of each begin
  int64_t* splits;    // [num_buckets * num_tables]: where the ids of each cell end
};
struct PlaceOfId {
  int32_t next;    // in the whole order: where the next position of the id goes
  int32_t number;  // in the plan
};
// Returns the places of the distinct ids. `begin`: where in the whole order the part begins; `first`: the number of the
// first of its distinct ids.
Buffer<PlaceOfId> SortDistinct(const Part& part, const DistinctOfPart& distinct, int32_t begin, int32_t first,
                               const PartOut& out);

// order[..] = the positions of each id in turn, in input order; numbers[j] turns from the number of the id among the
// distinct ones to its number in the plan. `positions` may be null: j is at position j.
void LinkIds(const int32_t* positions, uint32_t size, PlaceOfId* places, int32_t* order, uint32_t* numbers);

}  // namespace monolith
