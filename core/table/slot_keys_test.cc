#include "table/slot_keys.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "table/slot_ids.h"

namespace monolith {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kNarrowEnd = int64_t{1} << 48;

uint64_t NumberBits(uint64_t number) { return number << kNarrowBits; }
uint64_t WideBits(uint64_t index) { return kWideKey | index << kBelowBucketBits; }

std::vector<int64_t> SomeIds() {
  std::vector<int64_t> ids = {kMin, -kNarrowEnd, -1, 0, 1, kNarrowEnd - 1, kNarrowEnd, int64_t{1} << 54, kMax};
  std::mt19937_64 random(7);
  for (int i = 0; i < 10000; ++i) ids.push_back(static_cast<int64_t>(random() >> random() % 64));
  return ids;
}

TEST(HashTest, UnmixingUndoesMixing) {
  for (const int64_t id : SomeIds()) {
    EXPECT_EQ(Unmix64(Mix64(static_cast<uint64_t>(id))), static_cast<uint64_t>(id));
    EXPECT_EQ(IdOfHash(HashId(id)), id);
    EXPECT_EQ(HashInBucket(BucketOf(id), id), HashId(id)) << "an id in its own bucket is found as ever";
  }
}

TEST(SlotKeysTest, BucketAndKeyAreExactlySlotAndId) {
  std::set<std::pair<uint32_t, int64_t>> seen;
  const std::vector<int64_t> given = SomeIds();
  const std::set<int64_t> ids(given.begin(), given.end());
  const std::vector<std::pair<uint64_t, uint64_t>> slots = {{0, 0}, {7, 1}, {32767, 511}};  // number, index
  for (const auto& [number, index] : slots) {
    for (const int64_t id : ids) {
      const SlotKey made = SlotKeyOf(id, NumberBits(number), WideBits(index));
      EXPECT_TRUE(seen.emplace(made.bucket, made.key).second) << id << " of slot " << number;
      EXPECT_EQ(IdOfSlotKey(made.bucket, made.key), id);
      EXPECT_EQ(IsWideKey(made.key), !IsNarrowId(id));
      if (IsWideKey(made.key)) {
        EXPECT_EQ(WideIndexOf(made.key), index);
        EXPECT_EQ(WithWideIndex(made.key, 9), SlotKeyOf(id, 0, WideBits(9)).key);
        EXPECT_EQ(made.bucket, BucketOf(id)) << "whatever the slot";
      } else {
        EXPECT_EQ(made.key, static_cast<int64_t>(NumberBits(number)) | id) << "as keys were before wide ones";
        EXPECT_EQ(made.bucket, BucketOf(made.key));
      }
    }
  }
  EXPECT_EQ(seen.size(), 3 * ids.size());
}

TEST(SlotKeysTest, PackingMakesTheseKeysAndTellsTheirBuckets) {
  const std::vector<int64_t> ids = SomeIds();
  const std::vector<std::span<const int64_t>> slots = {ids, ids};
  const std::vector<SlotBits> bits = {{0, NumberBits(5), ~uint64_t{0} << 48, WideBits(2)}, {}};
  std::vector<int64_t> keys(2 * ids.size());
  std::vector<uint16_t> buckets(2 * ids.size());
  EXPECT_EQ(PackSlotIds(slots, bits, keys.data(), buckets.data()), -1);
  for (size_t i = 0; i < ids.size(); ++i) {
    const SlotKey expected = SlotKeyOf(ids[i], NumberBits(5), WideBits(2));
    EXPECT_EQ(keys[i], expected.key);
    EXPECT_EQ(buckets[i], expected.bucket);
    EXPECT_EQ(keys[ids.size() + i], ids[i]);
    EXPECT_EQ(buckets[ids.size() + i], BucketOf(ids[i]));
  }
}

}  // namespace
}  // namespace monolith
