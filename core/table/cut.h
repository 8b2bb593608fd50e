// A consistent cut: one exact state of a group, readable while training continues.
//
// Opening waits for the calls in flight and takes microseconds. From then on the first change of a row that has not
// been read yet keeps the row's old image. Reading walks the rows, 64 per lock hold, and adds the images. Each bucket
// is read once; rows that were read need no image any more. Several threads may read different buckets concurrently.
// The cut ends with Release() or destruction, before the group does, and after all its sources.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "format/block_source.h"
#include "table/group.h"

namespace monolith {

struct CutOptions {
  bool state = true;          // false: serving blocks
  bool drop_expired = false;  // skip rows that have expired by their table's newest time at the cut
  // Only rows and tombstones of a later epoch, and no filters; 0: all rows and all tombstones kept. More rows may be
  // included when that epoch is older than the row epochs can represent.
  std::optional<uint64_t> since = std::nullopt;
};

// The cut of any owner of rows: a Group, or one that keeps the rows elsewhere.
class Cut {
 public:
  virtual ~Cut() = default;
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;

  uint64_t epoch() const { return epoch_; }
  const std::vector<int64_t>& counts() const { return counts_; }              // rows of each table
  const std::vector<int64_t>& newest_times() const { return newest_times_; }  // of each table
  // The last batch of each worker whose update is in the rows. All earlier batches are included, and no later one.
  const std::vector<BatchStamp>& stamps() const { return stamps_; }

  // Blocks of buckets [begin, end): for each bucket the filter, the tombstones, the rows. Throws kFailedPrecondition
  // when one of the buckets was requested before, the cut was released, or the history after `since` was dropped before
  // the cut; kInvalidArgument when `since` comes after the cut.
  virtual std::unique_ptr<BlockSource> Blocks(uint32_t begin, uint32_t end, const CutOptions& options) = 0;
  // Idempotent.
  virtual void Release() = 0;

 protected:
  explicit Cut(uint64_t epoch) : epoch_(epoch) {}

  const uint64_t epoch_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> newest_times_;
  std::vector<BatchStamp> stamps_;
};

class GroupCut final : public Cut {
 public:
  ~GroupCut() override { Release(); }

  std::unique_ptr<BlockSource> Blocks(uint32_t begin, uint32_t end, const CutOptions& options) override;
  void Release() override;

 private:
  friend class CutSource;
  friend class Group;
  explicit GroupCut(Group& group);
  void CheckSince(uint64_t since) const;

  Group& group_;
  std::unique_ptr<std::atomic<bool>[]> claimed_;  // by bucket
  std::atomic<bool> released_{false};
};

}  // namespace monolith
