// Visits the ids of a plan bucket by bucket, under each bucket's lock, on all threads.
//
// Inside a bucket the visits come in plan order, whatever the number of threads. A bucket locked by another thread is
// deferred until the others of the task are done. A lock is held for at most kIdsPerHold ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/thread_pool.h"
#include "table/group.h"
#include "table/row_finder.h"

namespace monolith {

struct PlannedId {
  Bucket& bucket;
  uint32_t bucket_number;
  Table& table;
  int table_place;  // index of the table among those of the plan
  int64_t place;    // index in plan.unique
  int64_t id;
  uint64_t hash;
  uint32_t row;           // kNoRow iff the id is not in the table
  std::byte* record;      // of the row; null iff there is none
  const IndexLine* home;  // of the id in the index of the table, iff there is no row

  TableShard& shard() const { return table.shards[bucket_number]; }
};

template <typename Local>
class PlannedWalk {
 public:
  // `hinted`: the plan's hints are of these tables' rows. `logged`: shards record the changes that visits make.
  PlannedWalk(BucketLock* locks, Bucket* buckets, std::span<Table* const> tables, const Plan& plan, bool hinted,
              bool logged)
      : locks_(locks),
        buckets_(buckets),
        tables_(tables),
        plan_(plan),
        hinted_(hinted && plan.hints.size() != 0),
        logged_(logged) {}

  // Calls visitor.Visit(const PlannedId&, Local&) for every id; returns the sum of the tasks' Locals by +=.
  template <typename Visitor>
  Local Run(Visitor& visitor) {
    const int tasks = plan_.num_unique() < kIdsPerHold ? 1 : kNumBuckets / kBucketsPerTask;
    Mutex total_mutex;
    Local total{};  // guarded by the mutex while tasks run
    ParallelFor(tasks, [&](int task) {
      Local local{};
      const uint32_t width = kNumBuckets / tasks;
      if (tables_.size() == 1) {
        VisitBuckets(task * width, (task + 1) * width, OneBlock(*tables_[0]), visitor, local);
      } else {
        VisitBuckets(task * width, (task + 1) * width, MixedBlock(*this, CellOf(task * width)), visitor, local);
      }
      MutexLock lock(total_mutex);
      total += local;
    });
    return total;
  }

 private:
  static constexpr int kIdsPerHold = 512;
  static constexpr int kBucketsPerTask = 16;

  size_t CellOf(uint32_t bucket) const { return static_cast<size_t>(bucket) * plan_.num_tables; }
  int64_t BeginOf(uint32_t bucket) const { return plan_.splits[CellOf(bucket)]; }

  // Some ids of the plan in flight: found, and then visited.
  struct Block {
    int64_t first = 0;  // index of the first id in the plan
    RowFinder finder;
  };

  struct OneBlock : Block {
    explicit OneBlock(Table& the_table) : tables(the_table, Purpose::kWriting), table(the_table) {}
    void SetTables(int64_t) {}
    int place(int) const { return 0; }

    OneTable tables;
    Table& table;
  };

  struct MixedBlock : Block {
    MixedBlock(const PlannedWalk& the_walk, size_t first_cell) : walk(the_walk), cell(first_cell) {}
    // `from` never decreases.
    void SetTables(int64_t from) {
      for (int i = 0; i < this->finder.count(); ++i) {
        while (from + i >= walk.plan_.splits[cell + 1]) ++cell;
        places[i] = static_cast<int>(cell % walk.plan_.num_tables);
        tables.Set(i, walk.tables_[places[i]]);
      }
    }
    int place(int i) const { return places[i]; }

    const PlannedWalk& walk;
    size_t cell;
    ManyTables tables{Purpose::kWriting};
    int places[RowFinder::kBlock];
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

  // Three blocks are in flight: the index lines of one arrive, the rows of the one before it are prefetched, and the
  // one before that is visited.
  template <typename AnyBlock, typename Visitor>
  void VisitBuckets(uint32_t begin, uint32_t end, const AnyBlock& empty, Visitor& visitor, Local& local) {
    Holder holder(locks_);
    std::vector<uint32_t> busy;
    AnyBlock blocks[3] = {empty, empty, empty};
    AnyBlock *asked = &blocks[0], *guessed = &blocks[1], *visited = &blocks[2];
    const int64_t first = BeginOf(begin), last = BeginOf(end);
    for (int64_t next = first; next < last + 2 * RowFinder::kBlock; next += RowFinder::kBlock) {
      Ask(next, last, *asked);
      if (logged_) AskForLogs(*asked);
      Guess(*guessed);
      VisitBlock(*visited, *guessed, holder, &busy, visitor, local);
      AnyBlock* const done = visited;
      visited = guessed;
      guessed = asked;
      asked = done;
    }
    for (const uint32_t bucket : busy) VisitBusy(bucket, holder, empty, visitor, local);
  }

