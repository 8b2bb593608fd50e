// What was applied of every worker: the last batch of each, changed together with the rows.
//
// Owned by a Group; every call is safe from any thread. A worker pushes its updates one after another; each push names
// the one before it, so that a repeated one is recognised and a missing one is noticed. Join() begins an incarnation of
// a worker: pushes of an earlier one, which may still be on their way, are refused from then on.
//
// Order of locks: the group's gate (shared), then workers' turns, ascending, then buckets. Whoever waits for a turn
// inside the gate waits for a push or a Join() that is inside as well; so a call that closes the gate (the cut) does
// not wait in a circle, and once it is alone no push is half done. Of the mutexes here only a turn is held while rows
// change; the others are held for a few instructions, and asking how far a worker came never waits for its push.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

namespace monolith {

inline constexpr int64_t kNothingApplied = -1;

// A batch of a worker, and where the input stood behind it.
struct BatchStamp {
  int64_t worker = 0;
  int64_t seq = 0;  // number of the batch, >= 0, growing
  std::string position;
  int64_t event_time_ms = 0;
  bool operator==(const BatchStamp&) const = default;
};

// The place of one update among those of its worker.
struct Push {
  int64_t incarnation = 0;             // from Join()
  int64_t first_seq = 0;               // lowest number of the batches that are summed in it
  BatchStamp stamp;                    // of the highest one
  int64_t previous = kNothingApplied;  // number of this worker's push before it
};

// Refuses a push whose previous one is not `last`, the last one of its worker that was applied.
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

  // Begins a new incarnation, whose number no other one had here, of any worker. Waits for a push of the worker that
  // is under way: `last` is final for all earlier incarnations.
  Joined Join(int64_t worker);
  // Replaces all stamps and ends all incarnations. Throws kInvalidArgument, and changes nothing, for two stamps of one
  // worker or a negative seq. REQUIRES: no push is under way.
  void Resume(std::span<const BatchStamp> stamps);
  // Of all workers of which something was applied, by worker. Exact for all of them at once iff no push is under way.
  std::vector<BatchStamp> Stamps() const;
  // The number of the worker's last batch, or kNothingApplied.
  int64_t LastApplied(int64_t worker) const;
  // How many batches were counted: of every worker the number of its last one, plus one. Batches that were summed into
  // one push count each, and so do those that were discarded before it.
  int64_t Steps() const { return steps_.load(); }
  // Steps() without those of the worker, whose last batch is that of the same moment.
  int64_t StepsOfOthers(int64_t worker) const;
  // Throws kFailedPrecondition unless the incarnation is the worker's present one.
  void Require(int64_t worker, int64_t incarnation) const;

 private:
  struct Worker {
    std::mutex turn;  // held by a push from before its check until its stamp is recorded, and by Join()

    mutable std::mutex mutex;  // guards the members below
    int64_t incarnation = 0;   // the present one; 0 = none
    bool was_resumed = false;  // a resume ended its last incarnation
    std::optional<BatchStamp> last;
  };

  // Null for a worker that neither joined nor has a stamp.
  Worker* Find(int64_t worker) const;
  Worker& FindOrAdd(int64_t worker);
  // Throws kFailedPrecondition for a worker that Find() does not know.
  Worker& FindForPush(const Push& push) const;
  // REQUIRES: state.mutex is held.
  static void RequireCurrent(const Worker& state, int64_t worker, int64_t incarnation);

  std::atomic<int64_t> incarnations_{0};                // begun so far, of all workers
  std::atomic<int64_t> steps_{0};                       // changed with a worker's `last`, under its mutex
  mutable std::shared_mutex mutex_;                     // guards the map, not what it points to
  std::map<int64_t, std::unique_ptr<Worker>> workers_;  // none is ever removed
};

// The turn of one push: others of its worker, and Join(), wait until it is destroyed. Used by one thread, inside the
// group's gate. What ends without Record() was not applied.
class WorkerClocks::Turn {
 public:
  // Throws kInvalidArgument for numbers that cannot be, kFailedPrecondition for an incarnation that is over, for an
  // update of which only a part was applied, and for one whose previous push is not the last one here.
  Turn(WorkerClocks& clocks, const Push& push);
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // True iff the update was applied before; then it must not be applied again.
  bool is_duplicate() const { return is_duplicate_; }
  // Comes right after the rows changed. REQUIRES: it is no duplicate; called once.
  void Record() noexcept;

 private:
  WorkerClocks& clocks_;
  Worker& worker_;
  const std::unique_lock<std::mutex> turn_;
  BatchStamp stamp_;  // copied before any row changes, so that recording cannot fail
  bool is_duplicate_ = false;
};

// The turns of the pushes of one update, of any number of workers or none: that of each is taken in ascending order of
// the workers, whatever the order of the pushes, so that two such updates never wait for each other in a circle.
class WorkerClocks::Turns {
 public:
  // Throws what a Turn throws, kInvalidArgument for two pushes of one worker, and kFailedPrecondition where some of the
  // pushes were applied before and others were not.
  Turns(WorkerClocks& clocks, std::span<const Push> pushes);

  // True iff there are pushes and all were applied before; then the update must not be applied again.
  bool are_duplicates() const { return are_duplicates_; }
  // Comes right after the rows changed. REQUIRES: they are no duplicates; called once.
  void Record() noexcept;

 private:
  std::list<Turn> turns_;
  bool are_duplicates_ = false;
};

}  // namespace monolith
