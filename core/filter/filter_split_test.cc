#include "filter/filter_split.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/hash.h"

namespace monolith {
namespace {

constexpr uint32_t kCapacity = 50;

FilterSplit::Key KeyAt(uint32_t start, uint16_t signature) { return {start, signature}; }

TEST(FilterSplitTest, PositionAndSignatureComeFromDifferentBits) {
  const FilterSplit::Key low = FilterSplitRule::KeyOf(0x00000000ffffffffull, 60);
  const FilterSplit::Key high = FilterSplitRule::KeyOf(0x00000fff00000000ull, 60);
  EXPECT_EQ(low.start, 59u);
  EXPECT_EQ(low.signature, 0u);
  EXPECT_EQ(high.start, 0u);
  EXPECT_EQ(high.signature, 0xfffu);
}

TEST(FilterSplitTest, BitsThatChooseTheBucketChangeNothing) {
  const uint64_t bucket_bits = ~uint64_t{0} << (64 - kBucketBits);
  const FilterSplit::Key plain = FilterSplitRule::KeyOf(0x123456789abcdefull, 60);
  const FilterSplit::Key other = FilterSplitRule::KeyOf(0x123456789abcdefull ^ bucket_bits, 60);
  EXPECT_EQ(plain.start, other.start);
  EXPECT_EQ(plain.signature, other.signature);
}

TEST(FilterSplitTest, MemoryIsTakenByTheFirstWrite) {
  FilterSplit split(kCapacity);
  EXPECT_EQ(split.MemoryBytes(), 0u);
  EXPECT_EQ(split.Find(KeyAt(7, 5)).cell, 7u);
  EXPECT_EQ(split.MemoryBytes(), 0u);
  split.Write(7, KeyAt(7, 5), 1);
  EXPECT_EQ(split.MemoryBytes(), (60u + 16u) * 2u);
  split.Clear();
  EXPECT_EQ(split.MemoryBytes(), 0u);
  EXPECT_EQ(split.Find(KeyAt(7, 5)).count, 0u);
}

TEST(FilterSplitTest, CountsSaturate) {
  FilterSplit split(kCapacity);
  split.Write(0, KeyAt(0, 1), 9);
  split.Write(0, KeyAt(0, 1), 5);
  EXPECT_EQ(split.Find(KeyAt(0, 1)).count, 14u);
  split.Write(0, KeyAt(0, 1), UINT32_MAX);
  EXPECT_EQ(split.Find(KeyAt(0, 1)).count, 15u);
  EXPECT_EQ(split.num_elements(), 1u);
}

TEST(FilterSplitTest, SignatureZeroIsCountedLikeAnyOther) {
  FilterSplit split(kCapacity);
  split.Write(3, KeyAt(3, 0), 1);
  EXPECT_EQ(split.Find(KeyAt(3, 0)).count, 1u);
  EXPECT_EQ(split.Find(KeyAt(3, 9)).cell, 4u);
}

TEST(FilterSplitTest, WalkEndsAfterSixteenForeignCells) {
  FilterSplit split(kCapacity);
  const uint32_t last_start = FilterSplitRule::NumStarts(kCapacity) - 1;
  for (uint16_t signature = 1; signature <= 16; ++signature) {
    const FilterSplit::Place place = split.Find(KeyAt(last_start, signature));
    ASSERT_EQ(place.cell, last_start + signature - 1u);
    split.Write(place.cell, KeyAt(last_start, signature), 2);
  }
  EXPECT_EQ(split.Find(KeyAt(last_start, 17)).cell, FilterSplit::kNoCell);
  EXPECT_EQ(split.Find(KeyAt(last_start, 16)).count, 2u);
}

TEST(FilterSplitTest, AForgottenKeyHasNoCountAndThoseBehindItAreStillFound) {
  FilterSplit split(kCapacity);
  for (uint16_t signature = 0; signature < 4; ++signature) {
    split.Write(split.Find(KeyAt(3, signature)).cell, KeyAt(3, signature), 5);
  }
  split.Forget(KeyAt(3, 0));
  split.Forget(KeyAt(3, 1));
  split.Forget(KeyAt(3, 9));  // was never counted
  EXPECT_EQ(split.Find(KeyAt(3, 0)).count, 0u);
  EXPECT_EQ(split.Find(KeyAt(3, 1)).count, 0u);
  EXPECT_EQ(split.Find(KeyAt(3, 2)).count, 5u);
  EXPECT_EQ(split.Find(KeyAt(3, 3)).count, 5u);
  EXPECT_EQ(split.num_elements(), 4u);
  const std::vector<uint16_t> cells(split.cells().begin(), split.cells().end());
  EXPECT_EQ(FilterSplit::FromCells(kCapacity, cells).num_elements(), 4u);
  FilterSplit(kCapacity).Forget(KeyAt(3, 0));  // it is empty
}

TEST(FilterSplitTest, FullIsOneElementBelowCapacity) {
  FilterSplit split(3);
  split.Write(0, KeyAt(0, 1), 1);
  EXPECT_FALSE(split.full());
  split.Write(1, KeyAt(1, 1), 1);
  EXPECT_TRUE(split.full());
}

}  // namespace
}  // namespace monolith
