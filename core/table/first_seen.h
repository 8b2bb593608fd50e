// Numbers ids by first occurrence: 0, 1, 2, ... Working memory of the kernels that find distinct ids.
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

  // Returns the number of this id; a new id gets the next number.
  uint32_t NumberOf(int64_t id) {
    if (2 * ids_.size() >= cells_.size()) Grow();
    uint32_t& cell = cells_[CellOf(id)];
    if (cell == kAbsent) {
      cell = static_cast<uint32_t>(ids_.size());
      ids_.push_back(id);
    }
    return cell;
  }
  // Returns the number of this id, or kAbsent.
  uint32_t Find(int64_t id) const { return cells_[CellOf(id)]; }
  // The distinct ids, by number. May be moved out after the last call.
  std::vector<int64_t>& ids() { return ids_; }

 private:
  static constexpr size_t kFirstCells = 64;

  // Returns the cell of this id, or the free cell where it belongs.
  size_t CellOf(int64_t id) const {
    const size_t mask = cells_.size() - 1;
    size_t at = (HashInProcess(static_cast<uint64_t>(id)) >> 32) & mask;
    while (cells_[at] != kAbsent && ids_[cells_[at]] != id) at = (at + 1) & mask;
    return at;
  }
  void Grow() {
    // By four, not two: rehashing half as often is worth at most 32 bytes per id.
    cells_.assign(4 * cells_.size(), kAbsent);
    for (size_t number = 0; number < ids_.size(); ++number) {
      cells_[CellOf(ids_[number])] = static_cast<uint32_t>(number);
    }
  }

  std::vector<uint32_t> cells_;  // a power of two in number, at most half full
  std::vector<int64_t> ids_;
};

}  // namespace monolith
