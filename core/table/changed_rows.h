// The rows of one shard that may have changed from some epoch on, a few at a time: those that the shard lists, or all
// of its rows where its list does not reach back that far.
//
// Used by one thread; every call needs the bucket's lock. Rows may change between two calls: whoever visits a row looks
// at its epoch. Numbers of listed rows must stay valid in the meantime (no Clear()).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "table/table_shard.h"

namespace monolith {

class ChangedRows {
 public:
  // Changed in row epoch `first` or later; 0 = all rows.
  void Begin(const TableShard& shard, uint32_t first) {
    is_listed_ = shard.ChangedFrom(first, &listed_);
    at_ = 0;
    next_ = is_listed_ && listed_.empty() ? kNoRow : 0;
  }

  bool AtEnd() const { return next_ == kNoRow; }
  // Rows numbered below will not be visited any more.
  uint32_t next() const { return next_; }

  // An upper bound of the visits to come, as long as no rows are added.
  uint32_t MostLeft(const TableShard& shard) const {
    return is_listed_ ? static_cast<uint32_t>(listed_.size() - at_) : shard.size();
  }

  // Calls visit(record) for live rows, in ascending order, at most `limit` records looked at.
  template <typename Visit>
  void Step(const TableShard& shard, const RecordPool& rows, uint32_t limit, Visit&& visit) {
    if (!is_listed_) {
      next_ = shard.VisitRecords(rows, next_, limit, [&](uint32_t, const std::byte* record) { visit(record); });
      return;
    }
    for (const size_t end = std::min<size_t>(listed_.size(), at_ + limit); at_ < end; ++at_) {
      const std::byte* record = rows.AtAllocated(listed_[at_]);
      if (IsLive(*HeaderOf(record))) visit(record);
    }
    next_ = at_ == listed_.size() ? kNoRow : listed_[at_];
  }

 private:
  bool is_listed_ = false;
  std::vector<uint32_t> listed_;
  size_t at_ = 0;           // in listed_
  uint32_t next_ = kNoRow;  // a row number
};

}  // namespace monolith
