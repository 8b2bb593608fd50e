// Records of one size, addressed by 32-bit numbers, at addresses that never change.
//
// Memory grows by extents of a power-of-two number of records and becomes resident as it is touched. Allocate() is
// thread-safe; At() needs no lock and accepts any number, so that a reader racing with a writer can follow a stale
// number without harm. Clear() and destruction require that no reader or writer is left.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/mutex.h"

namespace monolith {

class RecordPool {
 public:
  struct Run {  // records [begin, begin + count), both of them multiples of kUnit; contiguous in memory
    uint32_t begin;
    uint32_t count;
    uint64_t end() const { return uint64_t{begin} + count; }
  };
  static constexpr uint32_t kUnit = 8;
  // Records whose numbers are equal when divided by this are contiguous in memory.
  static constexpr uint32_t kSmallestExtent = 64;

  // REQUIRES: record_bytes is a positive multiple of 8.
  explicit RecordPool(size_t record_bytes);
  ~RecordPool();
  RecordPool(const RecordPool&) = delete;
  RecordPool& operator=(const RecordPool&) = delete;

  // A copy of the fields needed for addressing, for loops that would otherwise reload them for every record.
  class View {
   public:
    // As RecordPool::At() and AtAllocated().
    std::byte* At(uint32_t number) const {
      std::byte* extent = extents_[number >> shift_].load(std::memory_order_relaxed);
      return extent == nullptr ? nullptr : extent + static_cast<size_t>(number & mask_) * record_bytes_;
    }
    std::byte* AtAllocated(uint32_t number) const {
      return extents_[number >> shift_].load(std::memory_order_relaxed) +
             static_cast<size_t>(number & mask_) * record_bytes_;
    }

   private:
    friend class RecordPool;
    View(const std::atomic<std::byte*>* extents, int shift, uint32_t mask, size_t record_bytes)
        : extents_(extents), shift_(shift), mask_(mask), record_bytes_(record_bytes) {}

    const std::atomic<std::byte*>* extents_;
    int shift_;
    uint32_t mask_;
    size_t record_bytes_;
  };

  View view() const { return {extents_, extent_shift_, extent_mask_, record_bytes_}; }
  size_t record_bytes() const { return record_bytes_; }

  // Null iff no record of that extent was ever allocated.
  std::byte* At(uint32_t number) const { return view().At(number); }
  // As At(). REQUIRES: the number is allocated.
  std::byte* AtAllocated(uint32_t number) const { return view().AtAllocated(number); }

  // Returns at most `wanted` fresh records, all of them numbered `from` or above. Consecutive allocations of one thread
  // are adjacent in memory, whatever other threads allocate meanwhile. REQUIRES: a positive multiple of kUnit. Throws
  // kResourceExhausted.
  Run Allocate(uint32_t wanted, uint64_t from);
  void Clear();
  // Number of records allocated, or reserved for a thread, since the last Clear().
  uint64_t allocated() const { return next_.load(std::memory_order_relaxed); }
  // Records of one extent: those from a multiple of it on are contiguous in memory.
  uint64_t extent_records() const { return uint64_t{extent_mask_} + 1; }

  // Called by users for records whose memory was returned to the system, and reads as zero.
  void NoteReturned(uint64_t records) { returned_.fetch_add(static_cast<int64_t>(records), std::memory_order_relaxed); }
  void NoteTakenBack() { returned_.fetch_sub(1, std::memory_order_relaxed); }
  // Bytes of the records that are allocated or reserved, and were not returned.
  uint64_t resident_bytes() const {
    const auto returned = static_cast<uint64_t>(std::max<int64_t>(0, returned_.load(std::memory_order_relaxed)));
    return (allocated() - std::min(allocated(), returned)) * record_bytes_;
  }

 private:
  // Records reserved for the threads that use the lane.
  struct alignas(64) Lane {
    Mutex mutex;
    uint64_t next GUARDED_BY(mutex) = 0;
    uint64_t end GUARDED_BY(mutex) = 0;
  };
  static constexpr int kNumLanes = 16;

  Run TakeFresh(uint32_t wanted);
  size_t ExtentBytes() const;
  size_t NumExtents() const { return size_t{1} << (32 - extent_shift_); }

  const size_t record_bytes_;
  int extent_shift_;
  uint32_t extent_mask_;
  std::atomic<std::byte*>* extents_;  // NumExtents() pointers, on pages that are resident only where used

  Lane lanes_[kNumLanes];
  Mutex mutex_;  // guards growth
  std::atomic<uint64_t> next_{0};
  std::atomic<int64_t> returned_{0};
};

}  // namespace monolith
