// Rows of slots that share a table and accept any int64: found, read, changed, removed and moved by bucket and key.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "table/cut.h"
#include "table/group_for_test.h"
#include "table/slot_keys.h"

namespace monolith {
namespace {

constexpr int kDim = 16;  // a dim of the fast reader

std::unique_ptr<Group> MakeGroup(std::vector<int32_t> wide_slots) {
  std::vector<TableSpec> specs;
  specs.push_back(MakeTestSpec("shared", kDim,
                               {"sgd", Params({{"stochastic_rounding", 0}, {"delay_compensation_lambda", 0}})}, {}));
  specs[0].SetWideSlots(wide_slots);
  return std::make_unique<Group>(std::move(specs), nullptr);
}

struct Keys {
  std::vector<int64_t> keys;
  std::vector<uint16_t> buckets;
};

// Keys of ids spread over int64, narrow and wide, of one slot.
Keys KeysOf(uint64_t number, uint64_t index, int64_t count) {
  Keys made;
  for (const int64_t id : SpreadIds(count)) {
    const SlotKey key = SlotKeyOf(id, number << kNarrowBits, kWideKey | index << kBelowBucketBits);
    made.keys.push_back(key.key);
    made.buckets.push_back(static_cast<uint16_t>(key.bucket));
  }
  return made;
}

void Assign(Group* group, const Keys& keys, float first) {
  std::vector<float> values;
  for (size_t i = 0; i < keys.keys.size(); ++i) values.insert(values.end(), kDim, first + static_cast<float>(i));
  const int64_t time = kStartTime;
  group->Assign(0, keys.keys, values, {&time, 1}, false, 0, keys.buckets);
}

// The first weight of each row; 0 for a missing one.
std::vector<float> Read(Group* group, const Keys& keys) {
  Plan plan = group->NewPlanOf(0, keys.keys, true, keys.buckets);
  std::vector<float> rows(plan.unique.size() * kDim), found;
  group->Read(plan, rows, 0);
  for (size_t i = 0; i < keys.keys.size(); ++i) found.push_back(rows[static_cast<size_t>(plan.inverse[i]) * kDim]);
  return found;
}

std::vector<float> Ascending(float first, size_t count) {
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) values.push_back(first + static_cast<float>(i));
  return values;
}

constexpr int64_t kMany = 100'000;  // so that indexes grow, and lie on plates

TEST(WideRowsTest, EqualIdsOfSlotsAreKeptApart) {
  const std::unique_ptr<Group> group = MakeGroup({3, 9});
  const Keys first = KeysOf(3, 0, kMany), second = KeysOf(9, 1, kMany);
  Assign(group.get(), first, 1.0f);
  Assign(group.get(), second, 500'000.0f);
  EXPECT_EQ(group->Stats(0).rows, 2 * kMany);
  EXPECT_EQ(Read(group.get(), first), Ascending(1.0f, kMany));
  EXPECT_EQ(Read(group.get(), second), Ascending(500'000.0f, kMany));
}

TEST(WideRowsTest, ExpiryIsThatOfTheSlot) {
  std::vector<TableSpec> specs;
  specs.push_back(MakeTestSpec("shared", kDim,
                               {"sgd", Params({{"stochastic_rounding", 0}, {"delay_compensation_lambda", 0}})}, {}));
  specs[0].SetWideSlots(std::vector<int32_t>{3, 9});
  specs[0].expire_days.Set(100, std::vector<int32_t>{9}, std::vector<int32_t>{1});
  Group group(std::move(specs), nullptr);
  const Keys first = KeysOf(3, 0, 1000), second = KeysOf(9, 1, 1000);
  Assign(&group, first, 1.0f);
  Assign(&group, second, 1.0f);
  EXPECT_EQ(group.Evict(0, kStartTime + 2 * kSecondsPerDay), 1000);
  EXPECT_EQ(Read(&group, first), Ascending(1.0f, 1000));
  EXPECT_EQ(Read(&group, second), std::vector<float>(1000, 0.0f));
  Assign(&group, second, 7.0f);
  EXPECT_EQ(Read(&group, second), Ascending(7.0f, 1000)) << "records are used again";
}

TEST(WideRowsTest, BlocksOfOtherSlotsGetTheIndexThatIsOurs) {
  const std::unique_ptr<Group> source = MakeGroup({3, 5, 9});
  Assign(source.get(), KeysOf(3, 0, 5000), 1.0f);
  Assign(source.get(), KeysOf(5, 1, 5000), 10'000.0f);
  Assign(source.get(), KeysOf(9, 2, 5000), 20'000.0f);
  std::vector<std::string> blocks;
  const std::unique_ptr<Cut> cut = source->OpenCut();
  const std::unique_ptr<BlockSource> reading = cut->Blocks(0, kNumBuckets, {.state = true});
  for (std::string block; reading->Next(&block);) blocks.push_back(block);
  const std::vector<std::string_view> bytes(blocks.begin(), blocks.end());
  const std::vector<RowBlockView> views = RowBlockView::AllOf(bytes);
  const std::vector<std::string> schema = {source->table(0).spec.SchemaText()};

  const std::unique_ptr<Group> target = MakeGroup({9, 11});
  target->CheckBlocks(views, 0, kNumBuckets, schema);
  target->Load(views, 0, kNumBuckets, schema);
  EXPECT_EQ(Read(target.get(), KeysOf(9, 0, 5000)), Ascending(20'000.0f, 5000));
  for (const float value : Read(target.get(), KeysOf(11, 1, 5000))) EXPECT_EQ(value, 0.0f);

  const std::unique_ptr<Group> plain = MakeGroup({});
  EXPECT_THROW(plain->CheckBlocks(views, 0, kNumBuckets, schema), Error);
  EXPECT_THROW(target->CheckBlocks(views, 0, kNumBuckets, {}), Error) << "another digest";
}

TEST(WideRowsTest, KeysWithoutBucketsAreRefused) {
  const std::unique_ptr<Group> group = MakeGroup({3});
  const std::vector<int64_t> keys = {5, -5};
  std::vector<uint8_t> found(2);
  EXPECT_THROW(group->NewPlanOf(0, keys, true), Error);
  EXPECT_THROW(group->Contains(0, keys, found), Error);
  EXPECT_THROW(group->Erase(0, keys), Error);
  EXPECT_THROW(group->Touch(0, keys), Error);
  EXPECT_EQ(group->Contains(0, std::vector<int64_t>{5, 6}, found), 0);
}

}  // namespace
}  // namespace monolith
