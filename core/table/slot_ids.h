// Converts the ids of many slots to the keys of their rows, end to end, and computes the bucket of each.
#pragma once

#include <cstdint>
#include <span>

namespace monolith {

// How an id of one slot becomes a key. If `wide` is 0: key = (id ^ taken) | given, if (id ^ taken) has none of the
// forbidden bits. Otherwise any id is accepted, and its key is that of table/slot_keys.h, with the slot's number in
// `given` and the wide keys' bit and index in `wide`.
struct SlotBits {
  uint64_t taken = 0;
  uint64_t given = 0;
  uint64_t forbidden = 0;
  uint64_t wide = 0;
};

// Writes the keys of all slots and their buckets, for which there is room. Returns the first slot with an id that has a
// forbidden bit, or -1. REQUIRES: slots and bits have the same size.
int PackSlotIds(std::span<const std::span<const int64_t>> slots, std::span<const SlotBits> bits, int64_t* keys,
                uint16_t* buckets);

// As above for the ids of one slot; returns false if an id has a forbidden bit. `keys` may alias the ids.
bool PackIds(std::span<const int64_t> ids, const SlotBits& bits, int64_t* keys, uint16_t* buckets);

}  // namespace monolith
