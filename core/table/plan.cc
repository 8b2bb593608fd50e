#include "table/plan.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/largest_first.h"
#include "base/prefetch.h"
#include "base/thread_pool.h"
#include "memory/array_block.h"
#include "table/id_checks.h"
#include "table/plan_kernels.h"
#include "table/row_copy.h"

namespace monolith {
namespace {

constexpr int64_t kIdsPerTask = 4096;   // below this, waking another thread costs more than it saves
constexpr int64_t kIdsPerBlock = 1024;  // hashed and counted while they are in the cache
// The distinct ids of a part and their slots, of 2 bytes each, should fit the second-level cache even if it is shared.
// Of 1 to 128 parts for 4,096 x 26 ids of zipf 1.05 by one thread, 8 were the fastest on an Intel Xeon with 1 MiB of
// it, and 16 on a Neoverse N1 with the same size.
#ifdef __aarch64__
constexpr int64_t kIdsPerPart = int64_t{1} << 13;
#else
constexpr int64_t kIdsPerPart = int64_t{1} << 14;
#endif

// With one thread, all ids are one part. With several, the ids are first distributed to parts, run after run, and so by
// table inside a part; a run is what one task distributes of one table.
class Planner {
 public:
  Planner(std::span<const int64_t> ids, std::vector<int64_t> table_splits, bool dedup,
          std::span<const uint16_t> buckets)
      : ids_(ids), buckets_(buckets) {
    plan_.num_tables = static_cast<int>(table_splits.size()) - 1;
    plan_.deduplicated = dedup;
    plan_.table_splits = std::move(table_splits);
    // More parts than threads, so that a thread delayed by the system holds up less.
    const int threads = NumThreads();
    num_chunks_ = static_cast<int>(std::clamp<int64_t>(NumIds() / kIdsPerTask, 1, threads == 1 ? 1 : 2 * threads));
    const auto least = static_cast<uint64_t>(num_chunks_ == 1 ? 1 : 2 * num_chunks_);
    const uint64_t parts = std::bit_ceil(std::max<uint64_t>(least, static_cast<uint64_t>(NumIds() / kIdsPerPart)));
    num_parts_ = static_cast<size_t>(std::min<uint64_t>(parts, kNumBuckets));
    shift_ = kBucketBits - std::countr_zero(num_parts_);
  }

  Plan Make() {
    plan_.splits = Buffer<int64_t>(static_cast<size_t>(kNumBuckets) * plan_.num_tables + 1);
    plan_.splits[0] = 0;
    plan_.inverse = Buffer<int32_t>(ids_.size());
    plan_.order = Buffer<int32_t>(ids_.size());
    if (num_parts_ == 1) {
      PlanWhole();
    } else {
      TakeMemory();
      MakeRuns();
      Count();
      PlaceParts();
      Deal();
      PlanParts();
      Join();
    }
    return std::move(plan_);
  }

 private:
  struct Run {
    int64_t begin, end;  // in the input
  };

  int64_t NumIds() const { return static_cast<int64_t>(ids_.size()); }
  bool has_buckets() const { return !buckets_.empty(); }

  DistinctOfPart Distinct(const Part& part, uint32_t* numbers) const {
    return plan_.deduplicated ? NumberIds(part, numbers) : NumberEach(part, numbers);
  }

  void MakeUnique(size_t size) {
    plan_.unique = Buffer<int64_t>(size);
    if (has_buckets()) plan_.buckets = Buffer<uint16_t>(size);
    plan_.starts = Buffer<int32_t>(size + 1);
    plan_.starts[size] = static_cast<int32_t>(NumIds());
  }

