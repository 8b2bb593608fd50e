#include "table/plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/process_key.h"
#include "base/thread_pool.h"
#include "table/id_checks.h"
#include "table/row_copy.h"

namespace monolith {
namespace {

constexpr int64_t kIdsPerTask = 4096;  // below this, waking another thread costs more than it saves
constexpr int kBucketsPerTask = 32;

class Planner {
 public:
  Planner(std::span<const int64_t> ids, std::vector<int64_t> table_splits, bool dedup,
          std::span<const uint16_t> buckets)
      : given_ids_(ids), given_buckets_(buckets), ids_(ids.size()), buckets_(ids.size()) {
    plan_.num_tables = static_cast<int>(table_splits.size()) - 1;
    plan_.deduplicated = dedup;
    plan_.table_splits = std::move(table_splits);
    num_cells_ = static_cast<size_t>(kNumBuckets) * plan_.num_tables;
    num_chunks_ = static_cast<int>(std::clamp<int64_t>(NumIds() / kIdsPerTask, 1, NumThreads()));
  }

  Plan Make() {
    CountCells();
    SortIntoCells();
    if (plan_.deduplicated) {
      MakeUnique();
      NumberUnique();
      Link();
    } else {
      KeepEach();
    }
    return std::move(plan_);
  }

 private:
  int64_t NumIds() const { return static_cast<int64_t>(ids_.size()); }

  // Calls visit(position, table) for the positions of one chunk, in input order.
  template <typename Visit>
  void ForChunk(int chunk, Visit&& visit) const {
    const int64_t begin = NumIds() * chunk / num_chunks_, end = NumIds() * (chunk + 1) / num_chunks_;
    for (int table = 0; table < plan_.num_tables; ++table) {
      const int64_t from = std::max(begin, plan_.table_splits[table]),
                    to = std::min(end, plan_.table_splits[table + 1]);
      for (int64_t i = from; i < to; ++i) visit(i, static_cast<size_t>(table));
    }
  }
  size_t CellOf(int64_t position, size_t table) const {
    return static_cast<size_t>(buckets_[position]) * plan_.num_tables + table;
  }

  template <typename Body>
  void ForCells(Body&& body) {
    const int tasks = num_chunks_ == 1 ? 1 : kNumBuckets / kBucketsPerTask;
    const size_t cells_per_task = num_cells_ / tasks;
    ParallelFor(tasks, [&](int task) {
      for (size_t cell = task * cells_per_task; cell < (task + 1) * cells_per_task; ++cell) body(cell);
    });
  }

  // The only pass that reads what was given: its owner may be writing there, and what was counted must be what is
  // sorted.
  void CountCells() {
    next_ = Buffer<uint32_t>(num_cells_ * num_chunks_);
    ParallelFor(num_chunks_, [&](int chunk) {
      uint32_t* counts = next_.data() + num_cells_ * chunk;
      std::memset(counts, 0, num_cells_ * sizeof(uint32_t));
      if (given_buckets_.empty()) {
        ForChunk(chunk, [this, counts](int64_t i, size_t table) {
          ids_[i] = given_ids_[i];
          buckets_[i] = static_cast<uint16_t>(BucketOf(ids_[i]));
          ++counts[CellOf(i, table)];
        });
      } else {
        ForChunk(chunk, [this, counts](int64_t i, size_t table) {
          ids_[i] = given_ids_[i];
          buckets_[i] = CheckedBucket(given_buckets_[i]);
          ++counts[CellOf(i, table)];
        });
      }
    });
    cell_begin_ = Buffer<uint32_t>(num_cells_ + 1);
    uint32_t total = 0;
    for (size_t cell = 0; cell < num_cells_; ++cell) {
      cell_begin_[cell] = total;
      for (int chunk = 0; chunk < num_chunks_; ++chunk) {
        uint32_t& slot = next_[num_cells_ * chunk + cell];
        const uint32_t count = slot;
        slot = total;
        total += count;
      }
    }
    cell_begin_[num_cells_] = total;
  }

  static uint16_t CheckedBucket(uint16_t bucket) {
    if (bucket >= kNumBuckets) [[unlikely]]
      throw Error(Code::kInvalidArgument, "a bucket must be in [0, 1024), got " + std::to_string(bucket));
    return bucket;
  }

