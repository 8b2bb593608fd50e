// Merges several plans into one: the ids of all, each once, and the rows of each plan among those of the merged one.
//
// For updates that sum the gradients of several batches, and for owners of rows that several ranks request. The merged
// plan equals MakePlan() of the inputs end to end (table by table, and inside a table source by source), but ids are
// compared inside their cells only, and nothing is sorted again. A MergedPlans does not keep its sources alive, and is
// constant but for the hints of its plan. Results do not depend on the number of threads; calls are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/buffer.h"
#include "table/distinct_ids.h"
#include "table/plan.h"

namespace monolith {

// Layout of one source.
struct MergedSource {
  std::vector<int64_t> table_splits;  // of its input; empty if the ids were received as a part
  Buffer<int64_t> splits;             // [cells + 1]: cell c owns its distinct ids [splits[c], splits[c + 1])
  Buffer<int64_t> first_values;       // [buckets + 1]: floats of its rows before each bucket
  Buffer<int32_t> places;             // indices of its distinct ids in the merged plan

  int64_t num_keys() const { return static_cast<int64_t>(places.size()); }
  int64_t num_values() const { return first_values[first_values.size() - 1]; }
};

struct MergedPlans {
  Plan plan;                     // the merged plan
  std::vector<int> dims;         // floats of a row of each table
  Buffer<int64_t> first_values;  // [buckets + 1], as in a source
  std::vector<MergedSource> sources;

  int64_t num_values() const { return first_values[first_values.size() - 1]; }
  // Throws kInvalidArgument for an invalid source number.
  const MergedSource& source(int64_t number) const;
};

// Merges plans. Throws kInvalidArgument unless there is at least one, and all are of the same tables and have each id
// once. dims[t]: floats of a row of table t.
MergedPlans MergePlans(std::span<const Plan* const> plans, std::vector<int> dims);

// Merges the parts (table/plan_parts.h) that several ranks sent to the owner of these buckets, end to end in `words`;
// rank r sent num_words[r]. The input of the plan is its distinct ids, whose counts are added up if they were sent.
// has_wide as in PlanOfDistinct(). Reads each word once; throws kInvalidArgument, and names the rank, for words that no
// valid plan has, including an id that one rank sent twice.
MergedPlans MergeParts(std::span<const int64_t> words, std::span<const int64_t> num_words, std::vector<int> dims,
                       std::span<const uint8_t> has_wide, BucketRange buckets);

using Values = std::span<const float>;

// Adds the rows of all sources, values[r] those of source r times scales[r], in the order of the sources. The first row
// of an id is copied, so that -0 is preserved. `scales` may be empty: all are 1. True iff every sum is finite.
// Here and below, throws kInvalidArgument for sizes that differ from the plans'.
bool SumRows(const MergedPlans& merged, std::span<const Values> values, std::span<const float> scales,
             std::span<float> out);

// Copies the row of each id from the first source that has it.
void FirstRows(const MergedPlans& merged, std::span<const Values> values, std::span<float> out);

// Copies the rows of one source, in some buckets, from the merged rows, of which `rows` is the first. Checks no sizes.
void GatherBuckets(const MergedPlans& merged, int64_t source, BucketRange buckets, const float* rows, float* out);

// Returns the times of the merged plan in the form that updates take: [1], or one for each of its input positions.
// times[r]: one, or one for each input position of source r. For sources that were plans.
std::vector<int64_t> TimesOfInputs(const MergedPlans& merged, std::span<const std::span<const int64_t>> times);
// Returns the times of the distinct ids. times[r]: one, or one for each distinct id of source r; may be empty for a
// source without ids. For sources that were parts. An id of several sources gets the newest.
std::vector<int64_t> TimesOfIds(const MergedPlans& merged, std::span<const std::span<const int64_t>> times);

}  // namespace monolith
