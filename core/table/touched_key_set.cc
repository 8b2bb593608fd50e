#include "table/touched_key_set.h"

#include <bit>
#include <mutex>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/process_key.h"

namespace monolith {
namespace {

constexpr size_t kFirstCells = 16;

// Keys are chosen outside of the process, so their cells must not be predictable. Stripes use the upper bits
// (StripeOf).
uint64_t HashOf(int64_t id) { return HashInProcess(static_cast<uint64_t>(id)); }
size_t CellOf(uint64_t hash) { return hash >> 16; }

int64_t CheckedCapacity(int64_t capacity) {
  if (capacity <= 0) {
    throw Error(Code::kInvalidArgument, "touched key set: capacity must be > 0, got " + std::to_string(capacity));
  }
  return capacity;
}

int64_t CheckedConcurrencyLevel(int64_t level) {
  if (level <= 0 || level > TouchedKeySet::kMaxConcurrencyLevel) {
    throw Error(Code::kInvalidArgument, "touched key set: concurrency_level must be in 1.." +
                                            std::to_string(TouchedKeySet::kMaxConcurrencyLevel) + ", got " +
                                            std::to_string(level));
  }
  return level;
}

}  // namespace

bool TouchedKeySet::Cells::Contains(int64_t id, uint64_t hash) const {
  if (id == kFree) return has_free_key_;
  if (cells_.empty()) return false;
  const size_t mask = cells_.size() - 1;
  for (size_t at = CellOf(hash) & mask; cells_[at] != kFree; at = (at + 1) & mask) {
    if (cells_[at] == id) return true;
  }
  return false;
}

void TouchedKeySet::Cells::ReserveOne() {
  if (used_ < cells_.size() / 4 * 3) return;
  std::vector<int64_t> larger(cells_.empty() ? kFirstCells : 2 * cells_.size(), kFree);
  for (const int64_t id : cells_) {
    if (id != kFree) Place(&larger, id, HashOf(id));
  }
  cells_ = std::move(larger);
}

void TouchedKeySet::Cells::Add(int64_t id, uint64_t hash) {
  if (id == kFree) {
    has_free_key_ = true;
    return;
  }
  Place(&cells_, id, hash);
  ++used_;
}

void TouchedKeySet::Cells::Place(std::vector<int64_t>* cells, int64_t id, uint64_t hash) {
  const size_t mask = cells->size() - 1;
  size_t at = CellOf(hash) & mask;
  while ((*cells)[at] != kFree) at = (at + 1) & mask;
  (*cells)[at] = id;
}

void TouchedKeySet::Cells::AppendTo(std::vector<int64_t>* ids) const {
  if (has_free_key_) ids->push_back(kFree);
  for (const int64_t id : cells_) {
    if (id != kFree) ids->push_back(id);
  }
}

void TouchedKeySet::Lock::lock() {
  int expected = kOpen;
  if (state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire, std::memory_order_relaxed)) return;
  // A thread that has waited keeps the mark for further waiters: a spurious wake-up is harmless, a missing one is not.
  while (state_.exchange(kHeldAndAwaited, std::memory_order_acquire) != kOpen) {
    state_.wait(kHeldAndAwaited, std::memory_order_relaxed);
  }
}

void TouchedKeySet::Lock::unlock() {
  if (state_.exchange(kOpen, std::memory_order_release) == kHeldAndAwaited) state_.notify_one();
}

TouchedKeySet::TouchedKeySet(int64_t capacity, int64_t concurrency_level)
    : AtRestInForks(Kind::kMemory),
      capacity_(CheckedCapacity(capacity)),
      concurrency_level_(CheckedConcurrencyLevel(concurrency_level)),
      num_stripes_(std::bit_ceil(static_cast<size_t>(concurrency_level))),
      stripes_(std::make_unique<Stripe[]>(num_stripes_)) {}

void TouchedKeySet::LockAll() {
  for (size_t i = 0; i < num_stripes_; ++i) stripes_[i].lock.lock();
}

void TouchedKeySet::UnlockAll() {
  for (size_t i = 0; i < num_stripes_; ++i) stripes_[i].lock.unlock();
}

void TouchedKeySet::SwapCells(std::vector<Cells>* cells) {
  for (size_t i = 0; i < num_stripes_; ++i) std::swap(stripes_[i].cells, (*cells)[i]);
}

bool TouchedKeySet::InsertIfRoom(int64_t id, uint64_t hash) {
  Stripe& stripe = stripes_[StripeOf(hash)];
  const std::lock_guard guard(stripe.lock);
  int64_t size = Size();
  if (size > capacity_) return false;
  if (stripe.cells.Contains(id, hash)) return true;
  stripe.cells.ReserveOne();
  // Counted before it is added, and only while there is room: inserts into other stripes count concurrently.
  while (!size_.compare_exchange_weak(size, size + 1, std::memory_order_relaxed)) {
    if (size > capacity_) return false;
  }
  stripe.cells.Add(id, hash);
  return true;
}

int64_t TouchedKeySet::ClearAndInsert(int64_t id, uint64_t hash) {
  // All memory is allocated before and freed after the locks are held: no operation fails half-way, and others wait
  // less.
  std::vector<Cells> cells(num_stripes_);
  cells[StripeOf(hash)].ReserveOne();
  cells[StripeOf(hash)].Add(id, hash);
  const AllLocks locks(this);
  const int64_t size = Size();
  if (size <= capacity_) return 0;
  SwapCells(&cells);
  size_.store(1, std::memory_order_relaxed);
  return size;
}

int64_t TouchedKeySet::Insert(int64_t id) {
  const uint64_t hash = HashOf(id);
  while (!InsertIfRoom(id, hash)) {
    // 0: another thread emptied the set in between.
    if (const int64_t dropped = ClearAndInsert(id, hash); dropped > 0) return dropped;
  }
  return 0;
}

int64_t TouchedKeySet::Insert(std::span<const int64_t> ids) {
  int64_t dropped = 0;
  for (const int64_t id : ids) dropped += Insert(id);
  return dropped;
}

std::vector<int64_t> TouchedKeySet::Steal() {
  std::vector<Cells> cells(num_stripes_);
  int64_t size;
  {
    const AllLocks locks(this);
    SwapCells(&cells);
    size = size_.exchange(0, std::memory_order_relaxed);
  }
  std::vector<int64_t> ids;
  ids.reserve(static_cast<size_t>(size));
  for (const Cells& stripe : cells) stripe.AppendTo(&ids);
  return ids;
}

size_t TouchedKeySet::AllocatedBytes() {
  const AllLocks locks(this);
  size_t bytes = 0;
  for (size_t i = 0; i < num_stripes_; ++i) bytes += stripes_[i].cells.AllocatedBytes();
  return bytes;
}

}  // namespace monolith
