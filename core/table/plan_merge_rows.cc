// Rows and times of merged plans.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "table/group.h"
#include "table/id_checks.h"
#include "table/plan_merge.h"
#include "table/row_copy.h"

namespace monolith {
namespace {

constexpr int64_t kIdsPerTask = 4096;  // below this, waking another thread costs more than it saves
constexpr int kBucketsPerTask = 32;

template <typename Body>
void ForBuckets(int64_t num_ids, Body&& body) {
  const int tasks = num_ids < kIdsPerTask ? 1 : kNumBuckets / kBucketsPerTask, width = kNumBuckets / tasks;
  ParallelFor(tasks, [&](int task) { body(task * width, (task + 1) * width); });
}

// How the rows of an id that several sources have are combined.
struct Add {
  static void Row(float* row, const float* values, float scale, int dim) {
    if (scale == 1.0f) return AddFloats(row, values, dim);
    AddScaledFloats(row, values, scale, dim);
  }
};
struct KeepFirst {
  static void Row(float*, const float*, float, int) {}
};

// The rows of one cell of one source.
struct CellRows {
  const float* values;
  std::span<const int32_t> places;
  float scale;
};

// Returns how many of the indices from `at` on are consecutive.
int64_t RunFrom(std::span<const int32_t> places, int64_t at) {
  const auto size = static_cast<int64_t>(places.size());
  int64_t end = at + 1;
  while (end < size && places[end] == places[end - 1] + 1) ++end;
  return end - at;
}

// A call to memcpy costs more than copying a few rows, but is faster for many.
void CopyRun(float* to, const float* from, int64_t count) {
  constexpr int64_t kFew = 64;
  if (count <= kFew) return CopyFloats(to, from, static_cast<int>(count));
  std::memcpy(to, from, sizeof(float) * static_cast<size_t>(count));
}

void CopyScaled(float* to, const float* from, float scale, int64_t count) {
  CopyRun(to, from, count);
  if (scale != 1.0f) ScaleFloats(to, scale, static_cast<int>(count));
}

// Merges the rows of the next source into those of the cell. The ids of a cell are numbered in order of arrival, so
// those with numbers above all earlier ones are new.
template <typename Join>
void TakeCell(const CellRows& rows, int64_t first, int dim, float* out, int64_t* num_known) {
  const auto size = static_cast<int64_t>(rows.places.size());
  for (int64_t j = 0; j < size;) {
    const int64_t number = rows.places[j] - first;
    if (number == *num_known) {
      const int64_t run = number == 0 ? size : RunFrom(rows.places, j);
      CopyScaled(out + number * dim, rows.values + j * dim, rows.scale, run * dim);
      *num_known += run;
      j += run;
    } else {
      Join::Row(out + number * dim, rows.values + j * dim, rows.scale, dim);
      ++j;
    }
  }
}

// Merges the rows of all sources, bucket by bucket; true iff all are finite.
template <typename Join>
bool JoinBuckets(const MergedPlans& merged, std::span<const Values> values, std::span<const float> scales, float* out,
                 int begin, int end) {
  const size_t num_tables = merged.dims.size(), num_sources = merged.sources.size();
  bool finite = true;
  std::vector<const float*> next(num_sources);
  for (size_t r = 0; r < num_sources; ++r) next[r] = values[r].data() + merged.sources[r].first_values[begin];
  float* row = out + merged.first_values[begin];
  for (size_t cell = begin * num_tables; cell < end * num_tables; ++cell) {
    const int dim = merged.dims[cell % num_tables];
    const int64_t first = merged.plan.splits[cell], size = (merged.plan.splits[cell + 1] - first) * dim;
    if (size == 0) continue;
    int64_t num_known = 0;
    for (size_t r = 0; r < num_sources; ++r) {
      const MergedSource& source = merged.sources[r];
      const int64_t key = source.splits[cell], count = source.splits[cell + 1] - key;
      if (count == 0) continue;
      const CellRows rows{
          next[r], {source.places.data() + key, static_cast<size_t>(count)}, scales.empty() ? 1.0f : scales[r]};
      TakeCell<Join>(rows, first, dim, row, &num_known);
      next[r] += count * dim;
    }
    finite &= AllFinite(row, static_cast<size_t>(size));
    row += size;
  }
  return finite;
}

template <typename Join>
bool JoinRows(const MergedPlans& merged, std::span<const Values> values, std::span<const float> scales,
              std::span<float> out) {
  CheckSize("values", values.size(), static_cast<int64_t>(merged.sources.size()));
  for (size_t r = 0; r < values.size(); ++r) {
    const std::string subject = "values of source " + std::to_string(r);
    CheckSize(subject.c_str(), values[r].size(), merged.sources[r].num_values());
  }
  if (!scales.empty()) CheckSize("scales", scales.size(), static_cast<int64_t>(merged.sources.size()));
  CheckSize("out", out.size(), merged.num_values());
  std::atomic<bool> finite{true};
  ForBuckets(merged.plan.num_unique(), [&](int begin, int end) {
    if (!JoinBuckets<Join>(merged, values, scales, out.data(), begin, end))
      finite.store(false, std::memory_order_relaxed);
  });
  return finite;
}

void RequireSources(const MergedPlans& merged, size_t num_times, bool of_parts) {
  CheckSize("times", num_times, static_cast<int64_t>(merged.sources.size()));
  for (const MergedSource& source : merged.sources) {
    if (source.table_splits.empty() != of_parts)
      RefuseIds(of_parts ? "times of distinct ids are for merged parts; these were plans"
                         : "times of inputs are for merged plans; these were parts");
  }
}

// Whether one time is enough: all sources with rows have the same single one.
bool AreOne(std::span<const std::span<const int64_t>> times) {
  const std::span<const int64_t>* first = nullptr;
  for (const auto& each : times) {
    if (each.empty()) continue;
    if (each.size() != 1 || (first != nullptr && (*first)[0] != each[0])) return false;
    first = &each;
  }
  return first != nullptr;
}

int64_t TheOne(std::span<const std::span<const int64_t>> times) {
  return (*std::find_if(times.begin(), times.end(), [](const auto& each) { return !each.empty(); }))[0];
}

}  // namespace

bool SumRows(const MergedPlans& merged, std::span<const Values> values, std::span<const float> scales,
             std::span<float> out) {
  return JoinRows<Add>(merged, values, scales, out);
}

void FirstRows(const MergedPlans& merged, std::span<const Values> values, std::span<float> out) {
  JoinRows<KeepFirst>(merged, values, {}, out);
}

void GatherBuckets(const MergedPlans& merged, int64_t number, BucketRange buckets, const float* rows, float* out) {
  const MergedSource& source = merged.source(number);
  const size_t num_tables = merged.dims.size();
  for (size_t cell = buckets.begin * num_tables; cell < buckets.end * num_tables; ++cell) {
    const int dim = merged.dims[cell % num_tables];
    const int64_t first = merged.plan.splits[cell], key = source.splits[cell];
    const std::span places(source.places.data() + key, static_cast<size_t>(source.splits[cell + 1] - key));
    for (size_t j = 0; j < places.size();) {
      const int64_t run = RunFrom(places, static_cast<int64_t>(j));
      CopyRun(out, rows + (places[j] - first) * dim, run * dim);
      j += static_cast<size_t>(run);
      out += run * dim;
    }
    rows += (merged.plan.splits[cell + 1] - first) * dim;
  }
}

std::vector<int64_t> TimesOfInputs(const MergedPlans& merged, std::span<const std::span<const int64_t>> times) {
  RequireSources(merged, times.size(), false);
  for (size_t r = 0; r < times.size(); ++r) Times(times[r], merged.sources[r].table_splits.back());
  if (AreOne(times)) return {TheOne(times)};
  std::vector<int64_t> arranged;
  arranged.reserve(static_cast<size_t>(merged.plan.num_ids()));
  for (size_t table = 0; table < merged.dims.size(); ++table) {
    for (size_t r = 0; r < times.size(); ++r) {
      const auto& splits = merged.sources[r].table_splits;
      const int64_t begin = splits[table], end = splits[table + 1];
      if (times[r].size() == 1) {
        arranged.insert(arranged.end(), static_cast<size_t>(end - begin), times[r][0]);
      } else {
        arranged.insert(arranged.end(), times[r].begin() + begin, times[r].begin() + end);
      }
    }
  }
  return arranged;
}

std::vector<int64_t> TimesOfIds(const MergedPlans& merged, std::span<const std::span<const int64_t>> times) {
  RequireSources(merged, times.size(), true);
  for (size_t r = 0; r < times.size(); ++r) Times(times[r], merged.sources[r].num_keys());
  if (AreOne(times)) return {TheOne(times)};
  std::vector<int64_t> newest(static_cast<size_t>(merged.plan.num_unique()), 0);
  for (size_t r = 0; r < times.size(); ++r) {
    const MergedSource& source = merged.sources[r];
    for (int64_t key = 0; key < source.num_keys(); ++key) {
      int64_t& time = newest[merged.plan.order[source.places[key]]];
      time = std::max(time, times[r].size() == 1 ? times[r][0] : times[r][key]);
    }
  }
  return newest;
}

}  // namespace monolith
