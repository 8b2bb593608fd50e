// Numbers ids by first occurrence: 0, 1, 2, ... The working memory of kernels that look for distinct ids.
// A value used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/process_key.h"

namespace monolith {

// REQUIRES: fewer than 2^32 - 1 distinct ids.
class FirstSeen {
 public:
  static constexpr uint32_t kAbsent = std::numeric_limits<uint32_t>::max();

  FirstSeen() : cells_(kFirstCells, kAbsent) {}

  // The number of this id; a new one gets the next number.
  uint32_t NumberOf(int64_t id) {
    if (2 * ids_.size() >= cells_.size()) Grow();
    uint32_t& cell = cells_[CellOf(id)];
    if (cell == kAbsent) {
      cell = static_cast<uint32_t>(ids_.size());
      ids_.push_back(id);
    }
    return cell;
  }
  // The number of this id, or kAbsent.
  uint32_t Find(int64_t id) const { return cells_[CellOf(id)]; }
  // The distinct ids, by their numbers. May be moved out once no more calls follow.
  std::vector<int64_t>& ids() { return ids_; }

 private:
  static constexpr size_t kFirstCells = 64;

  // The cell of this id, or the free cell where it belongs.
  size_t CellOf(int64_t id) const {
    const size_t mask = cells_.size() - 1;
    size_t at = (HashInProcess(static_cast<uint64_t>(id)) >> 32) & mask;
    while (cells_[at] != kAbsent && ids_[cells_[at]] != id) at = (at + 1) & mask;
    return at;
  }
  void Grow() {
    // By four, not two: moving the ids half as often is worth at most 32 bytes for each.
    cells_.assign(4 * cells_.size(), kAbsent);
    for (size_t number = 0; number < ids_.size(); ++number) {
      cells_[CellOf(ids_[number])] = static_cast<uint32_t>(number);
    }
  }

  std::vector<uint32_t> cells_;  // a power of two of them, at most half full
  std::vector<int64_t> ids_;
};

}  // namespace monolith
