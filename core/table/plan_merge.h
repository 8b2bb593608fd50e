// Several plans as one: the ids of all, each once, and the rows of each plan among those of all.
//
// For updates that sum the gradients of several batches, and for owners of rows that several ranks ask for. The plan of
// all is what MakePlan() of the inputs end to end would give (table by table, and inside a table source by source), but
// ids are compared inside their cells only, and nothing is sorted again. A MergedPlans keeps nothing of its sources
// alive, and is constant but for the hints of its plan. Results do not depend on the number of threads; calls are safe
// from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/buffer.h"
#include "table/distinct_ids.h"
#include "table/plan.h"

namespace monolith {

// What is known of one source.
struct MergedSource {
  std::vector<int64_t> table_splits;  // of its input; empty where the ids came as a part
  Buffer<int64_t> splits;             // [cells + 1]: cell c owns its distinct ids [splits[c], splits[c + 1])
  Buffer<int64_t> first_values;       // [buckets + 1]: floats of its rows before each bucket
  Buffer<int32_t> places;             // of its distinct ids in the plan of all

  int64_t num_keys() const { return static_cast<int64_t>(places.size()); }
  int64_t num_values() const { return first_values[first_values.size() - 1]; }
};

struct MergedPlans {
  Plan plan;                     // of all
  std::vector<int> dims;         // floats of a row of each table
  Buffer<int64_t> first_values;  // [buckets + 1], as in a source
  std::vector<MergedSource> sources;

  int64_t num_values() const { return first_values[first_values.size() - 1]; }
  // Throws kInvalidArgument for a number that is no source's.
  const MergedSource& source(int64_t number) const;
};

// Throws kInvalidArgument unless there are plans, all of the same tables and with each id once. dims[t]: floats of a
// row of table t.
MergedPlans MergePlans(std::span<const Plan* const> plans, std::vector<int> dims);

// Of the parts (table/plan_parts.h) that several ranks sent to the owner of these buckets, end to end in `words`; rank
// r sent num_words[r]. The input of the plan is its distinct ids, whose counts are added up where they were sent.
// has_wide as in PlanOfDistinct(). Reads each word once; throws kInvalidArgument, and names the rank, for what no plan
// has there, an id that comes twice from one rank included.
MergedPlans MergeParts(std::span<const int64_t> words, std::span<const int64_t> num_words, std::vector<int> dims,
                       std::span<const uint8_t> has_wide, BucketRange buckets);

using Values = std::span<const float>;

// The rows of all sources, values[r] those of source r times scales[r], added in the order of the sources. The first
// row of an id is copied, so that -0 stays. `scales` may be empty: all are 1. True iff every sum is finite.
// Here and below, throws kInvalidArgument for sizes that are not the plans'.
bool SumRows(const MergedPlans& merged, std::span<const Values> values, std::span<const float> scales,
             std::span<float> out);

// Of each id the row of the first source that has it.
void FirstRows(const MergedPlans& merged, std::span<const Values> values, std::span<float> out);

// From the rows of all to those of one source, in some buckets, whose rows begin at `rows`. Checks no sizes.
void GatherBuckets(const MergedPlans& merged, int64_t source, BucketRange buckets, const float* rows, float* out);

// Times as updates of the plan of all take them: [1], or one for each of its input positions.
// times[r]: one, or one for each input position of source r. For sources that were plans.
std::vector<int64_t> TimesOfInputs(const MergedPlans& merged, std::span<const std::span<const int64_t>> times);
// times[r]: one, or one for each distinct id of source r; none is enough for a source without ids. For sources that
// were parts. An id of several sources takes the newest.
std::vector<int64_t> TimesOfIds(const MergedPlans& merged, std::span<const std::span<const int64_t>> times);

}  // namespace monolith