  void SortIntoCells() {
    sorted_ids_ = Buffer<int64_t>(ids_.size());
    sorted_positions_ = Buffer<int32_t>(ids_.size());
    ParallelFor(num_chunks_, [&](int chunk) {
      uint32_t* next = next_.data() + num_cells_ * chunk;
      ForChunk(chunk, [&](int64_t i, size_t table) {
        const uint32_t at = next[CellOf(i, table)]++;
        sorted_ids_[at] = ids_[i];
        sorted_positions_[at] = static_cast<int32_t>(i);
      });
    });
  }

  // Numbers the distinct ids of each cell from 0 in first-seen order. They are moved to the front of the cell's part of
  // sorted_ids_, whose later entries have been read by then; counts go beside them.
  void MakeUnique() {
    local_ = Buffer<uint32_t>(ids_.size());
    counts_ = Buffer<uint32_t>(ids_.size());
    cell_unique_ = Buffer<uint32_t>(num_cells_);
    ForCells([this](size_t cell) {
      const uint32_t begin = cell_begin_[cell], size = cell_begin_[cell + 1] - begin;
      cell_unique_[cell] = Deduplicate(begin, size);
    });
  }

  uint32_t Deduplicate(uint32_t begin, uint32_t size) {
    if (size == 0) return 0;
    thread_local std::vector<uint32_t> table;  // open addressing, local number + 1, 0 = empty
    const int bits = std::bit_width(size) + 1;
    const size_t slots = size_t{1} << bits;
    if (table.size() < slots) table.resize(slots);
    std::memset(table.data(), 0, slots * sizeof(uint32_t));
    int64_t* ids = sorted_ids_.data() + begin;
    uint32_t* counts = counts_.data() + begin;
    uint32_t num_unique = 0;
    for (uint32_t j = 0; j < size; ++j) {
      const int64_t id = ids[j];
      size_t slot = HashInProcess(static_cast<uint64_t>(id)) >> (64 - bits);
      while (table[slot] != 0 && ids[table[slot] - 1] != id) slot = (slot + 1) & (slots - 1);
      if (table[slot] == 0) {
        ids[num_unique] = id;
        counts[num_unique] = 0;
        table[slot] = ++num_unique;
      }
      const uint32_t number = table[slot] - 1;
      ++counts[number];
      local_[begin + j] = number;
    }
    return num_unique;
  }

  void NumberUnique() {
    plan_.splits = Buffer<int64_t>(num_cells_ + 1);
    int64_t total = 0;
    for (size_t cell = 0; cell < num_cells_; ++cell) {
      plan_.splits[cell] = total;
      total += cell_unique_[cell];
    }
    plan_.splits[num_cells_] = total;
    plan_.unique = Buffer<int64_t>(total);
    if (!given_buckets_.empty()) plan_.buckets = Buffer<uint16_t>(total);
    plan_.starts = Buffer<int32_t>(total + 1);
    plan_.starts[total] = static_cast<int32_t>(NumIds());
    plan_.inverse = Buffer<int32_t>(ids_.size());
    plan_.order = Buffer<int32_t>(ids_.size());
  }

  void Link() {
    ForCells([this](size_t cell) {
      const uint32_t begin = cell_begin_[cell], end = cell_begin_[cell + 1];
      const int64_t first = plan_.splits[cell];
      uint32_t place = begin;
      FillBuckets(cell, first, first + cell_unique_[cell]);
      for (uint32_t u = 0; u < cell_unique_[cell]; ++u) {
        plan_.unique[first + u] = sorted_ids_[begin + u];
        plan_.starts[first + u] = static_cast<int32_t>(place);
        const uint32_t count = counts_[begin + u];
        counts_[begin + u] = place;  // from here on: where the next occurrence goes
        place += count;
      }
      for (uint32_t j = begin; j < end; ++j) {
        const uint32_t u = local_[j];
        plan_.order[counts_[begin + u]++] = sorted_positions_[j];
        plan_.inverse[sorted_positions_[j]] = static_cast<int32_t>(first + u);
      }
    });
  }

