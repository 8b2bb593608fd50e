// The plan of a batch (table/plan.h) on a device: the same ids in the same order, bit for bit.
//
// The caller sorts and adds up prefixes in between:
//
//   InsertPositions, FindFirsts      which positions are the first of their id
//   ranks = inclusive sums of is_first; the last one is the number of distinct ids
//   CompactFirsts                    these positions end to end, with their cells
//   cells, places = stable sort of those cells and the permutation that sorts them: the order of the plan
//   OrderDistinct, NumberPositions, FindSplits
//   starts = exclusive sums of counts; order = the permutation that sorts `inverse` stably
//   ListHot                          ids that sums.h adds in another way
#pragma once

#include <cstdint>

#include "base/hash.h"
#include "device/kernels/process_hash.h"
#include "device/kernels/thread.h"

namespace monolith::device {

inline constexpr uint32_t kNoPosition = 0xffffffffu;

// The ids of a batch; table t owns the positions [table_splits[t], table_splits[t + 1]).
struct PlanInput {
  uint32_t num_ids;
  uint32_t num_tables;
  const int64_t* keys;
  const uint16_t* buckets;  // null if the keys determine them
  const int64_t* table_splits;

  uint32_t BucketAt(uint32_t position) const {
    return buckets == nullptr ? BucketOf(keys[position]) : buckets[position];
  }
  uint32_t TableAt(uint32_t position) const {
    uint32_t table = 0, end = num_tables;  // the last table that begins at or before the position
    while (end - table > 1) {
      const uint32_t middle = (table + end) / 2;
      if (table_splits[middle] <= position) {
        table = middle;
      } else {
        end = middle;
      }
    }
    return table;
  }
  // bucket * num_tables + table
  uint32_t CellAt(uint32_t position) const { return BucketAt(position) * num_tables + TableAt(position); }
};

// Bits of the number of slots for a batch: at most half of them are used.
inline constexpr uint32_t SlotBitsFor(uint32_t num_ids) {
  uint32_t bits = 6;
  while (bits < 32 && (uint64_t{1} << bits) < 2 * uint64_t{num_ids}) ++bits;
  return bits;
}

// Every position finds the slot of its id. A slot ends with the first position of its id, whichever thread came first.
struct InsertPositions {
  PlanInput input;
  uint64_t process_key;
  uint32_t slot_bits;
  uint32_t* slots;    // [1 << slot_bits], filled with kNoPosition
  uint32_t* slot_of;  // [num_ids]

  void operator()() const {
    const uint64_t thread = ThreadNumber();
    if (thread >= input.num_ids) return;
    const auto position = static_cast<uint32_t>(thread);
    const int64_t key = input.keys[position];
    const uint32_t cell = input.CellAt(position);
    const uint64_t mask = (uint64_t{1} << slot_bits) - 1;
    // The cell keeps equal ids of several tables apart, the multiplication different tables of one bucket.
    const uint64_t hash = HashInBucket(input.BucketAt(position), key) + kGoldenGamma * cell;
    uint64_t slot = HashWithKey(hash, process_key) >> (64 - slot_bits);
    for (;; slot = (slot + 1) & mask) {
      uint32_t seen = Peek(slots + slot);
      if (seen == kNoPosition) seen = atomicCAS(slots + slot, kNoPosition, position);
      if (seen == kNoPosition) break;
      if (input.keys[seen] == key && input.CellAt(seen) == cell) {
        if (position < seen) atomicMin(slots + slot, position);
        break;
      }
    }
    slot_of[position] = static_cast<uint32_t>(slot);
  }
};

struct FindFirsts {
  uint32_t num_ids;
  const uint32_t* slots;  // null: each occurrence counts as a separate id
  uint32_t* firsts;       // [num_ids], in: the slot of each position; out: the first position of its id
  int32_t* is_first;      // [num_ids], 1 or 0

  void operator()() const {
    const uint64_t thread = ThreadNumber();
    if (thread >= num_ids) return;
    const auto position = static_cast<uint32_t>(thread);
    const uint32_t first = slots == nullptr ? position : slots[firsts[position]];
    firsts[position] = first;
    is_first[position] = first == position;
  }
};

struct CompactFirsts {
  PlanInput input;
  const uint32_t* firsts;
  const int32_t* ranks;  // [num_ids], inclusive sums of is_first
  uint32_t* positions;   // [distinct ids], in input order
  int32_t* cells;        // of those

  void operator()() const {
    const uint64_t thread = ThreadNumber();
    if (thread >= input.num_ids) return;
    const auto position = static_cast<uint32_t>(thread);
    if (firsts[position] != position) return;
    const int32_t rank = ranks[position] - 1;
    positions[rank] = position;
    cells[rank] = static_cast<int32_t>(input.CellAt(position));
  }
};

struct OrderDistinct {
  PlanInput input;
  uint32_t num_unique;
  const int64_t* places;  // [num_unique]: indices of `positions`, in plan order
  const uint32_t* positions;
  int64_t* unique;
  uint16_t* buckets;   // [num_unique]; null: not wanted
  uint32_t* place_of;  // [num_ids], written for first positions only

  void operator()() const {
    const uint64_t place = ThreadNumber();
    if (place >= num_unique) return;
    const uint32_t position = positions[places[place]];
    unique[place] = input.keys[position];
    if (buckets != nullptr) buckets[place] = static_cast<uint16_t>(input.BucketAt(position));
    place_of[position] = static_cast<uint32_t>(place);
  }
};

struct NumberPositions {
  uint32_t num_ids;
  const uint32_t* firsts;
  const uint32_t* place_of;
  int32_t* inverse;  // [num_ids]
  int32_t* counts;   // [distinct ids], filled with 0

  void operator()() const {
    const uint64_t position = ThreadNumber();
    if (position >= num_ids) return;
    const uint32_t place = place_of[firsts[position]];
    inverse[position] = static_cast<int32_t>(place);
    atomicAdd(counts + place, 1);
  }
};

// splits[c] .. splits[c + 1] are the distinct ids of cell c.
struct FindSplits {
  uint32_t num_unique;
  uint32_t num_cells;
  const int32_t* cells;  // [num_unique], in plan order
  int64_t* splits;       // [num_cells + 1]

  void operator()() const {
    const uint64_t cell = ThreadNumber();
    if (cell > num_cells) return;
    uint32_t begin = 0, end = num_unique;
    while (begin < end) {
      const uint32_t middle = begin + (end - begin) / 2;
      if (static_cast<uint64_t>(cells[middle]) < cell) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    splits[cell] = begin;
  }
};

// Ids that occur so often that a block adds their gradients; their order does not matter.
struct ListHot {
  uint32_t num_unique;
  uint32_t least;  // occurrences
  const int32_t* counts;
  uint32_t* hot;      // room for num_ids / least
  uint32_t* num_hot;  // 0 at first

  void operator()() const {
    const uint64_t place = ThreadNumber();
    if (place >= num_unique || static_cast<uint32_t>(counts[place]) < least) return;
    hot[atomicAdd(num_hot, 1u)] = static_cast<uint32_t>(place);
  }
};

}  // namespace monolith::device
