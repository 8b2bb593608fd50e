#include "table/plan.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "table/id_checks.h"
#include "table/plan_kernels.h"
#include "table/row_copy.h"

namespace monolith {
namespace {

constexpr int64_t kIdsPerTask = 4096;   // below this, waking another thread costs more than it saves
constexpr int64_t kIdsPerBlock = 1024;  // hashed and counted while they are near
// Distinct ids of a part and their slots, of 2 bytes each, should lie in the second-level cache whoever else uses it.
// Of 1 to 128 parts for 4,096 x 26 ids of zipf 1.05 by one thread, 8 were the fastest on an Intel Xeon with 1 MiB of
// it, and 16 on a Neoverse N1 with as much.
#ifdef __aarch64__
constexpr int64_t kIdsPerPart = int64_t{1} << 13;
#else
constexpr int64_t kIdsPerPart = int64_t{1} << 14;
#endif

// One part with everything in it for one thread. For several, deals the ids out to parts first, run after run, and so
// by table inside a part; a run is what one task deals out of one table.
class Planner {
 public:
  Planner(std::span<const int64_t> ids, std::vector<int64_t> table_splits, bool dedup,
          std::span<const uint16_t> buckets)
      : ids_(ids), buckets_(buckets) {
    plan_.num_tables = static_cast<int>(table_splits.size()) - 1;
    plan_.deduplicated = dedup;
    plan_.table_splits = std::move(table_splits);
    // More than there are threads: one that the system delays holds up less.
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

  DistinctIds Distinct(const Part& part, uint32_t* numbers) const {
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
    own_buckets_ = Buffer<uint16_t>(buckets_.size());
    CopyBuckets(0, static_cast<int64_t>(buckets_.size()));
    const Part part{ids_.data(), has_buckets() ? own_buckets_.data() : nullptr, table_ends.data(), plan_.num_tables, 0,
                    kNumBuckets};
    const DistinctIds distinct = Distinct(part, reinterpret_cast<uint32_t*>(plan_.inverse.data()));
    MakeUnique(distinct.size);
    Buffer<PlaceOfId> places = SortDistinct(part, distinct, 0, 0,
                                            {plan_.unique.data(), has_buckets() ? plan_.buckets.data() : nullptr,
                                             plan_.starts.data(), plan_.splits.data() + 1});
    LinkWhole(part.size(), places.data(), plan_.order.data(), plan_.inverse.data());
  }

  void CopyBuckets(int64_t begin, int64_t end) {
    uint16_t most = 0;
    for (int64_t i = begin; i < end; ++i) most = std::max(most, own_buckets_[i] = buckets_[i]);
    if (most >= kNumBuckets) [[unlikely]]
      throw Error(Code::kInvalidArgument, "a bucket must be in [0, 1024), got " + std::to_string(most));
  }

  // In input order, those of one task after those of another.
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
    ParallelFor(num_chunks_, [&](int chunk) {
      for (size_t r = chunk == 0 ? 0 : runs_of_chunks_[chunk - 1]; r < runs_of_chunks_[chunk]; ++r) body(runs_[r], r);
    });
  }

  // The only pass that reads what was given: its owner may be writing there, and what was counted must be what is
  // dealt out.
  void Count() {
    own_ids_ = Buffer<int64_t>(ids_.size());
    own_buckets_ = Buffer<uint16_t>(ids_.size());
    ForRuns([this](Run run, size_t r) {
      uint32_t* counts = Counters(r + 1);
      std::fill_n(counts, num_parts_, 0u);
      for (int64_t at = run.begin; at < run.end; at += kIdsPerBlock) {
        const int64_t count = std::min(kIdsPerBlock, run.end - at);
        if (has_buckets()) {
          std::copy_n(ids_.data() + at, count, own_ids_.data() + at);
          CopyBuckets(at, at + count);
        } else {
          FindBuckets(ids_.data() + at, count, own_ids_.data() + at, own_buckets_.data() + at);
        }
        CountParts(own_buckets_.data() + at, count, shift_, counts);
      }
    });
  }

  // From how many ids of each part run r has, in Counters(r + 1), to where they end; and in Counters(0), to where the
  // parts begin.
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