  template <typename AnyBlock, typename Visitor>
  void VisitBusy(uint32_t bucket, Holder& holder, AnyBlock block, Visitor& visitor, Local& local) {
    holder.Enter(bucket);
    const AnyBlock none = block;
    for (int64_t next = BeginOf(bucket); next < BeginOf(bucket + 1); next += RowFinder::kBlock) {
      Ask(next, BeginOf(bucket + 1), block);
      Guess(block);
      block.finder.AskForRows(block.tables);
      VisitBlock(block, none, holder, nullptr, visitor, local);
    }
  }

  // Loads the ids in [first, last) into a block; needs no lock.
  template <typename AnyBlock>
  void Ask(int64_t first, int64_t last, AnyBlock& block) const {
    block.first = std::min(first, last);
    block.finder.Take(plan_.unique.data() + block.first, plan_.BucketsFrom(block.first),
                      static_cast<int>(std::min<int64_t>(last - block.first, RowFinder::kBlock)));
    block.SetTables(block.first);
    if (hinted_) {
      block.finder.AskForUnhintedLines(block.tables, plan_.hints.data() + block.first);
    } else {
      block.finder.AskForLines(block.tables);
    }
  }

  template <typename AnyBlock>
  void AskForLogs(const AnyBlock& block) const {
    const TableShard* before = nullptr;
    for (int i = 0; i < block.finder.count(); ++i) {
      const TableShard* shard = &tables_[block.place(i)]->shards[block.finder.bucket(i)];
      if (shard != before) shard->AskForLog();
      before = shard;
    }
  }

  // Finds rows from the hints of an earlier read, or from the current index. The pages of all rows are translated in a
  // short loop: a prefetch stalls a Neoverse N1 until its page is translated, together with everything that does not
  // fit the reorder buffer, and a visit alone fills that buffer.
  template <typename AnyBlock>
  void Guess(AnyBlock& block) const {
    if (hinted_) {
      block.finder.GuessFromHints(block.tables, plan_.hints.data() + block.first);
    } else {
      block.finder.GuessFromLines(block.tables);
    }
    block.finder.AskForPages();
  }

  // Visits a block. Prefetches one row of `next` before each visit: many prefetches in a burst would stall the visits
  // after them, and rows outside of the caches took 1.5 times as long. Skips the buckets that are locked and adds them
  // to `busy`; with null it visits all, and the lock is held. A separate function, so that its variables stay in
  // registers.
  template <typename AnyBlock, typename Visitor>
  [[gnu::noinline]] void VisitBlock(AnyBlock& block, const AnyBlock& next, Holder& holder, std::vector<uint32_t>* busy,
                                    Visitor& visitor, Local& local) {
    const RowFinder& finder = block.finder;
    for (int i = finder.count(); i < next.finder.count(); ++i) next.finder.AskForRow(next.tables, i);
    for (int i = 0; i < finder.count(); ++i) {
      if (i < next.finder.count()) next.finder.AskForRow(next.tables, i);
      const uint32_t bucket = finder.bucket(i);
      if (busy != nullptr && !holder.IsAt(bucket)) {
        if (!busy->empty() && busy->back() == bucket) continue;
        if (!holder.TryEnter(bucket)) {
          busy->push_back(bucket);
          continue;
        }
      }
      uint32_t row;
      std::byte* record = finder.Settle(block.tables, i, &row);
      Table& table = *tables_[block.place(i)];
      visitor.Visit(PlannedId{buckets_[bucket], bucket, table, block.place(i), block.first + i, finder.id(i),
                              finder.hash(i), row, record, record == nullptr ? finder.HomeLine(table, i) : nullptr},
                    local);
      holder.CountId();
    }
  }

  BucketLock* const locks_;
  Bucket* const buckets_;
  const std::span<Table* const> tables_;
  const Plan& plan_;
  const bool hinted_;
  const bool logged_;
};

}  // namespace monolith
