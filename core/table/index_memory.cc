#include "table/index_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "memory/pages.h"

namespace monolith {
namespace {

constexpr size_t kMostLevels = (size_t{1} << 16) - kPlateLines;
constexpr size_t kDirectoryBytes = kMostLevels * kPlateColumns * sizeof(std::atomic<IndexLine*>);
constexpr size_t kPlateBytes = kPlateBuckets * kPlateLines * sizeof(IndexLine);
constexpr size_t kMappingBytes = 8 * kHugePage;             // of plates
constexpr size_t kMappedBytes = kMappingBytes + kHugePage;  // the last one is never written to, and so takes no memory
static_assert(kReadableBehindLine <= kHugePage);
static_assert(kMappingBytes % kPlateBytes == 0);

size_t BlockBytes(uint32_t num_lines) { return num_lines < kPlateLines ? num_lines * sizeof(IndexLine) : 0; }

}  // namespace

IndexMemory::IndexMemory(BlockArena& blocks)
    : blocks_(blocks),
      heads_(std::make_unique<Head[]>(kNumBuckets)),
      plates_(reinterpret_cast<std::atomic<IndexLine*>*>(MapPages(kDirectoryBytes, kDirectoryBytes))),
      levels_(std::make_unique<std::atomic<uint32_t>[]>(kPlateColumns)) {}

IndexMemory::~IndexMemory() {
  Clear();
  UnmapPages(reinterpret_cast<std::byte*>(plates_), kDirectoryBytes);
}

void IndexMemory::Replace(uint32_t bucket, const IndexLine* lines, uint32_t num_lines) {
  const IndexShape old = ShapeOf(bucket);
  IndexShape grown = old;
  grown.num_lines = num_lines;
  grown.block = nullptr;
  if (num_lines < kPlateLines) {
    MONOLITH_CHECK(std::has_single_bit(num_lines));
    const bool grows = num_lines != old.num_lines;
    grown.block = grows ? reinterpret_cast<IndexLine*>(blocks_.Allocate(BlockBytes(num_lines))) : old.block;
    std::memcpy(static_cast<void*>(grown.block), lines, BlockBytes(num_lines));
  } else {
    const uint32_t levels = num_lines / kPlateLines;
    AddPlates(bucket / kPlateBuckets, levels);
    for (uint32_t level = 0; level < levels; ++level) {
      std::memcpy(static_cast<void*>(grown.Piece(level)), lines + level * kPlateLines, kPlateLines * sizeof(IndexLine));
    }
  }
  const auto address = reinterpret_cast<uint64_t>(grown.block);
  const uint32_t code = num_lines < kPlateLines ? num_lines : num_lines / kPlateLines + kCodeOffset;
  MONOLITH_CHECK((address & ~kAddress) == 0 && code < (1u << 16));
  heads_[bucket].word.store(address | uint64_t{code} << 48, std::memory_order_release);
  if (old.block != nullptr && old.block != grown.block)
    blocks_.Free(reinterpret_cast<std::byte*>(old.block), BlockBytes(old.num_lines));
  MutexLock lock(mutex_);
  block_bytes_ += BlockBytes(num_lines) - BlockBytes(old.num_lines);
}

void IndexMemory::AddPlates(uint32_t column, uint32_t levels) {
  MONOLITH_CHECK(levels <= kMostLevels);
  MutexLock lock(mutex_);
  for (std::atomic<uint32_t>& level = levels_[column]; level < levels; ++level) {
    plates_[size_t{level} * kPlateColumns + column].store(NewPlate(), std::memory_order_release);
  }
}

IndexLine* IndexMemory::NewPlate() {
  constexpr size_t kPerMapping = kMappingBytes / kPlateBytes;
  if (plates_left_ == 0) {
    mappings_.push_back(MapPages(kMappedBytes, 0));
    plates_left_ = kPerMapping;
  }
  ++num_plates_;
  return reinterpret_cast<IndexLine*>(mappings_.back() + (kPerMapping - plates_left_--) * kPlateBytes);
}

void IndexMemory::Clear() {
  for (uint32_t bucket = 0; bucket < kNumBuckets; ++bucket) {
    const IndexShape shape = ShapeOf(bucket);
    if (shape.block != nullptr) blocks_.Free(reinterpret_cast<std::byte*>(shape.block), BlockBytes(shape.num_lines));
    heads_[bucket].word.store(0, std::memory_order_relaxed);
    SetSize(bucket, 0);
  }
  MutexLock lock(mutex_);
  for (std::byte* mapping : mappings_) UnmapPages(mapping, kMappedBytes);
  mappings_.clear();
  std::fill_n(levels_.get(), kPlateColumns, 0);
  plates_left_ = num_plates_ = block_bytes_ = 0;
}

size_t IndexMemory::MemoryBytes() const {
  MutexLock lock(mutex_);
  const size_t levels = std::max_element(levels_.get(), levels_.get() + kPlateColumns)->load();
  return num_plates_ * kPlateBytes + block_bytes_ + kNumBuckets * sizeof(Head) +
         levels * kPlateColumns * sizeof(plates_[0]);
}

}  // namespace monolith
