#include "filter/sliding_hash_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/hash.h"
#include "base/random.h"
#include "filter/sliding_hash_filter.h"

namespace monolith {
namespace {

// A split whose cells and number of elements lie in memory of the caller, which exists from the beginning.
struct PlainSplit {
  uint16_t* cells;
  uint32_t* num_elements;
  uint32_t capacity;

  FilterSplitRule::Place Find(FilterSplitRule::Key key) const { return FilterSplitRule::Find(cells, key); }
  void Write(uint32_t cell, FilterSplitRule::Key key, uint32_t count) const {
    *num_elements += FilterSplitRule::Write(cells, cell, key, count) ? 1 : 0;
  }
  void Clear() const {
    std::fill_n(cells, FilterSplitRule::NumCells(capacity), uint16_t{0});
    *num_elements = 0;
  }
  bool full() const { return FilterSplitRule::IsFull(*num_elements, capacity); }
};

// All cells of a slice in one block, as a device has them.
class PlainSplits {
 public:
  PlainSplits(uint32_t split_num, uint32_t capacity)
      : capacity_(capacity),
        cells_(size_t{split_num} * FilterSplitRule::NumCells(capacity)),
        num_elements_(split_num) {}

  size_t size() const { return num_elements_.size(); }
  PlainSplit operator[](size_t i) const {
    return {cells_.data() + i * FilterSplitRule::NumCells(capacity_), num_elements_.data() + i, capacity_};
  }

 private:
  uint32_t capacity_;
  mutable std::vector<uint16_t> cells_;
  mutable std::vector<uint32_t> num_elements_;
};

TEST(SlidingHashRuleTest, CountsAreTheSameWhereverTheCellsLie) {
  for (const uint32_t split_num : {5u, 7u, 100u}) {
    SlidingHashFilterSlice slice(300, split_num);
    PlainSplits splits(split_num, slice.split_capacity());
    SlidingHashRing ring;
    const CounterRandom random(split_num);
    const uint32_t num_starts = FilterSplitRule::NumStarts(slice.split_capacity());
    for (uint64_t i = 0; i < 20'000; ++i) {
      const uint64_t word = random.Bits(i);
      const uint64_t hash = HashId(static_cast<int64_t>(word % 1000));
      const auto key = FilterSplitRule::KeyOf(hash, num_starts);
      const auto count = static_cast<uint32_t>(1 + (word >> 62));
      ASSERT_EQ(SlidingHashRule::CountOf(ring, splits, key), slice.Count(hash)) << i;
      ASSERT_EQ(SlidingHashRule::Add(ring, splits, key, count), slice.Add(hash, count)) << i;
      if (word % 7 != 0) continue;
      slice.Forget(hash);
      for (size_t split = 0; split < splits.size(); ++split) FilterSplitRule::Forget(splits[split].cells, key);
    }
    EXPECT_GT(ring.head_increment, split_num) << "the ring has not turned";
    EXPECT_EQ(ring.head, slice.head());
    EXPECT_EQ(ring.head_increment, slice.head_increment());
    EXPECT_EQ(ring.failure_count, slice.failure_count());
  }
}

}  // namespace
}  // namespace monolith
