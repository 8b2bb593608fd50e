// Which rows of a shard changed in which epoch, so that reading changes need not scan all rows.
//
// Owned by a TableShard, under its bucket's lock. The last few changes are kept outside of the log, in one cache line
// that a step over many shards can prefetch (AskAhead), which makes recording a change nearly free. The log itself is
// only accessed when the line is full, or when an epoch has ended whose changes still have to be read.
//
// 1. Rows of `recent_` are of one epoch, which is no earlier than any of `logged_`.
// 2. The log is complete for epochs above `floor_`. Recent rows of an epoch up to `floor_` are ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/prefetch.h"
#include "table/epoch_shift.h"

namespace monolith {

class alignas(kCacheLine) ChangeLog {
 public:
  // Records a change of `row`; epochs never decrease. `size` returns the number of rows of the shard: a log that is no
  // shorter than a large share of them is truncated.
  template <typename Size>
  [[gnu::always_inline]] void Add(uint32_t row, uint32_t epoch, Size&& size) {
    if (recent_.epoch != epoch || recent_.count == kMostRecent) [[unlikely]] {
      if (recent_.count != 0 && recent_.epoch > floor_) MoveRecent(size());
      recent_.epoch = epoch;
      recent_.count = 0;
    }
    recent_.rows[recent_.count++] = row;
  }

  // Prefetches the line of recent changes. Thread-safe, with or without the lock.
  [[gnu::always_inline]] void AskAhead() const { Prefetch(&recent_); }

  // Returns the rows changed in epoch `first` or later, each once, ascending; false when the log does not reach back
  // that far.
  bool From(uint32_t first, std::vector<uint32_t>* rows) const;
  // Drops the epochs up to `before`.
  void Forget(uint32_t before);
  // Empties the log. From then on it is complete for epochs after this one.
  void Restart(uint32_t epoch);
  // Empties the log of a shard that has no rows left.
  void Clear();
  void Shift(const EpochShift& shift);

  size_t MemoryBytes() const { return changed_.capacity() * sizeof(uint32_t) + logged_.capacity() * sizeof(Logged); }

 private:
  static constexpr uint32_t kMostRecent = 13;

  struct Recent {
    uint32_t epoch = 0;
    uint32_t count = 0;
    uint32_t rows[kMostRecent];
  };
  static_assert(sizeof(Recent) + sizeof(uint32_t) == kCacheLine, "with floor_");

  struct Logged {
    uint32_t epoch;
    uint32_t begin;  // in changed_
  };

  [[gnu::noinline]] void MoveRecent(size_t size);
  void MakeRoom(uint32_t epoch, size_t limit);

  Recent recent_;
  uint32_t floor_ = UINT32_MAX;
  std::vector<Logged> logged_;
  std::vector<uint32_t> changed_;
};

}  // namespace monolith
