// Memory of the lines of a table's indexes, for all of its buckets.
//
// An index of fewer than 16 lines is a block of its own. A larger one is spread over plates (slabs): plate `level` of
// 16 neighbouring buckets holds lines 16 * level to 16 * level + 15 of each of them. So an index grows without being
// moved, and the directory of the plates is small enough to stay in the nearest caches; a separate list of pieces for
// every bucket would cost a lookup one more miss. When one of the neighbours grows, the others follow
// (RowIndex::ShouldGrow), so that plates are nearly full.
//
// Readers without a bucket's lock may search the lines that a head points to. The lines may change meanwhile, and those
// of a small index may be reused by another index, but none is unmapped or made smaller before Clear().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "base/process_key.h"
#include "memory/block_arena.h"
#include "table/index_line.h"

namespace monolith {

inline constexpr uint32_t kPlateLines = 16;    // of one bucket on one plate
inline constexpr uint32_t kPlateBuckets = 16;  // that share a plate
inline constexpr uint32_t kPlateColumns = kNumBuckets / kPlateBuckets;

// 32 bits that determine the relative position of an id's home line in its index.
inline uint64_t HomeBits(uint64_t hash) { return HashInProcess(hash) >> 32; }
inline uint32_t HomeLine(uint64_t hash, uint32_t num_lines) {
  return static_cast<uint32_t>((HomeBits(hash) * num_lines) >> 32);
}

// The lines of one index at one point in time.
struct IndexShape {
  const std::atomic<IndexLine*>* plates;  // every kPlateColumns-th belongs to this index
  uint32_t first;                         // first line of a plate that belongs to this index
  IndexLine* block;                       // of a small index
  uint32_t num_lines;                     // 0 iff no entry was ever inserted

  uint32_t HomeOf(uint64_t hash) const { return HomeLine(hash, num_lines); }
  // The home line; a shared empty line if the index has none.
  const IndexLine* HomeLineOf(uint64_t hash) const { return num_lines == 0 ? &kEmptyLine : Line(HomeOf(hash)); }
  IndexLine* Line(uint32_t line) const {
    return num_lines < kPlateLines ? block + line : Piece(line / kPlateLines) + line % kPlateLines;
  }
  // Returns lines kPlateLines * level and following. REQUIRES: not a small index.
  IndexLine* Piece(uint32_t level) const {
    return plates[size_t{level} * kPlateColumns].load(std::memory_order_relaxed) + first;
  }
  uint32_t Next(uint32_t line) const { return line + 1 == num_lines ? 0 : line + 1; }
};

class IndexMemory {
  struct Head {
    std::atomic<uint64_t> word{0};  // for a small index 48 bits of address; a code for the number of lines
    std::atomic<uint32_t> size{0};  // entries
  };
  static constexpr uint64_t kAddress = (uint64_t{1} << 48) - 1;
  static constexpr uint32_t kCodeOffset = kPlateLines - 1;  // 16 lines are code 16, 32 are 17, 48 are 18 ...

  static uint32_t LinesOf(uint64_t word) {
    const auto code = static_cast<uint32_t>(word >> 48);
    return code < kPlateLines ? code : (code - kCodeOffset) * kPlateLines;
  }
  static uint32_t FirstOf(uint32_t bucket) { return bucket % kPlateBuckets * kPlateLines; }

 public:
  // Small indexes allocate their blocks from `blocks`, which outlives this object.
  explicit IndexMemory(BlockArena& blocks);
  ~IndexMemory();
  IndexMemory(const IndexMemory&) = delete;
  IndexMemory& operator=(const IndexMemory&) = delete;

  IndexShape ShapeOf(uint32_t bucket) const {
    const uint64_t word = heads_[bucket].word.load(std::memory_order_relaxed);
    return {plates_ + bucket / kPlateBuckets, FirstOf(bucket), reinterpret_cast<IndexLine*>(word & kAddress),
            LinesOf(word)};
  }
  // A copy of the fields needed to find a line, for loops that would otherwise reload them for every id.
  class View {
   public:
    // Returns the home line of an id, or an empty one if its index is small.
    const IndexLine* HomeOnPlate(uint64_t hash) const {
      const uint32_t bucket = BucketOfHash(hash);
      const auto code = static_cast<uint32_t>(heads_[bucket].word.load(std::memory_order_relaxed) >> 48);
      if (code < kPlateLines) [[unlikely]]
        return &kEmptyLine;
      const uint64_t place = HomeBits(hash) * (code - kCodeOffset);  // in units of 2^-32 plates
      const IndexLine* plate =
          plates_[(place >> 32) * kPlateColumns + bucket / kPlateBuckets].load(std::memory_order_relaxed);
      return plate + FirstOf(bucket) + static_cast<uint32_t>(place) / ((uint64_t{1} << 32) / kPlateLines);
    }

    uint32_t NumLines(uint32_t bucket) const { return LinesOf(heads_[bucket].word.load(std::memory_order_relaxed)); }

   private:
    friend class IndexMemory;
    View(const Head* heads, const std::atomic<IndexLine*>* plates) : heads_(heads), plates_(plates) {}

    const Head* heads_;
    const std::atomic<IndexLine*>* plates_;
  };

  View view() const { return {heads_.get(), plates_}; }
  // Whether the next line of the same index is not adjacent. REQUIRES: a line on a plate.
  static bool IsLastOfPlate(const IndexLine* line) {
    return reinterpret_cast<uintptr_t>(line) / sizeof(IndexLine) % kPlateLines == kPlateLines - 1;
  }
  // Number of lines that an index on plates could have without allocating memory, because a neighbour has that many.
  uint32_t LinesOnPlates(uint32_t bucket) const {
    return levels_[bucket / kPlateBuckets].load(std::memory_order_relaxed) * kPlateLines;
  }
  uint32_t SizeOf(uint32_t bucket) const { return heads_[bucket].size.load(std::memory_order_relaxed); }

  // The remaining functions need the bucket's lock.
  void SetSize(uint32_t bucket, uint32_t size) { heads_[bucket].size.store(size, std::memory_order_relaxed); }
  // Resizes an index to `num_lines` lines and copies `lines` to it; lines stay in place unless a small index grows.
  // REQUIRES: num_lines is at least what it was, and a power of two below kPlateLines or a multiple of it.
  void Replace(uint32_t bucket, const IndexLine* lines, uint32_t num_lines);
  // Drops every index. REQUIRES: no reader is left.
  void Clear();

  // Bytes of plates, blocks and heads.
  size_t MemoryBytes() const;

 private:
  void AddPlates(uint32_t column, uint32_t levels);
  IndexLine* NewPlate() REQUIRES(mutex_);

  BlockArena& blocks_;
  std::unique_ptr<Head[]> heads_;                    // one per bucket
  std::atomic<IndexLine*>* plates_;                  // [level][column], on pages that are resident only where used
  std::unique_ptr<std::atomic<uint32_t>[]> levels_;  // of each column

  mutable Mutex mutex_;  // guards writes of plates_ and levels_, too
  std::vector<std::byte*> mappings_ GUARDED_BY(mutex_);
  size_t plates_left_ GUARDED_BY(mutex_) = 0;  // in the last mapping
  size_t num_plates_ GUARDED_BY(mutex_) = 0;
  size_t block_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace monolith
