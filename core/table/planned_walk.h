// Visits the ids of a plan bucket by bucket, under each bucket's lock, on all threads.
//
// Inside a bucket the visits come in plan order, whatever the number of threads. A bucket that is locked by someone else is put
// off until the others of the task are done. A lock is held for at most kIdsPerHold ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "table/group.h"
#include "table/row_finder.h"

namespace monolith {

struct PlannedId {
  Bucket& bucket;
  uint32_t bucket_number;
  Table& table;
  TableShard& shard;
  int table_place;  // of the table among those of the plan
  int64_t place;    // in plan.unique
  int64_t id;
  uint64_t hash;
  uint32_t row;  // kNoRow iff the id is not in the table
};

template <typename Local>
class PlannedWalk {
 public:
  // `hinted`: the plan's hints are of these tables' rows.
  PlannedWalk(BucketLock* locks, Bucket* buckets, std::span<Table* const> tables, const Plan& plan, bool hinted)
      : locks_(locks), buckets_(buckets), tables_(tables), plan_(plan), hinted_(hinted && plan.hints.size() != 0) {}

  // Calls visitor.Visit(const PlannedId&, Local&) for every id, and visitor.Prefetch(place) a little before; returns the sum of
  // the tasks' Locals by +=.
  template <typename Visitor>
  Local Run(Visitor& visitor) {
    const int tasks = plan_.num_unique() < kIdsPerHold ? 1 : kNumBuckets / kBucketsPerTask;
    Local total{};
    std::mutex total_mutex;
    ParallelFor(tasks, [&](int task) {
      Local local{};
      const uint32_t width = kNumBuckets / tasks;
      VisitBuckets(task * width, (task + 1) * width, visitor, local);
      std::lock_guard lock(total_mutex);
      total += local;
    });
    return total;
  }

 private:
  static constexpr int kIdsPerHold = 512;
  static constexpr int kBucketsPerTask = 16;

  int64_t BeginOf(uint32_t bucket) const { return plan_.splits[static_cast<size_t>(bucket) * plan_.num_tables]; }

  size_t CellOf(uint32_t bucket, int place) const { return static_cast<size_t>(bucket) * plan_.num_tables + place; }

  // Which cell an id of the plan is in, for ids asked about in order.
  class CellCursor {
   public:
    CellCursor(const Plan& plan, size_t cell) : plan_(plan), cell_(cell) {}
    void MoveTo(int64_t u) {
      while (u >= plan_.splits[cell_ + 1]) ++cell_;
    }
    uint32_t bucket() const { return static_cast<uint32_t>(cell_ / plan_.num_tables); }
    int place() const { return static_cast<int>(cell_ % plan_.num_tables); }

   private:
    const Plan& plan_;
    size_t cell_;
  };

  // The lock of the bucket that is being visited.
  class Holder {
   public:
    explicit Holder(BucketLock* locks) : locks_(locks) {}
    ~Holder() { Leave(); }
    bool IsAt(uint32_t bucket) const { return held_ && bucket == bucket_; }
    bool TryEnter(uint32_t bucket) {
      Leave();
      held_ = locks_[bucket].TryLock();
      bucket_ = bucket;
      return held_;
    }
    void Enter(uint32_t bucket) {
      Leave();
      locks_[bucket].Lock();
      held_ = true;
      bucket_ = bucket;
    }
    void CountId() {
      if (++ids_ % kIdsPerHold != 0 || !held_) return;
      locks_[bucket_].Unlock();
      locks_[bucket_].Lock();
    }
    void Leave() {
      if (std::exchange(held_, false)) locks_[bucket_].Unlock();
    }

   private:
    BucketLock* const locks_;
    bool held_ = false;
    uint32_t bucket_ = 0;
    int ids_ = 0;
  };