  // A run begins where the one before it ends, and moves that end to its own.
  void Deal() {
    part_ids_ = Buffer<int64_t>(ids_.size());
    part_positions_ = Buffer<int32_t>(ids_.size());
    if (has_buckets()) part_buckets_ = Buffer<uint16_t>(ids_.size());
    const DealtIds dealt{part_ids_.data(), part_positions_.data(), has_buckets() ? part_buckets_.data() : nullptr};
    ForRuns([&](Run run, size_t r) {
      DealOut(own_ids_.data() + run.begin, own_buckets_.data() + run.begin, run.end - run.begin,
              static_cast<int32_t>(run.begin), shift_, Counters(r), dealt);
    });
  }

  // Where the ids that a part has of each table end; after Deal().
  std::vector<uint32_t> TableEnds(size_t p) {
    std::vector<uint32_t> ends;
    for (const size_t num_runs : runs_of_tables_)
      ends.push_back(num_runs == 0 ? 0 : Counters(num_runs - 1)[p] - part_begins_[p]);
    return ends;
  }

  // Makes the plan of each part, with numbers from 0 on, where the part is.
  void PlanParts() {
    unique_ = Buffer<int64_t>(ids_.size());
    starts_ = Buffer<int32_t>(ids_.size());
    if (has_buckets()) unique_buckets_ = Buffer<uint16_t>(ids_.size());
    num_unique_.resize(num_parts_);
    ParallelFor(static_cast<int>(num_parts_), [&](int p) { PlanPart(static_cast<size_t>(p)); });
  }

  void PlanPart(size_t p) {
    const uint32_t begin = part_begins_[p];
    const std::vector<uint32_t> table_ends = TableEnds(p);
    const Part part{part_ids_.data() + begin,
                    has_buckets() ? part_buckets_.data() + begin : nullptr,
                    table_ends.data(),
                    plan_.num_tables,
                    static_cast<uint32_t>(p << shift_),
                    uint32_t{1} << shift_};
    Buffer<uint32_t> numbers(part.size());
    const DistinctIds distinct = Distinct(part, numbers.data());
    Buffer<PlaceOfId> places =
        SortDistinct(part, distinct, static_cast<int32_t>(begin), 0,
                     {unique_.data() + begin, has_buckets() ? unique_buckets_.data() + begin : nullptr,
                      starts_.data() + begin, plan_.splits.data() + CellsPerPart() * p + 1});
    LinkPart(part_positions_.data() + begin, numbers.data(), part.size(), places.data(), plan_.order.data(),
             plan_.inverse.data());
    num_unique_[p] = distinct.size;
  }

  size_t CellsPerPart() const { return static_cast<size_t>(plan_.num_tables) << shift_; }

  // Puts the plans of the parts end to end.
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
      const int64_t begin = NumIds() * chunk / num_chunks_, end = NumIds() * (chunk + 1) / num_chunks_;
      ShiftInverse(own_buckets_.data() + begin, end - begin, shift_, firsts.data(), plan_.inverse.data() + begin);
    });
  }

  void JoinPart(size_t p, int32_t first) {
    const size_t from = part_begins_[p], to = static_cast<size_t>(first), count = num_unique_[p];
    std::copy_n(unique_.data() + from, count, plan_.unique.data() + to);
    std::copy_n(starts_.data() + from, count, plan_.starts.data() + to);
    if (has_buckets()) std::copy_n(unique_buckets_.data() + from, count, plan_.buckets.data() + to);
    int64_t* splits = plan_.splits.data() + CellsPerPart() * p + 1;
    for (size_t cell = 0; cell < CellsPerPart(); ++cell) splits[cell] += first;
  }

  const std::span<const int64_t> ids_;       // as given
  const std::span<const uint16_t> buckets_;  // as given
  Plan plan_;
  int num_chunks_;  // of the input, one task each
  size_t num_parts_;
  int shift_;  // from a bucket to its part
  std::vector<Run> runs_;
  std::vector<size_t> runs_of_chunks_, runs_of_tables_;  // up to this one, and its own
  Buffer<uint32_t> counters_;                            // [runs + 1][parts]: see PlaceParts()
  std::vector<uint32_t> part_begins_;                    // [parts + 1]
  Buffer<int64_t> own_ids_;                              // as they were when they were counted
  Buffer<uint16_t> own_buckets_;
  Buffer<int64_t> part_ids_;  // part by part
  Buffer<int32_t> part_positions_;
  Buffer<uint16_t> part_buckets_;
  Buffer<int64_t> unique_;  // of each part, where the part is
  Buffer<int32_t> starts_;
  Buffer<uint16_t> unique_buckets_;
  std::vector<uint32_t> num_unique_;  // [parts]
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
