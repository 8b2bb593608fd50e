// Seeds of a row's random values, from that of its table. They depend on slot and id only, not on the other slots of
// the table. Pure functions.
#pragma once

#include <cstdint>

#include "base/hash.h"

namespace monolith {

inline constexpr uint64_t RowSeedOf(uint64_t table_seed, int64_t key) {
  return Combine(table_seed, static_cast<uint64_t>(key));
}
// For a wide key (table/slot_keys.h), which has the index of the slot in it, not its number.
inline constexpr uint64_t RowSeedOfWide(uint64_t table_seed, int64_t key, uint32_t slot) {
  return Combine(Combine(table_seed, static_cast<uint64_t>(key) & kBelowBucket), slot);
}
// Of what an update draws; a segment adds its first dim.
inline constexpr uint64_t UpdateSeedOf(uint64_t row_seed, int64_t step) {
  return Combine(row_seed, static_cast<uint64_t>(step));
}
// Of the first weights of a segment, by its number in the row.
inline constexpr uint64_t FirstWeightsSeedOf(uint64_t row_seed, uint64_t segment) { return Combine(row_seed, segment); }

}  // namespace monolith