  void PlanWhole() {
    const std::vector<uint32_t> table_ends(plan_.table_splits.begin() + 1, plan_.table_splits.end());
    memory_ = ArrayBlock(ArrayBlock::BytesFor<uint16_t>(buckets_.size()));
    own_buckets_ = memory_.Take<uint16_t>(buckets_.size());
    CopyBuckets(0, static_cast<int64_t>(buckets_.size()));
    const Part part{ids_.data(), has_buckets() ? own_buckets_ : nullptr, table_ends.data(), plan_.num_tables, 0,
                    kNumBuckets};
    auto* numbers = reinterpret_cast<uint32_t*>(plan_.inverse.data());
    const DistinctOfPart distinct = Distinct(part, numbers);
    MakeUnique(distinct.size);
    Buffer<PlaceOfId> places = SortDistinct(part, distinct, 0, 0,
                                            {plan_.unique.data(), has_buckets() ? plan_.buckets.data() : nullptr,
                                             plan_.starts.data(), plan_.splits.data() + 1});
    LinkIds(nullptr, part.size(), places.data(), plan_.order.data(), numbers);
  }

  void CopyBuckets(int64_t begin, int64_t end) {
    uint16_t most = 0;
    for (int64_t i = begin; i < end; ++i) most = std::max(most, own_buckets_[i] = buckets_[i]);
    if (most >= kNumBuckets) [[unlikely]]
      throw Error(Code::kInvalidArgument, "a bucket must be in [0, 1024), got " + std::to_string(most));
  }

  void TakeMemory() {
    const size_t size = ids_.size();
    memory_ = ArrayBlock(ArrayBlock::BytesFor<int64_t, uint16_t, int64_t, int32_t, uint32_t, int64_t, int32_t>(size) +
                         (has_buckets() ? ArrayBlock::BytesFor<uint16_t, uint16_t>(size) : 0));
    own_ids_ = memory_.Take<int64_t>(size);
    own_buckets_ = memory_.Take<uint16_t>(size);
    dealt_ = {memory_.Take<int64_t>(size), memory_.Take<int32_t>(size), nullptr};
    numbers_ = memory_.Take<uint32_t>(size);
    unique_ = memory_.Take<int64_t>(size);
    starts_ = memory_.Take<int32_t>(size);
    if (!has_buckets()) return;
    dealt_.buckets = memory_.Take<uint16_t>(size);
    unique_buckets_ = memory_.Take<uint16_t>(size);
  }

  // In input order, the runs of one task after those of another.
  void MakeRuns() {
    size_t table = 0;
    for (int chunk = 0; chunk < num_chunks_; ++chunk) {
      const int64_t end = NumIds() * (chunk + 1) / num_chunks_;
      for (int64_t at = NumIds() * chunk / num_chunks_; at < end; at = runs_.back().end) {
        for (; plan_.table_splits[table + 1] <= at; ++table) runs_of_tables_.push_back(runs_.size());
        runs_.push_back({at, std::min(end, plan_.table_splits[table + 1])});
      }
      runs_of_chunks_.push_back(runs_.size());
    }
    runs_of_tables_.resize(static_cast<size_t>(plan_.num_tables), runs_.size());
    counters_ = Buffer<uint32_t>(num_parts_ * (runs_.size() + 1));
  }

  uint32_t* Counters(size_t r) { return counters_.data() + num_parts_ * r; }

  // Calls body(run, r) for each run; r counts from 0.
  template <typename Body>
  void ForRuns(Body&& body) {
    ParallelFor(num_chunks_, [&](int chunk) { ForRunsOf(chunk, body); });
  }
  template <typename Body>
  void ForRunsOf(int chunk, Body&& body) {
    for (size_t r = chunk == 0 ? 0 : runs_of_chunks_[chunk - 1]; r < runs_of_chunks_[chunk]; ++r) body(runs_[r], r);
  }

  // The only pass that reads the input: the caller may write to it concurrently, and the ids distributed must be those
  // counted.
  void Count() {
    ForRuns([this](Run run, size_t r) {
      uint32_t counts[kNumBuckets];
      std::fill_n(counts, num_parts_, 0u);
      for (int64_t at = run.begin; at < run.end; at += kIdsPerBlock) {
        const int64_t count = std::min(kIdsPerBlock, run.end - at);
        if (has_buckets()) {
          std::copy_n(ids_.data() + at, count, own_ids_ + at);
          CopyBuckets(at, at + count);
        } else {
          FindBuckets(ids_.data() + at, count, own_ids_ + at, own_buckets_ + at);
        }
        CountParts(own_buckets_ + at, count, shift_, counts);
      }
      std::copy_n(counts, num_parts_, Counters(r + 1));
    });
  }

