// One split of the sliding filter: a fixed array of 16-bit cells, each an approximate counter of one id.
// A value type without a lock; owned by one filter slice.
//
// Invariants
// 1. A cell is zero (free) or holds a count of 1..15 in its low 4 bits and a 12-bit signature above them.
// 2. A cell never becomes free again except through Clear(), so an id's cell is found by probing from its start cell to
//    the first free one: no later cell can belong to the id.
// 3. num_elements() is the number of cells in use.
// Two ids with equal signatures whose probe sequences overlap share a cell: their counts add up, and one may be
// admitted early.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace monolith {

class FilterSplit {
 public:
  static constexpr uint32_t kCountBits = 4;
  static constexpr uint32_t kMaxCount = (1u << kCountBits) - 1;
  static constexpr uint32_t kProbeLimit = 16;

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
  static constexpr uint32_t kNoCell = UINT32_MAX;

  // A split counts as full at `capacity` - 1 elements; it has about 1.2 * capacity cells. REQUIRES: 2 <= capacity <=
  // 2^31.
  explicit FilterSplit(uint32_t capacity) : capacity_(capacity) {}

  static uint32_t NumStarts(uint32_t capacity) { return static_cast<uint32_t>(uint64_t{capacity} * 6 / 5); }
  // Probing from the last start cell still has its full length, so it never wraps.
  static uint32_t NumCells(uint32_t capacity) { return NumStarts(capacity) + kProbeLimit; }
  static Key KeyOf(uint64_t hash, uint32_t num_starts) {
    const uint64_t position = hash & 0xffffffffu;
    return {static_cast<uint32_t>((position * num_starts) >> 32), static_cast<uint16_t>((hash >> 32) & 0xfffu)};
  }

  Place Find(Key key) const;
  // Counts `count` occurrences, saturating, in a cell that Find(key) returned. REQUIRES: count > 0.
  void Write(uint32_t cell, Key key, uint32_t count);
  // Removes the count of an id: Find(key) returns no count from now on. The cell stays in use (invariant 2): it counts
  // 1 for the inverted signature, which at worst shares it with another id.
  void Forget(Key key);
  // Frees the memory as well.
  void Clear();

  bool full() const { return num_elements_ + 1 >= capacity_; }
  uint32_t num_elements() const { return num_elements_; }
  size_t MemoryBytes() const { return cells_.capacity() * sizeof(uint16_t); }

  // The cells, empty before the first Write; and a split made of saved ones.
  std::span<const uint16_t> cells() const { return cells_; }
  // REQUIRES: cells.size() is NumCells(capacity), and invariant 1 holds.
  static FilterSplit FromCells(uint32_t capacity, std::vector<uint16_t> cells);

 private:
  uint32_t capacity_;
  uint32_t num_elements_ = 0;
  std::vector<uint16_t> cells_;
};

}  // namespace monolith
