// The ids touched since they were last stolen: a set that only grows, until Steal() takes all of it or an insert finds
// it above its capacity and clears it. Its readers receive the number of ids dropped: a reported gap is better than a
// slow step.
//
// Owned by its creator; every method is thread-safe.
//
// Invariants
//  1. Operations are linearizable: single inserts, Size() and Steal() can be put in one order that explains all
//     results. So the set never holds more than capacity + 1 ids, and each id that was new to an insert is stolen once,
//     dropped once, or still in the set.
//  2. size_ equals the number of keys in all stripes whenever all stripe locks are held: it only changes under a
//     stripe's lock, and only for a key that this lock guards.
//  3. A thread that holds all stripe locks took them in ascending order, holding none before.
//
// Memory: the locks alone (64 bytes each) until the first insert; then 128 bytes for the first key of a stripe, 11 to
// 22 bytes per key for many. Every clear and steal frees the keys' memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/forks.h"

namespace monolith {

class TouchedKeySet final : AtRestInForks {
 public:
  static constexpr int64_t kMaxConcurrencyLevel = 1 << 16;

  // `concurrency_level` is the number of locks, rounded up to a power of two: how many threads may insert concurrently.
  // Throws Error(kInvalidArgument) unless capacity > 0 and 0 < concurrency_level <= kMaxConcurrencyLevel.
  TouchedKeySet(int64_t capacity, int64_t concurrency_level);

  TouchedKeySet(const TouchedKeySet&) = delete;
  TouchedKeySet& operator=(const TouchedKeySet&) = delete;

  // Returns the number of ids dropped: the previous Size(), iff that was above the capacity, which empties the set
  // before `id` is inserted. An id already in the set changes nothing else.
  int64_t Insert(int64_t id);
  // Inserts in order; returns the sum of what the single inserts return.
  int64_t Insert(std::span<const int64_t> ids);

  // Takes all ids, in no particular order. Inserts wait briefly, not for the copying.
  std::vector<int64_t> Steal();

  int64_t Size() const { return size_.load(std::memory_order_relaxed); }
  int64_t capacity() const { return capacity_; }
  int64_t concurrency_level() const { return concurrency_level_; }
  // Bytes of the key cells, locks not counted; 0 before the first insert.
  size_t AllocatedBytes();

 private:
  // The keys of one stripe: open addressing, linear probing, at most 3/4 full, no deletion.
  class Cells {
   public:
    // The cell value that stands for "free"; the key with this value is kept in a separate flag.
    static constexpr int64_t kFree = INT64_MIN;

    bool Contains(int64_t id, uint64_t hash) const;
    // Guarantees that the next Add() does not fail.
    void ReserveOne();
    // REQUIRES: !Contains(id, hash); ReserveOne() since the last Add().
    void Add(int64_t id, uint64_t hash);
    void AppendTo(std::vector<int64_t>* ids) const;
    size_t AllocatedBytes() const { return cells_.capacity() * sizeof(int64_t); }

   private:
    static void Place(std::vector<int64_t>* cells, int64_t id, uint64_t hash);

    std::vector<int64_t> cells_;  // a power of two in number, or none
    size_t used_ = 0;             // of cells_
    bool has_free_key_ = false;   // kFree itself is in the set
  };

  // A lock that sleeps in the kernel when it must wait. Not std::mutex: thread sanitizers support at most 64 held ones.
  class Lock {
   public:
    void lock();
    void unlock();

   private:
    static constexpr int kOpen = 0;
    static constexpr int kHeld = 1;
    static constexpr int kHeldAndAwaited = 2;
    std::atomic<int> state_{kOpen};
  };

  struct alignas(64) Stripe {
    Lock lock;
    Cells cells;  // protected by lock
  };

  // Holds every stripe's lock during its lifetime.
  class AllLocks {
   public:
    explicit AllLocks(TouchedKeySet* set) : set_(set) { set_->LockAll(); }
    ~AllLocks() { set_->UnlockAll(); }
    AllLocks(const AllLocks&) = delete;
    AllLocks& operator=(const AllLocks&) = delete;

   private:
    TouchedKeySet* const set_;
  };

  void LockAll();
  void UnlockAll();
  void Rest() override { LockAll(); }
  void GoOnInParent() override { UnlockAll(); }
  void GoOnInChild() override { UnlockAll(); }

  // Cells are found by lower bits of the hash.
  size_t StripeOf(uint64_t hash) const { return (hash >> 48) & (num_stripes_ - 1); }
  // Inserts under the stripe's lock; returns false and does nothing iff the set is above its capacity.
  bool InsertIfRoom(int64_t id, uint64_t hash);
  // Empties the set, inserts `id` and returns the number of ids dropped; returns 0 and does nothing iff the set turned
  // out not to be above its capacity.
  int64_t ClearAndInsert(int64_t id, uint64_t hash);
  // Exchanges the keys of all stripes with `cells`, one for each stripe. REQUIRES: all stripe locks are held.
  void SwapCells(std::vector<Cells>* cells);

  const int64_t capacity_;
  const int64_t concurrency_level_;
  const size_t num_stripes_;
  const std::unique_ptr<Stripe[]> stripes_;
  alignas(64) std::atomic<int64_t> size_{0};
};

}  // namespace monolith