  // Turns the number of ids of each part in run r, in Counters(r + 1), into the end of these ids; and writes the start
  // of the parts to Counters(0). A run begins where the one before it ends.
  void PlaceParts() {
    uint32_t* begins = Counters(0);
    std::fill_n(begins, num_parts_, 0u);
    for (size_t r = 0; r < runs_.size(); ++r) AddCounters(begins, Counters(r + 1));
    uint32_t total = 0;
    for (size_t p = 0; p < num_parts_; ++p) {
      part_begins_.push_back(total);
      total += begins[p];
      begins[p] = part_begins_[p];
    }
    part_begins_.push_back(total);
    for (size_t r = 0; r < runs_.size(); ++r) AddCounters(Counters(r + 1), Counters(r));
  }
  void AddCounters(uint32_t* to, const uint32_t* from) const {
    for (size_t p = 0; p < num_parts_; ++p) to[p] += from[p];
  }

  void Deal() {
    ForRuns([&](Run run, size_t r) {
      DealOut(own_ids_ + run.begin, own_buckets_ + run.begin, run.end - run.begin, static_cast<int32_t>(run.begin),
              shift_, Counters(r), dealt_);
    });
  }

  // Returns the ends of the ids of each table in a part.
  std::vector<uint32_t> TableEnds(size_t p) {
    std::vector<uint32_t> ends;
    for (const size_t num_runs : runs_of_tables_) ends.push_back(Counters(num_runs)[p] - part_begins_[p]);
    return ends;
  }

  // Makes the plan of each part, with numbers from 0 on, in the part's own memory.
  void PlanParts() {
    num_unique_.resize(num_parts_);
    const auto size_of = [this](int p) { return part_begins_[p + 1] - part_begins_[p]; };
    const std::vector<int> parts = LargestFirst(static_cast<int>(num_parts_), size_of);
    ParallelFor(static_cast<int>(num_parts_), [&](int task) { PlanPart(static_cast<size_t>(parts[task])); });
  }

  void PlanPart(size_t p) {
    const uint32_t begin = part_begins_[p];
    const std::vector<uint32_t> table_ends = TableEnds(p);
    const Part part{dealt_.ids + begin,
                    has_buckets() ? dealt_.buckets + begin : nullptr,
                    table_ends.data(),
                    plan_.num_tables,
                    static_cast<uint32_t>(p << shift_),
                    uint32_t{1} << shift_};
    uint32_t* numbers = numbers_ + begin;
    const DistinctOfPart distinct = Distinct(part, numbers);
    Buffer<PlaceOfId> places = SortDistinct(part, distinct, static_cast<int32_t>(begin), 0,
                                            {unique_ + begin, has_buckets() ? unique_buckets_ + begin : nullptr,
                                             starts_ + begin, plan_.splits.data() + CellsPerPart() * p + 1});
    LinkIds(dealt_.positions + begin, part.size(), places.data(), plan_.order.data(), numbers);
    num_unique_[p] = distinct.size;
  }

  size_t CellsPerPart() const { return static_cast<size_t>(plan_.num_tables) << shift_; }

  // Concatenates the plans of the parts, and puts the numbers of their ids back in input order. Not done by
  // PlanParts(): neighbours in input order belong to different parts, whose threads would write the same cache lines.
  void Join() {
    std::vector<int32_t> firsts;  // of each part
    int32_t total = 0;
    for (const uint32_t num_unique : num_unique_) {
      firsts.push_back(total);
      total += static_cast<int32_t>(num_unique);
    }
    MakeUnique(static_cast<size_t>(total));
    ParallelFor(num_chunks_, [&](int chunk) {
      const size_t parts_end = num_parts_ * (chunk + 1) / num_chunks_;
      for (size_t p = num_parts_ * chunk / num_chunks_; p < parts_end; ++p) JoinPart(p, firsts[p]);
      ForRunsOf(chunk, [&](Run run, size_t r) {
        GatherDealt(own_buckets_ + run.begin, run.end - run.begin, shift_, Counters(r), numbers_, firsts.data(),
                    plan_.inverse.data() + run.begin);
      });
    });
  }

