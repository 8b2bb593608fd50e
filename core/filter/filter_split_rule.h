// The cells of one split of the sliding filter: how an id is found, counted and removed in them. Functions on plain
// memory, without a lock; filter_split.h has the invariants of the cells. Without memory (null) nothing is counted.
#pragma once

#include <cstdint>

namespace monolith {

struct FilterSplitRule {
  static constexpr uint32_t kCountBits = 4;
  static constexpr uint32_t kMaxCount = (1u << kCountBits) - 1;
  static constexpr uint32_t kProbeLimit = 16;
  static constexpr uint32_t kNoCell = 0xffffffffu;

  // Position and signature of a hash in every split of one size. They come from different bits of the hash, and neither
  // from the topmost, which are equal for all ids of a bucket.
  struct Key {
    uint32_t start;      // first cell to probe
    uint16_t signature;  // 12 bits
  };

  // The cell in which an id is counted (count > 0) or could be (count 0); cell kNoCell when all probed cells belong to
  // other ids.
  struct Place {
    uint32_t cell;
    uint32_t count;
  };

  static uint32_t NumStarts(uint32_t capacity) { return static_cast<uint32_t>(uint64_t{capacity} * 6 / 5); }
  // Probing from the last start cell still has its full length, so it never wraps.
  static uint32_t NumCells(uint32_t capacity) { return NumStarts(capacity) + kProbeLimit; }
  static Key KeyOf(uint64_t hash, uint32_t num_starts) {
    const uint64_t position = hash & 0xffffffffu;
    return {static_cast<uint32_t>((position * num_starts) >> 32), static_cast<uint16_t>((hash >> 32) & 0xfffu)};
  }
  static bool IsFull(uint32_t num_elements, uint32_t capacity) { return num_elements + 1 >= capacity; }

  static Place Find(const uint16_t* cells, Key key) {
    if (cells == nullptr) return {key.start, 0};
    for (uint32_t cell = key.start; cell < key.start + kProbeLimit; ++cell) {
      const uint16_t content = cells[cell];
      if (content == 0) return {cell, 0};
      if ((content >> kCountBits) == key.signature) return {cell, content & kMaxCount};
    }
    return {kNoCell, 0};
  }

  // Counts `count` occurrences, saturating, in a cell that Find(key) returned; returns whether the cell was free.
  // REQUIRES: count > 0, cells are not null.
  static bool Write(uint16_t* cells, uint32_t cell, Key key, uint32_t count) {
    const uint32_t old = cells[cell] & kMaxCount;
    const uint32_t left = kMaxCount - old;
    const uint32_t sum = old + (count < left ? count : left);
    cells[cell] = static_cast<uint16_t>((uint32_t{key.signature} << kCountBits) | sum);
    return old == 0;
  }

  // The cell stays in use: it counts 1 for the inverted signature, which at worst shares it with another id.
  static void Forget(uint16_t* cells, Key key) {
    const Place place = Find(cells, key);
    if (place.count == 0) return;
    const uint32_t inverted = ~uint32_t{key.signature} & 0xfffu;
    cells[place.cell] = static_cast<uint16_t>(inverted << kCountBits | 1u);
  }
};

}  // namespace monolith
