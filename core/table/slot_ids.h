// Lays the ids of many slots end to end, each with its slot's number in its upper bits.
#pragma once

#include <cstdint>
#include <span>

namespace monolith {

// What becomes of an id of one slot: out = (id ^ taken) | given, if (id ^ taken) has none of the forbidden bits.
struct SlotBits {
  uint64_t taken = 0;
  uint64_t given = 0;
  uint64_t forbidden = 0;
};

// Writes the ids of all slots to `out`, which has room for them. Returns the first slot with an id that has a forbidden
// bit, or -1. REQUIRES: slots and bits have the same size.
int PackSlotIds(std::span<const std::span<const int64_t>> slots, std::span<const SlotBits> bits, int64_t* out);

}  // namespace monolith