  void JoinPart(size_t p, int32_t first) {
    const size_t from = part_begins_[p], to = static_cast<size_t>(first), count = num_unique_[p];
    std::copy_n(unique_ + from, count, plan_.unique.data() + to);
    std::copy_n(starts_ + from, count, plan_.starts.data() + to);
    if (has_buckets()) std::copy_n(unique_buckets_ + from, count, plan_.buckets.data() + to);
    int64_t* splits = plan_.splits.data() + CellsPerPart() * p + 1;
    for (size_t cell = 0; cell < CellsPerPart(); ++cell) splits[cell] += first;
  }

  const std::span<const int64_t> ids_;       // as given
  const std::span<const uint16_t> buckets_;  // as given
  Plan plan_;
  int num_chunks_;  // of the input, one task each
  size_t num_parts_;
  int shift_;  // shift from a bucket to its part
  std::vector<Run> runs_;
  std::vector<size_t> runs_of_chunks_, runs_of_tables_;  // up to this one, and its own
  Buffer<uint32_t> counters_;                            // [runs + 1][parts]: see PlaceParts()
  std::vector<uint32_t> part_begins_;                    // [parts + 1]
  ArrayBlock memory_;                                    // of the arrays that follow
  int64_t* own_ids_ = nullptr;                           // their values when they were counted
  uint16_t* own_buckets_ = nullptr;
  DealtIds dealt_{};             // part by part
  uint32_t* numbers_ = nullptr;  // of the ids of each part in its plan, in the memory of the part
  int64_t* unique_ = nullptr;    // of each part, in the memory of the part
  int32_t* starts_ = nullptr;
  uint16_t* unique_buckets_ = nullptr;
  std::vector<uint32_t> num_unique_;  // [parts]
};

// Runs body(begin, end) over [0, count), in pieces of equal size.
template <typename Body>
void ForPieces(int64_t count, Body&& body) {
  const int64_t threads = count / kIdsPerTask + 1;
  ParallelFor(static_cast<int>((count + kIdsPerBlock - 1) / kIdsPerBlock), static_cast<int>(threads),
              [&](int task) { body(task * kIdsPerBlock, std::min(count, (task + 1) * kIdsPerBlock)); });
}

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
  GatherRows({plan.inverse.data(), plan.inverse.size()}, dim, values.data(), out.data());
}

void GatherRows(std::span<const int32_t> places, int dim, const float* rows, float* out) {
  constexpr int64_t kAhead = 16;  // rows between the prefetch of a row and its copy
  const auto row = [&](int64_t i) { return rows + static_cast<int64_t>(places[i]) * dim; };
  ForPieces(static_cast<int64_t>(places.size()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* ahead = row(std::min(i + kAhead, end - 1));
      Prefetch(ahead);
      Prefetch(ahead + dim - 1);  // it may begin anywhere in a line; the hardware prefetches longer rows
      CopyFloats(out + i * dim, row(i), dim);
    }
  });
}

bool IsPlanOf(const Plan& plan, std::span<const int64_t> ids) {
  if (static_cast<int64_t>(ids.size()) != plan.num_ids()) return false;
  std::atomic<bool> same{true};
  ForPieces(plan.num_ids(), [&](int64_t begin, int64_t end) {
    int64_t differences = 0;  // branch-free: they are nearly always the same
    for (int64_t i = begin; i < end; ++i) differences += plan.unique[plan.inverse[i]] != ids[i];
    if (differences != 0) same.store(false, std::memory_order_relaxed);
  });
  return same.load(std::memory_order_relaxed);
}

}  // namespace monolith
