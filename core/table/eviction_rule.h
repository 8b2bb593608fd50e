// Which rows a table evicts: those that expired, and above its cap those of the lowest scores. For processors and
// GPUs (device/kernels/eviction.h).
#pragma once

#include <cstdint>

#include "table/row.h"
#include "table/slot_keys.h"

namespace monolith {

inline constexpr int kNumSlots = 1 << 15;
inline constexpr int64_t kSecondsPerDay = 86400;

inline uint32_t SlotOf(int64_t id) { return static_cast<uint32_t>(static_cast<uint64_t>(id) >> 48) & (kNumSlots - 1); }

// Returns the slot of a key in a table with these wide slots (TableSpec::wide_slots); kNumSlots for a wide key without
// a wide slot.
inline uint32_t SlotOfKey(int64_t key, const int32_t* wide_slots, uint32_t num_wide_slots) {
  if (num_wide_slots == 0 || !IsWideKey(key)) return SlotOf(key);
  const uint32_t index = WideIndexOf(key);
  return index < num_wide_slots ? static_cast<uint32_t>(wide_slots[index]) : kNumSlots;
}

inline bool HasExpired(int64_t time, int64_t now, uint32_t days) {
  return now - time >= static_cast<int64_t>(days) * kSecondsPerDay;
}

// Rows with low scores are evicted first: the least recently used ones, or the least frequently used ones.
inline uint32_t RecencyScoreOf(const RowHeader& row) { return row.time; }
inline uint32_t FrequencyScoreOf(const RowHeader& row) { return FrequencyOf(row) << 25 | row.time >> 7; }

}  // namespace monolith
