#include "memory/record_pool.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "memory/pages.h"

namespace monolith {
namespace {

constexpr size_t kExtentBytes = size_t{64} << 20;
// The start of the first extent stays on small pages: a table of a few rows should not cost a huge page.
constexpr size_t kSmallStart = 2 * kHugePage;

// Records that a lane (a free list shared by some threads) allocates at a time: few while the pool is small, or its
// size would seem larger than it is.
constexpr uint64_t kMostPerLane = 256;
constexpr uint64_t kLaneFraction = 1024;

int ThisThread() {
  static std::atomic<int> threads{0};
  thread_local const int number = threads.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace

RecordPool::RecordPool(size_t record_bytes) : record_bytes_(record_bytes) {
  MONOLITH_CHECK(record_bytes > 0 && record_bytes % 8 == 0);
  extent_shift_ = std::countr_zero(kSmallestExtent);
  while (extent_shift_ < 24 && (record_bytes << (extent_shift_ + 1)) <= kExtentBytes) ++extent_shift_;
  extent_mask_ = (uint32_t{1} << extent_shift_) - 1;
  const size_t directory_bytes = NumExtents() * sizeof(*extents_);
  extents_ = reinterpret_cast<std::atomic<std::byte*>*>(MapPages(directory_bytes, directory_bytes));
}

RecordPool::~RecordPool() {
  for (size_t i = 0; i < NumExtents(); ++i) {
    std::byte* extent = extents_[i].load(std::memory_order_relaxed);
    if (extent == nullptr) break;  // extents are filled in order
    UnmapPages(extent, ExtentBytes());
  }
  UnmapPages(reinterpret_cast<std::byte*>(extents_), NumExtents() * sizeof(*extents_));
}

size_t RecordPool::ExtentBytes() const {
  const size_t bytes = record_bytes_ << extent_shift_;
  return (bytes + kHugePage - 1) / kHugePage * kHugePage;
}

RecordPool::Run RecordPool::Allocate(uint32_t wanted, uint64_t from) {
  MONOLITH_CHECK(wanted > 0 && wanted % kUnit == 0);
  Lane& lane = lanes_[static_cast<unsigned>(ThisThread()) % kNumLanes];
  MutexLock lock(lane.mutex);
  if (lane.next == lane.end) {
    const uint64_t share = std::min(kMostPerLane, allocated() / kLaneFraction) / kUnit * kUnit;
    const Run run = TakeFresh(std::max(wanted, static_cast<uint32_t>(share)));
    lane.next = run.begin;
    lane.end = run.end();
  }
  if (lane.next < from) return TakeFresh(wanted);
  const auto count = static_cast<uint32_t>(std::min<uint64_t>(wanted, lane.end - lane.next));
  lane.next += count;
  return {static_cast<uint32_t>(lane.next - count), count};
}

RecordPool::Run RecordPool::TakeFresh(uint32_t wanted) {
  MutexLock lock(mutex_);
  const uint64_t next = next_.load(std::memory_order_relaxed);
  // The last number stands for "no record" in the users of the pool, so it is never allocated.
  const uint64_t left = (uint64_t{1} << 32) - kUnit - next;
  if (left == 0) throw Error(Code::kResourceExhausted, "a table holds fewer than 2^32 rows");
  auto& extent = extents_[next >> extent_shift_];
  if (extent.load(std::memory_order_relaxed) == nullptr) {
    extent.store(MapPages(ExtentBytes(), next == 0 ? kSmallStart : 0), std::memory_order_release);
  }
  const uint64_t left_in_extent = (uint64_t{extent_mask_} + 1) - (next & extent_mask_);
  const auto count = static_cast<uint32_t>(std::min({uint64_t{wanted}, left_in_extent, left}));
  next_.store(next + count, std::memory_order_relaxed);
  return {static_cast<uint32_t>(next), count};
}

void RecordPool::Clear() {
  MutexLock lock(mutex_);
  const uint64_t used = next_.load(std::memory_order_relaxed);
  for (uint64_t i = 0; i < used; i += uint64_t{extent_mask_} + 1) {
    DropPages(extents_[i >> extent_shift_].load(std::memory_order_relaxed), ExtentBytes());
  }
  next_.store(0, std::memory_order_relaxed);
  returned_.store(0, std::memory_order_relaxed);
  lock.Unlock();  // Allocate() locks a lane first
  for (Lane& lane : lanes_) {
    MutexLock lane_lock(lane.mutex);
    lane.next = lane.end = 0;
  }
}

}  // namespace monolith
