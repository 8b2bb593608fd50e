// The updates applied of every worker: the last batch of each, changed together with the rows.
//
// Owned by a Group; thread-safe. A worker pushes its updates one after another; each push names the one before it, so
// that a repeated push is recognised and a missing one is detected. Join() starts an incarnation of a worker: pushes of
// an earlier one, which may still be in flight, are rejected from then on.
//
// Lock order: the group's gate (shared), then workers' turns, ascending, then buckets. A thread that waits for a turn
// inside the gate waits for a push or a Join() that is inside as well; so a call that closes the gate (the cut) cannot
// deadlock, and once it has exclusive access no push is half done. Of the mutexes here only a turn is held while rows
// change; the others are held for a few instructions, and reading the last applied batch of a worker never waits for
// its push.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace monolith {

inline constexpr int64_t kNothingApplied = -1;

// A batch of a worker, and the input position after it.
struct BatchStamp {
  int64_t worker = 0;
  int64_t seq = 0;  // number of the batch, >= 0, increasing
  std::string position;
  int64_t event_time_ms = 0;
  bool operator==(const BatchStamp&) const = default;
};

// The position of one update in the sequence of its worker's updates.
struct Push {
  int64_t incarnation = 0;             // from Join()
  int64_t first_seq = 0;               // lowest number of the batches summed in it
  BatchStamp stamp;                    // of the highest-numbered batch
  int64_t previous = kNothingApplied;  // number of this worker's push before it
};

// Rejects a push whose previous one is not `last`, the last applied push of its worker.
[[noreturn]] void RefuseGap(const Push& push, int64_t last);

class WorkerClocks {
 public:
  struct Joined {
    int64_t incarnation;
    std::optional<BatchStamp> last;
  };
  class Turn;
  class Turns;

  WorkerClocks() = default;
  WorkerClocks(const WorkerClocks&) = delete;
  WorkerClocks& operator=(const WorkerClocks&) = delete;

  // Starts a new incarnation, whose number is unique among the incarnations of all workers here. Waits for an in-flight
  // push of the worker: `last` is final for all earlier incarnations.
  Joined Join(int64_t worker);
  // Replaces all stamps and ends all incarnations. Throws kInvalidArgument, and changes nothing, for two stamps of one
  // worker or a negative seq. REQUIRES: no push is in flight.
  void Resume(std::span<const BatchStamp> stamps);
  // Stamps of all workers with applied updates, by worker. They form a consistent state iff no push is in flight.
  std::vector<BatchStamp> Stamps() const;
  // The number of the worker's last batch, or kNothingApplied.
  int64_t LastApplied(int64_t worker) const;
  // Number of batches counted: for every worker the number of its last one, plus one. Batches that were summed into one
  // push count each, and so do those that were discarded before it.
  int64_t Steps() const { return steps_.load(); }
  // Steps() without those of the worker, consistent with the worker's last batch.
  int64_t StepsOfOthers(int64_t worker) const;
  // Throws kFailedPrecondition unless the incarnation is the worker's current one.
  void Require(int64_t worker, int64_t incarnation) const;

 private:
  struct Worker {
    Mutex turn;  // held by a push from before its check until its stamp is recorded, and by Join()

    mutable Mutex mutex;
    int64_t incarnation GUARDED_BY(mutex) = 0;   // the current one; 0 = none
    bool was_resumed GUARDED_BY(mutex) = false;  // a Resume() ended its last incarnation
    std::optional<BatchStamp> last GUARDED_BY(mutex);
  };

  // Null for a worker that neither joined nor has a stamp.
  Worker* Find(int64_t worker) const;
  Worker& FindOrAdd(int64_t worker);
  // Throws kFailedPrecondition for a worker that Find() does not find.
  Worker& FindForPush(const Push& push) const;
  static void RequireCurrent(const Worker& state, int64_t worker, int64_t incarnation) REQUIRES(state.mutex);

  std::atomic<int64_t> incarnations_{0};  // begun so far, of all workers
  std::atomic<int64_t> steps_{0};         // changed with a worker's `last`, under its mutex
  mutable SharedMutex mutex_;             // guards the map, not what it points to
  std::map<int64_t, std::unique_ptr<Worker>> workers_ GUARDED_BY(mutex_);  // none is ever removed
};

// The turn of one push: other pushes of its worker, and Join(), wait until it is destroyed. Used by one thread, inside
// the group's gate. A push whose turn ends without Record() was not applied.
class WorkerClocks::Turn {
 public:
  // Throws kInvalidArgument for invalid numbers, kFailedPrecondition for an ended incarnation, for an update of which
  // only a part was applied, and for one whose previous push is not the last one here.
  Turn(WorkerClocks& clocks, const Push& push);
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // True iff the update was applied before; then it must not be applied again.
  bool is_duplicate() const { return is_duplicate_; }
  // Must be called right after the rows changed. REQUIRES: it is no duplicate; called once.
  void Record() noexcept;

 private:
  WorkerClocks& clocks_;
  Worker& worker_;
  const MutexLock turn_;
  BatchStamp stamp_;  // copied before any row changes, so that recording cannot fail
  bool is_duplicate_ = false;
};

// The turns of the pushes of one update, of any number of workers or none. They are acquired in ascending order of the
// workers, whatever the order of the pushes, so that two such updates cannot deadlock.
class WorkerClocks::Turns {
 public:
  // Throws what a Turn throws, kInvalidArgument for two pushes of one worker, and kFailedPrecondition where some of the
  // pushes were applied before and others were not.
  Turns(WorkerClocks& clocks, std::span<const Push> pushes);

  // True iff there are pushes and all were applied before; then the update must not be applied again.
  bool are_duplicates() const { return are_duplicates_; }
  // Must be called right after the rows changed. REQUIRES: they are no duplicates; called once.
  void Record() noexcept;

 private:
  std::list<Turn> turns_;
  bool are_duplicates_ = false;
};

}  // namespace monolith
