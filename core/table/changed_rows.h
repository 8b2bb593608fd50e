// The rows of one shard that may have changed since some epoch, a few at a time: those that the shard lists, or all of
// its rows if its list does not reach back that far.
//
// Used by one thread; every call needs the bucket's lock. Rows may change between two calls: visitors check the epoch
// of each row. Numbers of listed rows must stay valid in the meantime (no Clear()). Listed rows are scattered in
// memory, so some are prefetched before their visits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/prefetch.h"
#include "table/table_shard.h"

namespace monolith {

class ChangedRows {
 public:
  // Starts with the rows changed in row epoch `first` or later; 0 = all rows. Visits will read `needed_bytes` of a
  // record.
  void Begin(const TableShard& shard, uint32_t first, size_t needed_bytes) {
    asked_bytes_ = std::min(needed_bytes, kMostAskedBytes);
    is_listed_ = shard.ChangedFrom(first, &listed_);
    at_ = 0;
    next_ = is_listed_ && listed_.empty() ? kNoRow : 0;
  }

  bool AtEnd() const { return next_ == kNoRow; }
  // Rows with lower numbers will not be visited again.
  uint32_t next() const { return next_; }

  // An upper bound of the remaining visits, as long as no rows are added.
  uint32_t MostLeft(const TableShard& shard) const {
    return is_listed_ ? static_cast<uint32_t>(listed_.size() - at_) : shard.size();
  }

  // Calls visit(record) for live rows, in ascending order; examines at most `limit` records.
  template <typename Visit>
  void Step(const TableShard& shard, const RecordPool& rows, uint32_t limit, Visit&& visit) {
    if (!is_listed_) {
      next_ = shard.VisitRecords(rows, next_, limit, [&](uint32_t, const std::byte* record) { visit(record); });
      return;
    }
    const RecordPool::View records = rows.view();
    if (at_ == 0) {
      for (size_t i = 0; i < std::min(listed_.size(), kAhead); ++i) Ask(records, i);
    }
    for (const size_t end = std::min<size_t>(listed_.size(), at_ + limit); at_ < end; ++at_) {
      if (at_ + kAhead < listed_.size()) Ask(records, at_ + kAhead);
      const std::byte* record = records.AtAllocated(listed_[at_]);
      if (IsLive(*HeaderOf(record))) visit(record);
    }
    next_ = at_ == listed_.size() ? kNoRow : listed_[at_];
  }

 private:
  static constexpr size_t kAhead = 16;            // rows between the prefetch of a row and its visit
  static constexpr size_t kMostAskedBytes = 512;  // for longer rows the hardware prefetcher takes effect

  [[gnu::always_inline]] void Ask(const RecordPool::View& records, size_t i) const {
    PrefetchLines(records.AtAllocated(listed_[i]), asked_bytes_);
  }

  bool is_listed_ = false;
  size_t asked_bytes_ = 0;
  std::vector<uint32_t> listed_;
  size_t at_ = 0;           // index in listed_
  uint32_t next_ = kNoRow;  // a row number
};

}  // namespace monolith
