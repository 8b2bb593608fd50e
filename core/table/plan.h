// A batch of ids in the order in which a group processes them: by bucket, then table, then first occurrence; each id
// once.
//
// A plan is a pure function of its input, independent of any table's state, and can be made in the data thread. After
// MakePlan() it is constant, except for the row hints that a read leaves for the update that follows; one plan belongs
// to one step, so two threads never write them.
//
//   cell = bucket * num_tables + table      the unit of work: one table in one bucket
//   unique [U]            ids, cell by cell
//   splits [cells + 1]    cell c owns unique[splits[c] .. splits[c + 1])
//   inverse [n]           input position -> index in unique
//   starts [U + 1], order [n]   input positions of unique u, in input order: order[starts[u] .. starts[u + 1])
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/buffer.h"

namespace monolith {

struct Plan {
  int num_tables = 0;
  int only_table = -1;  // number in the group, if the plan is for one table only; -1: for all tables
  bool deduplicated = true;
  std::vector<int64_t> table_splits;  // table t owns input positions [table_splits[t], table_splits[t + 1])
  Buffer<int64_t> unique;
  Buffer<uint16_t> buckets;  // of each unique id, iff given: ids may not determine them (table/slot_keys.h)
  Buffer<int64_t> splits;
  Buffer<int32_t> inverse;
  Buffer<int32_t> starts;
  Buffer<int32_t> order;
  Buffer<int32_t> counts;  // occurrences of each unique id, if the input has each id once and was counted elsewhere
  Buffer<uint32_t> hints;  // row of each unique id when it was last read; empty when it was not read
  uint64_t hints_identity = 0;  // rows_identity_ of the group when it was read: row numbers are only valid with it

  int64_t num_ids() const { return static_cast<int64_t>(order.size()); }
  int64_t num_unique() const { return static_cast<int64_t>(unique.size()); }
  // The buckets from index `u` on; null when the ids determine their buckets.
  const uint16_t* BucketsFrom(int64_t u) const { return buckets.size() == 0 ? nullptr : buckets.data() + u; }
  int32_t CountOf(int64_t u) const { return counts.size() == 0 ? starts[u + 1] - starts[u] : counts[u]; }
};

// Makes the plan of a batch. Reads each given id once: if the ids change concurrently, the plan is that of the ids
// read, and always valid. `buckets` has the bucket of each id, or is empty, and then the ids determine their buckets;
// ids that do must agree with `buckets`. With dedup false every occurrence counts as a separate id, kept in input order
// inside its cell. Throws kInvalidArgument unless table_splits begins with 0, does not decrease and ends with
// ids.size() < 2^31, and for an invalid bucket.
Plan MakePlan(std::span<const int64_t> ids, std::span<const int64_t> table_splits, bool dedup,
              std::span<const uint16_t> buckets = {});

// Expands one row for each unique id to one for each input position: out row i = values row inverse[i].
// Throws kInvalidArgument unless values holds num_unique() rows of `dim` floats and out num_ids().
void SpreadRows(const Plan& plan, int dim, std::span<const float> values, std::span<float> out);

// Gathers rows, end to end: out row i = rows row places[i], of `dim` floats each. Checks nothing.
void GatherRows(std::span<const int32_t> places, int dim, const float* rows, float* out);

// Whether a plan was made of these ids; for a plan whose ids determine their buckets. Reads each id once.
bool IsPlanOf(const Plan& plan, std::span<const int64_t> ids);

}  // namespace monolith
