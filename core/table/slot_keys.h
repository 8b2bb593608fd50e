// Maps a slot and an id, any int64, to the key of its row, and back.
//
// Slots share tables, so a key must identify its slot, and 64 bits of id leave no room for it. For an id below 2^48, a
// narrow one, there is room: its key carries the slot's number above the id. For any other id, a wide one, the key
// holds the hash instead, which is equivalent to the id (it is invertible), without the ten bits that the bucket of the
// row determines anyway:
//
//   narrow   63  62......48 47.....................0    bucket = HashId(key) >> 54
//            0   number     id
//   wide     63  62......54 53.....................0    bucket = HashId(id) >> 54
//            1   index      HashId(id), low 54 bits
//
// So (bucket, key) stands for exactly one (slot, id), while a wide key alone determines neither id nor bucket. Nine
// bits number the slots of a table that accept wide ids, by rank among the numbers of these slots; the table lists them
// (TableSpec::wide_slots). In a table without such slots all keys are ids, whatever their bits.
#pragma once

#include <cstdint>

#include "base/hash.h"

namespace monolith {

inline constexpr int kNarrowBits = 48;
inline constexpr int kMaxWideSlots = 1 << 9;
inline constexpr uint64_t kWideKey = uint64_t{1} << 63;

struct SlotKey {
  int64_t key;
  uint32_t bucket;
};

inline constexpr bool IsNarrowId(int64_t id) { return static_cast<uint64_t>(id) >> kNarrowBits == 0; }

// For a key in a table that has wide slots.
inline constexpr bool IsWideKey(int64_t key) { return key < 0; }
inline constexpr uint32_t WideIndexOf(int64_t key) {
  return static_cast<uint32_t>(static_cast<uint64_t>(key) >> kBelowBucketBits) & (kMaxWideSlots - 1);
}
inline constexpr int64_t WithWideIndex(int64_t key, uint32_t index) {
  return static_cast<int64_t>(kWideKey | uint64_t{index} << kBelowBucketBits |
                              (static_cast<uint64_t>(key) & kBelowBucket));
}

// `number_bits`: the slot's number in narrow keys; `wide_bits`: kWideKey and the slot's index in wide keys.
inline constexpr SlotKey SlotKeyOf(int64_t id, uint64_t number_bits, uint64_t wide_bits) {
  const bool is_narrow = IsNarrowId(id);
  const uint64_t narrow = static_cast<uint64_t>(id) | number_bits;
  const uint64_t hash = HashId(is_narrow ? static_cast<int64_t>(narrow) : id);
  return {static_cast<int64_t>(is_narrow ? narrow : wide_bits | (hash & kBelowBucket)), BucketOfHash(hash)};
}

// Returns the id, inside its slot, of a key that lies in this bucket.
inline constexpr int64_t IdOfSlotKey(uint32_t bucket, int64_t key) {
  const auto bits = static_cast<uint64_t>(key);
  if (IsWideKey(key)) return IdOfHash(uint64_t{bucket} << kBelowBucketBits | (bits & kBelowBucket));
  return static_cast<int64_t>(bits & ((uint64_t{1} << kNarrowBits) - 1));
}

}  // namespace monolith
