// Slots of keys and expiry by slot, from arrays in device memory.
#pragma once

#include <cstdint>

#include "device/kernels/thread.h"
#include "table/eviction_rule.h"

namespace monolith::device {

// The slots of a table's keys.
struct KeySlots {
  const int32_t* wide_slots;  // TableSpec::wide_slots
  uint32_t num_wide_slots;

  uint32_t Of(int64_t key) const { return SlotOfKey(key, wide_slots, num_wide_slots); }
};

// TableSpec::HasExpired.
struct Expiry {
  int64_t now;
  uint32_t days;                 // of every slot
  const uint32_t* days_by_slot;  // [kNumSlots + 1], the last for unknown slots; null: `days` for all
  KeySlots slots;

  bool HasExpired(const RowHeader& row) const {
    return monolith::HasExpired(row.time, now, days_by_slot == nullptr ? days : days_by_slot[slots.Of(row.key)]);
  }
};

// Some of the buckets, a bit for each.
struct BucketSet {
  const uint32_t* words;  // [kNumBuckets / 32]; null: no bucket

  bool Has(uint32_t bucket) const { return words != nullptr && (words[bucket / 32] >> bucket % 32 & 1u) != 0; }
};

}  // namespace monolith::device
