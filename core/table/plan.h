// A batch of ids put into the order in which a group works: by bucket, then table, then first seen; each id once.
//
// A plan is a pure function of its input, knows nothing of any table's state, and can be made in the data thread. After
// MakePlan() it is constant, except for the row hints that a read leaves for the update that follows; one plan belongs
// to one step, so these are never written by two threads.
//
//   cell = bucket * num_tables + table      the unit of work: one table in one bucket
//   unique [U]            ids, cell by cell
//   splits [cells + 1]    cell c owns unique[splits[c] .. splits[c + 1])
//   inverse [n]           input position -> place in unique
//   starts [U + 1], order [n]   input positions of unique u, in input order: order[starts[u] .. starts[u + 1])
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/buffer.h"

namespace monolith {

struct Plan {
  int num_tables = 0;
  int only_table = -1;  // of the group, where the plan is for one of its tables; -1: for all of them
  bool deduplicated = true;
  std::vector<int64_t> table_splits;  // as given: table t owns input positions [table_splits[t], table_splits[t + 1])
  Buffer<int64_t> unique;
  Buffer<uint16_t> buckets;  // of each unique id, iff they were given: the ids may not tell them (table/slot_keys.h)
  Buffer<int64_t> splits;
  Buffer<int32_t> inverse;
  Buffer<int32_t> starts;
  Buffer<int32_t> order;
  Buffer<int32_t> counts;       // occurrences of each unique id, where the input has each once and others counted them
  Buffer<uint32_t> hints;       // row of each unique id when it was last read; empty when it was not
  uint64_t hints_identity = 0;  // which group's rows, since which clear, the hints number (Group::rows_identity_)

  int64_t num_ids() const { return static_cast<int64_t>(order.size()); }
  int64_t num_unique() const { return static_cast<int64_t>(unique.size()); }
  // From place `u` on; null when the ids tell their buckets.
  const uint16_t* BucketsFrom(int64_t u) const { return buckets.size() == 0 ? nullptr : buckets.data() + u; }
  int32_t CountOf(int64_t u) const { return counts.size() == 0 ? starts[u + 1] - starts[u] : counts[u]; }
};

// Reads each given id once: whoever changes them meanwhile gets the plan of what was read, never a broken one.
// `buckets` has that of each id, or nothing, and then the ids tell; those that tell must tell the same.
// With dedup false every occurrence counts as an id of its own, kept in input order inside its cell.
// Throws kInvalidArgument unless table_splits begins with 0, does not decrease and ends with ids.size() < 2^31, and for
// a bucket that is none.
Plan MakePlan(std::span<const int64_t> ids, std::span<const int64_t> table_splits, bool dedup,
              std::span<const uint16_t> buckets = {});

// From one row for each unique id to one for each input position: out row i = values row inverse[i].
// Throws kInvalidArgument unless values holds num_unique() rows of `dim` floats and out num_ids().
void SpreadRows(const Plan& plan, int dim, std::span<const float> values, std::span<float> out);

// Rows from anywhere, end to end: out row i = rows row places[i], of `dim` floats each. Checks nothing.
void GatherRows(std::span<const int32_t> places, int dim, const float* rows, float* out);

// Whether a plan was made of these ids; for one whose ids tell their buckets. Reads each id once.
bool IsPlanOf(const Plan& plan, std::span<const int64_t> ids);

}  // namespace monolith
