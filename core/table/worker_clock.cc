#include "table/worker_clock.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"

namespace monolith {
namespace {

[[noreturn]] void Refuse(Code code, int64_t worker, const std::string& message) {
  throw Error(code, "worker " + std::to_string(worker) + ": " + message);
}

void RequirePossible(const Push& push) {
  if (push.first_seq >= 0 && push.first_seq <= push.stamp.seq) return;
  Refuse(Code::kInvalidArgument, push.stamp.worker,
         "batch numbers must be >= 0 and first_seq not above seq, got first_seq " + std::to_string(push.first_seq) +
             " and seq " + std::to_string(push.stamp.seq));
}

[[noreturn]] void RefusePartOfAnUpdate(const Push& push) {
  Refuse(Code::kFailedPrecondition, push.stamp.worker,
         "batch " + std::to_string(push.first_seq) + " was applied before, batch " + std::to_string(push.stamp.seq) +
             " was not; repeat complete updates");
}

[[noreturn]] void RefusePartOfTheWorkers(const Push& applied, const Push& missing) {
  Refuse(Code::kFailedPrecondition, applied.stamp.worker,
         "batch " + std::to_string(applied.stamp.seq) + " was applied before, but batch " +
             std::to_string(missing.stamp.seq) + " of worker " + std::to_string(missing.stamp.worker) +
             ", which is part of the same update, was not; repeat complete updates");
}

// Number of batches of a worker whose last one is `seq`. Clients may send any number: the sum wraps, it does not
// overflow.
uint64_t StepsBehind(int64_t seq) { return static_cast<uint64_t>(seq) + 1; }

// Rejects an incarnation that is not the `present` one (0: none) of the worker.
[[noreturn]] void RefuseIncarnation(int64_t worker, int64_t incarnation, int64_t present, bool was_resumed) {
  const std::string number = std::to_string(incarnation);
  std::string message;
  if (present == 0 && !was_resumed) {
    message = "incarnation " + number + " is unknown, the worker has not joined; join first";
  } else if (present == 0) {
    message = "incarnation " + number + " is over: the store was resumed from a saved state; join again";
  } else if (incarnation < present) {
    message = "this incarnation (" + number + ") is over, a later one (" + std::to_string(present) +
              ") has joined; join again";
  } else {
    message = "incarnation " + number + " is unknown, the present one is " + std::to_string(present) + "; join again";
  }
  Refuse(Code::kFailedPrecondition, worker, message);
}

}  // namespace

void RefuseGap(const Push& push, int64_t last) {
  const std::string named = push.previous == kNothingApplied
                                ? "no push before it"
                                : "batch " + std::to_string(push.previous) + " as the push before it";
  const std::string there = last == kNothingApplied ? "nothing was applied yet; push it first"
                                                    : "the last one applied here is " + std::to_string(last) +
                                                          "; push what follows " + std::to_string(last) + " first";
  Refuse(Code::kFailedPrecondition, push.stamp.worker,
         "batch " + std::to_string(push.stamp.seq) + " names " + named + ", but " + there);
}

WorkerClocks::Worker* WorkerClocks::Find(int64_t worker) const {
  ReaderLock lock(mutex_);
  const auto found = workers_.find(worker);
  return found == workers_.end() ? nullptr : found->second.get();
}

WorkerClocks::Worker& WorkerClocks::FindOrAdd(int64_t worker) {
  if (Worker* found = Find(worker)) return *found;
  WriterLock lock(mutex_);
  std::unique_ptr<Worker>& state = workers_[worker];
  if (state == nullptr) state = std::make_unique<Worker>();
  return *state;
}

WorkerClocks::Worker& WorkerClocks::FindForPush(const Push& push) const {
  Worker* found = Find(push.stamp.worker);
  if (found == nullptr) RefuseIncarnation(push.stamp.worker, push.incarnation, 0, false);
  return *found;
}

WorkerClocks::Joined WorkerClocks::Join(int64_t worker) {
  Worker& state = FindOrAdd(worker);
  MutexLock turn(state.turn);
  MutexLock lock(state.mutex);
  state.incarnation = ++incarnations_;
  return {state.incarnation, state.last};
}

void WorkerClocks::Resume(std::span<const BatchStamp> stamps) {
  std::map<int64_t, BatchStamp> by_worker;
  for (const BatchStamp& stamp : stamps) {
    if (stamp.seq < 0) {
      Refuse(Code::kInvalidArgument, stamp.worker,
             "the number of a batch must be >= 0, got " + std::to_string(stamp.seq) + "; leave the stamp out");
    }
    if (!by_worker.try_emplace(stamp.worker, stamp).second) {
      Refuse(Code::kInvalidArgument, stamp.worker, "two stamps were given; give the last one of each worker");
    }
  }
  for (const auto& [worker, stamp] : by_worker) FindOrAdd(worker);
  WriterLock lock(mutex_);
  uint64_t steps = 0;
  for (const auto& [worker, state] : workers_) {
    const auto given = by_worker.find(worker);
    MutexLock state_lock(state->mutex);
    state->was_resumed = state->was_resumed || state->incarnation != 0;
    state->incarnation = 0;
    state->last.reset();
    if (given == by_worker.end()) continue;
    steps += StepsBehind(given->second.seq);
    state->last = std::move(given->second);
  }
  steps_.store(static_cast<int64_t>(steps));
}

std::vector<BatchStamp> WorkerClocks::Stamps() const {
  ReaderLock lock(mutex_);
  std::vector<BatchStamp> stamps;
  for (const auto& [worker, state] : workers_) {
    MutexLock state_lock(state->mutex);
    if (state->last.has_value()) stamps.push_back(*state->last);
  }
  return stamps;
}

int64_t WorkerClocks::LastApplied(int64_t worker) const {
  const Worker* state = Find(worker);
  if (state == nullptr) return kNothingApplied;
  MutexLock lock(state->mutex);
  return state->last.has_value() ? state->last->seq : kNothingApplied;
}

int64_t WorkerClocks::StepsOfOthers(int64_t worker) const {
  const Worker* state = Find(worker);
  if (state == nullptr) return Steps();
  MutexLock lock(state->mutex);
  const int64_t last = state->last.has_value() ? state->last->seq : kNothingApplied;
  return static_cast<int64_t>(static_cast<uint64_t>(Steps()) - StepsBehind(last));
}

void WorkerClocks::Require(int64_t worker, int64_t incarnation) const {
  const Worker* state = Find(worker);
  if (state == nullptr) RefuseIncarnation(worker, incarnation, 0, false);
  MutexLock lock(state->mutex);
  RequireCurrent(*state, worker, incarnation);
}

void WorkerClocks::RequireCurrent(const Worker& state, int64_t worker, int64_t incarnation) {
  if (incarnation == state.incarnation && incarnation != 0) return;
  RefuseIncarnation(worker, incarnation, state.incarnation, state.was_resumed);
}

WorkerClocks::Turn::Turn(WorkerClocks& clocks, const Push& push)
    : clocks_(clocks), worker_(clocks.FindForPush(push)), turn_(worker_.turn) {
  RequirePossible(push);
  MutexLock lock(worker_.mutex);
  RequireCurrent(worker_, push.stamp.worker, push.incarnation);
  const int64_t last = worker_.last.has_value() ? worker_.last->seq : kNothingApplied;
  lock.Unlock();
  is_duplicate_ = push.stamp.seq <= last;
  if (is_duplicate_) return;
  if (push.first_seq <= last) RefusePartOfAnUpdate(push);
  if (push.previous != last) RefuseGap(push, last);
  stamp_ = push.stamp;
}

void WorkerClocks::Turn::Record() noexcept {
  MutexLock lock(worker_.mutex);
  const int64_t before = worker_.last.has_value() ? worker_.last->seq : kNothingApplied;
  clocks_.steps_.fetch_add(static_cast<int64_t>(StepsBehind(stamp_.seq) - StepsBehind(before)));
  worker_.last = std::move(stamp_);
}

WorkerClocks::Turns::Turns(WorkerClocks& clocks, std::span<const Push> pushes) {
  std::vector<const Push*> ascending;
  for (const Push& push : pushes) ascending.push_back(&push);
  std::sort(ascending.begin(), ascending.end(),
            [](const Push* a, const Push* b) { return a->stamp.worker < b->stamp.worker; });
  const Push *applied = nullptr, *missing = nullptr;
  for (size_t i = 0; i < ascending.size(); ++i) {
    const Push& push = *ascending[i];
    if (i > 0 && ascending[i - 1]->stamp.worker == push.stamp.worker)
      Refuse(Code::kInvalidArgument, push.stamp.worker,
             "two pushes were given for one update; give one of each worker");
    (turns_.emplace_back(clocks, push).is_duplicate() ? applied : missing) = &push;
  }
  if (applied != nullptr && missing != nullptr) RefusePartOfTheWorkers(*applied, *missing);
  are_duplicates_ = applied != nullptr;
}

void WorkerClocks::Turns::Record() noexcept {
  for (Turn& turn : turns_) turn.Record();
}

}  // namespace monolith
