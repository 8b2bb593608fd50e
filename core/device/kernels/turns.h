// Launches whose threads take several items each, so that they change counters which all of them share less often.
#pragma once

#include <cstdint>

#include "device/kernels/thread.h"

namespace monolith::device {

inline constexpr uint32_t kTurnsOfLists = 8;     // a thread adds what it found by one change of the list's counter
inline constexpr uint32_t kTurnsOfCounts = 128;  // a thread adds up equal items before it counts them

// In each turn, threads of a block take neighbouring items.
template <uint32_t kTurns>
inline uint64_t ItemOfTurn(uint32_t turn) {
  return (uint64_t{blockIdx.x} * kTurns + turn) * kBlock + threadIdx.x;
}
template <uint32_t kTurns>
inline constexpr uint64_t ThreadsFor(uint64_t num_items) {
  constexpr uint64_t kItemsOfBlock = uint64_t{kTurns} * kBlock;
  return (num_items + kItemsOfBlock - 1) / kItemsOfBlock * kBlock;
}

// The turns of a thread in which it found something.
class Turns {
 public:
  void Add(uint32_t turn) {
    bits_ |= 1u << turn;
    ++count_;
  }
  bool Has(uint32_t turn) const { return (bits_ >> turn & 1u) != 0; }
  uint32_t count() const { return count_; }

 private:
  uint32_t bits_ = 0;
  uint32_t count_ = 0;
};
static_assert(kTurnsOfLists <= 32);

// A list to which the threads of a launch add, in no particular order.
struct OpenList {
  uint32_t most;   // places
  uint32_t* used;  // 0 at first; more than `most` if the list was too short for all items
  uint32_t* items;

  void AddFound(const Turns& found) const {
    if (found.count() == 0) return;
    uint64_t place = atomicAdd(used, found.count());
    for (uint32_t turn = 0; turn < kTurnsOfLists; ++turn) {
      if (!found.Has(turn)) continue;
      if (place < most) items[place] = static_cast<uint32_t>(ItemOfTurn<kTurnsOfLists>(turn));
      ++place;
    }
  }
};

// Counts of a thread that it has not added to the common counters yet: where many items are equal, a few additions
// take the place of many to the same word.
class Tally {
 public:
  explicit Tally(uint32_t* counters) : counters_(counters) {}

  void Count(uint32_t item) {
    MONOLITH_UNROLL
    for (uint32_t i = 0; i < kKept; ++i) {
      if (item % kKept != i) continue;
      if (counts_[i] != 0 && items_[i] != item) Flush(i);
      items_[i] = item;
      ++counts_[i];
    }
  }
  void Flush() {
    MONOLITH_UNROLL
    for (uint32_t i = 0; i < kKept; ++i) {
      if (counts_[i] != 0) Flush(i);
    }
  }

 private:
  static constexpr uint32_t kKept = 4;

  void Flush(uint32_t i) {
    atomicAdd(counters_ + items_[i], counts_[i]);
    counts_[i] = 0;
  }

  uint32_t* counters_;
  uint32_t items_[kKept] = {};
  uint32_t counts_[kKept] = {};
};

}  // namespace monolith::device
