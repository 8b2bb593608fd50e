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

#include "filter/filter_split_rule.h"

namespace monolith {

class FilterSplit {
 public:
  static constexpr uint32_t kMaxCount = FilterSplitRule::kMaxCount;
  static constexpr uint32_t kNoCell = FilterSplitRule::kNoCell;
  using Key = FilterSplitRule::Key;
  using Place = FilterSplitRule::Place;

  // A split counts as full at `capacity` - 1 elements; it has about 1.2 * capacity cells. REQUIRES: 2 <= capacity <=
  // 2^31.
  explicit FilterSplit(uint32_t capacity) : capacity_(capacity) {}

  // `cells_` has no memory before the first Write.
  Place Find(Key key) const { return FilterSplitRule::Find(cells_.empty() ? nullptr : cells_.data(), key); }
  // Counts `count` occurrences, saturating, in a cell that Find(key) returned. REQUIRES: count > 0.
  void Write(uint32_t cell, Key key, uint32_t count);
  // Removes the count of an id: Find(key) returns no count from now on, and the cell stays in use (invariant 2).
  void Forget(Key key);
  // Frees the memory as well.
  void Clear();

  bool full() const { return FilterSplitRule::IsFull(num_elements_, capacity_); }
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
