// Header of every row. A row is changed only under its bucket's lock; readers without the lock validate afterwards
// (table/bucket_lock.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolith {

// meta, from the low bit: live (1) | frequency (7, saturating) | epoch of the last change (24).
struct RowHeader {
  int64_t key;
  uint32_t time;  // Unix seconds of the last update
  uint32_t meta;
};
static_assert(sizeof(RowHeader) == 16);

inline constexpr uint32_t kNoRow = 0xffffffffu;
inline constexpr uint32_t kMaxFrequency = 127;

// A record without a row has one of two metas. A listed record is in its shard's list of free records, linked by its
// key. A hole is in no list and found by scanning; its memory may have been returned to the system, and then its key
// reads as zero, too.
inline constexpr uint32_t kListedMeta = 2;
inline constexpr uint32_t kHoleMeta = 0;
inline constexpr int64_t kKeyOfHoleInMemory = -1;
inline constexpr uint32_t kMaxRowEpoch = (1u << 24) - 1;

inline constexpr bool IsLive(const RowHeader& row) { return (row.meta & 1u) != 0; }
inline uint32_t FrequencyOf(const RowHeader& row) { return (row.meta >> 1) & kMaxFrequency; }
inline uint32_t EpochOf(const RowHeader& row) { return row.meta >> 8; }
inline uint32_t MakeMeta(uint32_t frequency, uint32_t epoch) { return 1u | (frequency << 1) | (epoch << 8); }

inline RowHeader* HeaderOf(std::byte* row) { return reinterpret_cast<RowHeader*>(row); }
inline const RowHeader* HeaderOf(const std::byte* row) { return reinterpret_cast<const RowHeader*>(row); }
inline std::byte* PayloadOf(std::byte* row) { return row + sizeof(RowHeader); }
inline const std::byte* PayloadOf(const std::byte* row) { return row + sizeof(RowHeader); }

// True iff a record holds the row of a key. Branch-free: readers guess rows, and some guesses are wrong.
inline bool IsRowOf(const std::byte* row, int64_t key) {
  return ((HeaderOf(row)->key ^ key) | int64_t{!IsLive(*HeaderOf(row))}) == 0;
}

}  // namespace monolith
