// The same id several times in one call: the last occurrence wins, and nothing is done twice to one row.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "table/group.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

const std::vector<int64_t> kOneTime = {kStartTime};

TEST(GroupDuplicatesTest, AnIdIsErasedOnceHoweverOftenItIsNamed) {
  const std::unique_ptr<Group> group = MakeTestGroup();
  group->FollowHistory(true);
  const std::vector<int64_t> ids = {5, 6, 5, 5, INT64_MIN, 6};
  group->Assign(1, ids, std::vector<float>(ids.size() * kSgdDim, 1.0f), kOneTime, false, 0);
  EXPECT_EQ(group->Ids(1).size(), 3u);
  EXPECT_EQ(group->Erase(1, ids), 3);
  EXPECT_TRUE(group->Ids(1).empty());
  EXPECT_EQ(group->Tombstones(1, 0).size(), 3u);
  EXPECT_EQ(group->Erase(1, ids), 0);
}

TEST(GroupDuplicatesTest, ANewIdGetsOneRowAndItsLastAssignment) {
  const std::unique_ptr<Group> group = MakeTestGroup();
  const std::vector<int64_t> ids(100, 5);
  std::vector<float> rows;
  for (int i = 0; i < 100; ++i) rows.insert(rows.end(), kSgdDim, static_cast<float>(i));
  EXPECT_EQ(group->Assign(1, ids, rows, kOneTime, false, 0), 100);
  EXPECT_EQ(group->Ids(1), std::vector<int64_t>{5});
  EXPECT_EQ(LookupWhole(*group, 1, {5}), std::vector<float>{99.0f});
  group->Assign(1, ids, rows, kOneTime, true, 0);
  EXPECT_EQ(LookupWhole(*group, 1, {5}), std::vector<float>{99.0f + 4950.0f});
}

TEST(GroupDuplicatesTest, AReinitializedIdExistsFromItsFirstOccurrenceOn) {
  const std::unique_ptr<Group> group = MakeTestGroup();
  std::vector<int8_t> status(3, -1);
  group->Reinitialize(1, std::vector<int64_t>{5, 5, 5}, kStartTime, status);
  EXPECT_EQ(status, (std::vector<int8_t>{0, 1, 1}));
  EXPECT_EQ(group->Ids(1).size(), 1u);
}

TEST(GroupDuplicatesTest, AZeroRowGoesAndComesBackInsideOneCall) {
  TableSpec spec("serving");
  spec.serving = true;
  spec.skip_zero = true;
  const Params plain({{"stochastic_rounding", 0}, {"delay_compensation_lambda", 0}});
  spec.AddSegment(1, {"zeros", Params()}, {"sgd", plain}, {"fp32", Params()});
  std::vector<TableSpec> specs;
  specs.push_back(std::move(spec));
  Group group(std::move(specs), nullptr);
  const std::vector<int64_t> ids = {5, 6, 5, 6, 5, 6};
  group.Assign(0, std::vector<int64_t>{5, 6, 7}, std::vector<float>{1, 1, 1}, kOneTime, false, 0);
  group.Assign(0, ids, std::vector<float>{0, 0, 2, 2, 3, 0}, kOneTime, false, 0);
  std::vector<float> values(3);
  EXPECT_EQ(group.Lookup(std::vector<int64_t>{5, 6, 7}, std::vector<int64_t>{0, 3}, values, 0), 2);
  EXPECT_EQ(values, (std::vector<float>{3, 0, 1}));
  EXPECT_EQ(group.Ids(0).size(), 2u);
}

}  // namespace
}  // namespace monolith
