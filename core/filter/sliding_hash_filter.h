// Counts how often ids outside the table were seen, approximately and in fixed memory, and evicts those not seen for
// long.
//
// A slice is a ring of splits. New counts go to the head split (or the one after it, if the head has no cell left for
// an id); the count of an id found in an older split is carried over. When the head is full, the next split becomes the
// head, and the split after it is cleared: it held the counts that did not change for a full rotation.
//
// A slice is accessed only under its bucket's lock (admission_filter.h). Format of Save(): docs/formats/filter.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "filter/admission_filter.h"
#include "filter/filter_split.h"
#include "filter/sliding_hash_rule.h"

namespace monolith {

class SlidingHashFilterSlice final : public FilterSlice {
 public:
  // With fewer splits, more than a quarter of all counts would be evicted at a time.
  static constexpr uint32_t kMinSplits = 5;
  static constexpr uint32_t kMaxSplits = 1000;
  // Below these a slice would hold so few ids that the uneven spread of ids over buckets determines which are evicted.
  static constexpr uint64_t kMinCapacity = 300;
  static constexpr uint32_t kMinSplitCapacity = 3;

  // `capacity`: number of ids held at a time, raised to kMinCapacity. REQUIRES: kMinSplits <= split_num <= kMaxSplits,
  // capacity <= 2^31.
  SlidingHashFilterSlice(uint64_t capacity, uint32_t split_num);

  // Returns an empty slice of the size of the one that saved these bytes; null for bytes of another kind of filter.
  // Throws kDataLoss for a size that no slice has.
  static std::unique_ptr<SlidingHashFilterSlice> LikeSaved(const std::string& bytes);

  bool ShouldDrop(const Offer& offer) override;
  void Forget(uint64_t hash) override;
  std::string Save() const override;
  void Load(const std::string& bytes) override;
  void Clear() override;
  size_t MemoryBytes() const override;
  std::unique_ptr<FilterSlice> Clone() const override;

  // Returns the count before this addition; 15 (admitted) when neither head nor its successor has a cell for the id.
  uint32_t Add(uint64_t hash, uint32_t count) { return SlidingHashRule::Add(ring_, splits_, KeyOf(hash), count); }
  // Returns what Add would return.
  uint32_t Count(uint64_t hash) const { return SlidingHashRule::CountOf(ring_, splits_, KeyOf(hash)); }

  uint32_t split_num() const { return static_cast<uint32_t>(splits_.size()); }
  uint32_t split_capacity() const { return split_capacity_; }
  uint32_t head() const { return ring_.head; }
  uint64_t head_increment() const { return ring_.head_increment; }
  // How often an id found no cell.
  uint64_t failure_count() const { return ring_.failure_count; }
  // Cells in use; an id may have one in several splits.
  uint64_t num_elements() const;

 private:
  FilterSplit::Key KeyOf(uint64_t hash) const { return FilterSplitRule::KeyOf(hash, num_starts_); }

  uint32_t split_capacity_;
  uint32_t num_starts_;
  std::vector<FilterSplit> splits_;
  SlidingHashRing ring_;
};

class SlidingHashFilter final : public AdmissionFilter {
 public:
  // Parameters: capacity, ids held by the group, 1..10^12; split_num, kMinSplits..kMaxSplits.
  explicit SlidingHashFilter(const Params& params);
  std::unique_ptr<FilterSlice> MakeSlice() const override;
  uint32_t max_threshold() const override { return FilterSplit::kMaxCount; }

 private:
  uint64_t slice_capacity_;
  uint32_t split_num_;
};

}  // namespace monolith
