#include "table/slot_ids.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace monolith {
namespace {

constexpr uint64_t kUpper = ~uint64_t{0} << 48;
constexpr uint64_t kSeven = uint64_t{7} << 48;

TEST(SlotIdsTest, LaysIdsEndToEndAndWritesTheNumber) {
  const std::vector<int64_t> plain = {5, std::numeric_limits<int64_t>::min(), -1}, packed = {0, 9}, none;
  const std::vector<std::span<const int64_t>> slots = {plain, none, packed};
  const std::vector<SlotBits> bits = {{}, {0, kSeven, kUpper}, {0, kSeven, kUpper}};
  std::vector<int64_t> out(5, 77);
  std::vector<uint16_t> buckets(5);
  EXPECT_EQ(PackSlotIds(slots, bits, out.data(), buckets.data()), -1);
  EXPECT_EQ(out, (std::vector<int64_t>{5, std::numeric_limits<int64_t>::min(), -1, int64_t{7} << 48,
                                       (int64_t{7} << 48) | 9}));
}

TEST(SlotIdsTest, NamesTheFirstSlotWithAnIdThatHasNoRoom) {
  const std::vector<int64_t> good = {1}, negative = {3, -2}, wide = {int64_t{1} << 48};
  const std::vector<SlotBits> bits(3, SlotBits{0, kSeven, kUpper});
  std::vector<int64_t> out(4);
  std::vector<uint16_t> buckets(4);
  EXPECT_EQ(PackSlotIds(std::vector<std::span<const int64_t>>{good, negative, wide}, bits, out.data(), buckets.data()),
            1);
  EXPECT_EQ(PackSlotIds(std::vector<std::span<const int64_t>>{good, wide, negative}, bits, out.data(), buckets.data()),
            1);
}

TEST(SlotIdsTest, TakesIdsThatCarryTheirNumberAndNoOthers) {
  const std::vector<int64_t> own = {(int64_t{7} << 48) | 3}, foreign = {(int64_t{6} << 48) | 3};
  const std::vector<SlotBits> bits = {{kSeven, kSeven, kUpper}};
  int64_t out = 0;
  uint16_t bucket = 0;
  EXPECT_EQ(PackSlotIds(std::vector<std::span<const int64_t>>{own}, bits, &out, &bucket), -1);
  EXPECT_EQ(out, own[0]);
  EXPECT_EQ(PackSlotIds(std::vector<std::span<const int64_t>>{foreign}, bits, &out, &bucket), 0);
}

TEST(SlotIdsTest, ManySlotsOnManyThreadsGiveTheSame) {
  std::mt19937_64 random(1);
  std::vector<std::vector<int64_t>> ids(40);
  std::vector<std::span<const int64_t>> slots;
  std::vector<SlotBits> bits;
  std::vector<int64_t> expected;
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    ids[slot].resize(random() % 3000);
    for (int64_t& id : ids[slot]) id = static_cast<int64_t>(random() & ~kUpper);
    slots.emplace_back(ids[slot]);
    bits.push_back({0, uint64_t{slot} << 48, kUpper});
    for (const int64_t id : ids[slot]) expected.push_back(id | static_cast<int64_t>(uint64_t{slot} << 48));
  }
  std::vector<int64_t> out(expected.size());
  std::vector<uint16_t> buckets(expected.size());
  EXPECT_EQ(PackSlotIds(slots, bits, out.data(), buckets.data()), -1);
  EXPECT_EQ(out, expected);
}

}  // namespace
}  // namespace monolith
