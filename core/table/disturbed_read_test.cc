// A read without locks is repeated if a writer interfered: every row that is returned is intact.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "table/bucket_lock.h"
#include "table/fast_row_reader.h"
#include "table/first_touch_for_test.h"
#include "table/group.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

constexpr float kOld = 1.0f, kNew = 2.0f;

class DisturbedReadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kReadersLock) GTEST_SKIP() << "under the thread sanitizer readers take the lock";
  }
};

class DisturbedFastReadTest : public DisturbedReadTest, public ::testing::WithParamInterface<int> {};

std::unique_ptr<Group> MakeGroup(int dim) {
  const Kernel sgd = {"sgd", Params({{"stochastic_rounding", 0}, {"delay_compensation_lambda", 0}})};
  std::vector<TableSpec> specs;
  specs.push_back(MakeTestSpec("rows", dim, sgd, {}));
  return std::make_unique<Group>(std::move(specs), nullptr);
}

void AssignAll(Group* group, const std::vector<int64_t>& ids, float value) {
  const std::vector<float> rows(ids.size() * static_cast<size_t>(group->table(0).spec.dim()), value);
  group->Assign(0, ids, rows, std::vector<int64_t>{kStartTime}, false, 0);
}

TEST_P(DisturbedFastReadTest, WhatAWriterChangedMeanwhileIsReadAgain) {
  const int dim = GetParam();
  const std::unique_ptr<Group> group = MakeGroup(dim);
  const std::vector<int64_t> ids = IdsInBuckets(3000, 7, 9);  // few buckets: their indexes are large with few rows
  AssignAll(group.get(), ids, kOld);
  ASSERT_TRUE(FastRowReader<16>(group->table(0)).Suits(BucketOf(ids[0])));
  // The first half of the rows is written before the writer runs, the second half after it.
  FirstTouch memory(1, [&] { AssignAll(group.get(), ids, kNew); });
  const std::span<float> all = memory.As<float>();
  const size_t count = all.size() / static_cast<size_t>(dim);
  const std::span<float> values = all.last(count * static_cast<size_t>(dim));
  memory.Arm();
  const std::vector<int64_t> some(ids.begin(), ids.begin() + static_cast<int64_t>(count));
  group->Lookup(some, std::vector<int64_t>{0, static_cast<int64_t>(count)}, values, 0);
  ASSERT_TRUE(memory.was_touched());
  EXPECT_EQ(std::count(values.begin(), values.end(), kNew), static_cast<int64_t>(values.size()));
}

// Dims of the fast reader, which restarts with all rows.
INSTANTIATE_TEST_SUITE_P(Dims, DisturbedFastReadTest, ::testing::Values(8, 16, 32, 64));

// The general reader, in the middle of a row.
TEST_F(DisturbedReadTest, AWideRowIsOfOneWrite) {
  const std::unique_ptr<Group> group = MakeGroup(2048);
  AssignAll(group.get(), {5}, kOld);
  FirstTouch memory(1, [&] { AssignAll(group.get(), {5}, kNew); });
  const std::span<float> row = memory.As<float>().first(2048);
  memory.Arm();
  group->Lookup(std::vector<int64_t>{5}, std::vector<int64_t>{0, 1}, row, 0);
  ASSERT_TRUE(memory.was_touched());
  EXPECT_EQ(std::count(row.begin(), row.end(), kNew), 2048);
}

}  // namespace
}  // namespace monolith