  void FillBuckets(size_t cell, int64_t begin, int64_t end) {
    if (plan_.buckets.size() == 0) return;
    std::fill(plan_.buckets.data() + begin, plan_.buckets.data() + end,
              static_cast<uint16_t>(cell / static_cast<size_t>(plan_.num_tables)));
  }

  // Every occurrence counts as an id of its own.
  void KeepEach() {
    plan_.unique = std::move(sorted_ids_);
    plan_.order = std::move(sorted_positions_);
    plan_.splits = Buffer<int64_t>(num_cells_ + 1);
    std::copy_n(cell_begin_.data(), num_cells_ + 1, plan_.splits.data());
    if (!given_buckets_.empty()) plan_.buckets = Buffer<uint16_t>(ids_.size());
    ForCells([this](size_t cell) { FillBuckets(cell, plan_.splits[cell], plan_.splits[cell + 1]); });
    plan_.starts = Buffer<int32_t>(ids_.size() + 1);
    plan_.starts[ids_.size()] = static_cast<int32_t>(NumIds());
    plan_.inverse = Buffer<int32_t>(ids_.size());
    ParallelFor(num_chunks_, [&](int chunk) {
      for (int64_t place = NumIds() * chunk / num_chunks_; place < NumIds() * (chunk + 1) / num_chunks_; ++place) {
        plan_.starts[place] = static_cast<int32_t>(place);
        plan_.inverse[plan_.order[place]] = static_cast<int32_t>(place);
      }
    });
  }

  const std::span<const int64_t> given_ids_;
  const std::span<const uint16_t> given_buckets_;
  Buffer<int64_t> ids_;  // as they were when they were counted
  Buffer<uint16_t> buckets_;
  Plan plan_;
  size_t num_cells_;
  int num_chunks_;
  Buffer<uint32_t> next_;        // [chunk][cell]: counts, then where the chunk's next id of the cell goes
  Buffer<uint32_t> cell_begin_;  // [cells + 1], in input occurrences
  Buffer<int64_t> sorted_ids_;
  Buffer<int32_t> sorted_positions_;
  Buffer<uint32_t> local_;  // per sorted occurrence: number of its id inside the cell
  Buffer<uint32_t> counts_;
  Buffer<uint32_t> cell_unique_;  // [cells]
};

}  // namespace

Plan MakePlan(std::span<const int64_t> ids, std::span<const int64_t> table_splits, bool dedup,
              std::span<const uint16_t> buckets) {
  CheckCount(ids.size());
  if (!buckets.empty() && buckets.size() != ids.size()) {
    throw Error(Code::kInvalidArgument, "expected the buckets of " + std::to_string(ids.size()) + " ids, got " +
                                            std::to_string(buckets.size()));
  }
  if (table_splits.size() < 2) throw Error(Code::kInvalidArgument, "table_splits must have two or more elements");
  std::vector<int64_t> splits(table_splits.begin(), table_splits.end());
  CheckSplits("table_splits", splits, ids.size());
  return Planner(ids, std::move(splits), dedup, buckets).Make();
}

void SpreadRows(const Plan& plan, int dim, std::span<const float> values, std::span<float> out) {
  if (dim < 1 || static_cast<int64_t>(values.size()) != plan.num_unique() * dim ||
      static_cast<int64_t>(out.size()) != plan.num_ids() * dim) {
    throw Error(Code::kInvalidArgument, "expected " + std::to_string(plan.num_unique()) + " rows to spread over " +
                                            std::to_string(plan.num_ids()) + ", each of dim " + std::to_string(dim));
  }
  constexpr int64_t kAhead = 16;
  const int64_t num_ids = plan.num_ids();
  ParallelFor(static_cast<int>((num_ids + kIdsPerTask - 1) / kIdsPerTask), [&](int task) {
    const int64_t end = std::min(num_ids, (task + 1) * kIdsPerTask);
    for (int64_t i = task * kIdsPerTask; i < end; ++i) {
      if (i + kAhead < end) __builtin_prefetch(values.data() + static_cast<int64_t>(plan.inverse[i + kAhead]) * dim);
      CopyFloats(out.data() + i * dim, values.data() + static_cast<int64_t>(plan.inverse[i]) * dim, dim);
    }
  });
}

}  // namespace monolith