  template <typename Visitor>
  void VisitBuckets(uint32_t begin, uint32_t end, Visitor& visitor, Local& local) {
    Holder holder(locks_);
    std::vector<uint32_t> busy;
    CellCursor ahead(plan_, CellOf(begin, 0)), here(plan_, CellOf(begin, 0));
    // Block n is begun in round n and visited in round n + 3: its index lines come meanwhile, then its rows.
    constexpr int64_t kRounds = 3;
    RowFinder finders[kRounds + 1];
    const int64_t first = BeginOf(begin), last = BeginOf(end);
    const int64_t num_blocks = (last - first + RowFinder::kBlock - 1) / RowFinder::kBlock;
    for (int64_t round = 0; round < num_blocks + kRounds; ++round) {
      if (const int64_t visited = round - kRounds; visited >= 0) {
        const RowFinder& finder = finders[visited % (kRounds + 1)];
        for (int i = 0; i < finder.count; ++i) {
          const int64_t u = first + visited * RowFinder::kBlock + i;
          here.MoveTo(u);
          const uint32_t bucket = here.bucket();
          if (!busy.empty() && busy.back() == bucket) continue;
          if (!holder.IsAt(bucket) && !holder.TryEnter(bucket)) {
            busy.push_back(bucket);
            continue;
          }
          VisitId(u, here, finder.hashes[i], finder.rows[i], visitor, local);
          holder.CountId();
        }
      }
      if (const int64_t asked = round - 1; asked >= 0 && asked < num_blocks) {
        RowFinder& finder = finders[asked % (kRounds + 1)];
        if (!hinted_) finder.AskForRows(RowFinder::Purpose::kWriting);
        for (int i = 0; i < finder.count; ++i) visitor.Prefetch(first + asked * RowFinder::kBlock + i);
      }
      if (round < num_blocks) BeginBlock(first + round * RowFinder::kBlock, last, ahead, finders[round % (kRounds + 1)]);
    }
    for (const uint32_t bucket : busy) {
      holder.Enter(bucket);
      CellCursor cursor(plan_, CellOf(bucket, 0));
      for (int64_t u = BeginOf(bucket); u < BeginOf(bucket + 1); ++u) {
        cursor.MoveTo(u);
        VisitId(u, cursor, HashId(plan_.unique[u]), kNoRow, visitor, local);
        holder.CountId();
      }
    }
  }

  // Guesses rows from the hints of an earlier read, or begins to from the index as it is now; no lock is held.
  void BeginBlock(int64_t first, int64_t last, CellCursor& cursor, RowFinder& finder) const {
    finder.count = static_cast<int>(std::min<int64_t>(RowFinder::kBlock, last - first));
    for (int i = 0; i < finder.count; ++i) {
      cursor.MoveTo(first + i);
      finder.ids[i] = plan_.unique[first + i];
      finder.hashes[i] = HashId(finder.ids[i]);
      finder.tables[i] = tables_[cursor.place()];
      finder.rows[i] = hinted_ ? plan_.hints[first + i] : kNoRow;
    }
    hinted_ ? finder.AskForHintedRows(RowFinder::Purpose::kWriting) : finder.AskForLines();
  }

  template <typename Visitor>
  void VisitId(int64_t u, const CellCursor& cursor, uint64_t hash, uint32_t guess, Visitor& visitor, Local& local) {
    Table& table = *tables_[cursor.place()];
    TableShard& shard = table.shards[cursor.bucket()];
    const int64_t id = plan_.unique[u];
    const bool holds = guess != kNoRow && TableShard::Holds(table.rows, guess, id);
    const uint32_t row = holds ? guess : shard.Find(table.rows, hash, id);
    visitor.Visit(PlannedId{buckets_[cursor.bucket()], cursor.bucket(), table, shard, cursor.place(), u, id, hash, row}, local);
  }

  BucketLock* const locks_;
  Bucket* const buckets_;
  const std::span<Table* const> tables_;
  const Plan& plan_;
  const bool hinted_;
};

}  // namespace monolith
