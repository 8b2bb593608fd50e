// The fast reader returns what the general one returns, alone and with concurrent writers. All rows lie in two buckets,
// so that their indexes are large with few rows; ids of other buckets find none.
#include "table/fast_row_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "table/bucket_lock.h"
#include "table/group.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

constexpr int64_t kRows = 3000;

std::unique_ptr<Group> MakeGroup(int dim) {
  const Kernel sgd = {"sgd", Params({{"stochastic_rounding", 0}, {"delay_compensation_lambda", 0}})};
  std::vector<TableSpec> specs;
  specs.push_back(MakeTestSpec("rows", dim, sgd, {}));
  return std::make_unique<Group>(std::move(specs), nullptr);
}

void AssignAll(Group* group, const std::vector<int64_t>& ids, float value, bool each_its_own) {
  const int dim = group->table(0).spec.dim();
  std::vector<float> rows;
  for (size_t i = 0; i < ids.size(); ++i)
    rows.insert(rows.end(), dim, value + (each_its_own ? static_cast<float>(i) : 0.0f));
  group->Assign(0, ids, rows, std::vector<int64_t>{kStartTime}, false, 0);
}

// Expects all weights of a row to be equal and returns one for each id.
std::vector<float> Lookup(const Group& group, const std::vector<int64_t>& ids) {
  const auto dim = static_cast<size_t>(group.table(0).spec.dim());
  std::vector<float> values(ids.size() * dim), firsts;
  group.Lookup(ids, std::vector<int64_t>{0, static_cast<int64_t>(ids.size())}, values, 0);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto row = std::span(values).subspan(i * dim, dim);
    EXPECT_EQ(static_cast<size_t>(std::count(row.begin(), row.end(), row[0])), dim) << "torn row of id " << ids[i];
    firsts.push_back(row[0]);
  }
  return firsts;
}

class FastRowReaderTest : public ::testing::TestWithParam<int> {};

TEST_P(FastRowReaderTest, ReadsWhatIsThereAndZerosElsewhere) {
  const int dim = GetParam();
  const std::unique_ptr<Group> group = MakeGroup(dim);
  const std::vector<int64_t> known = IdsInBuckets(kRows, 7, 9), absent = IdsInBuckets(500, 7, 9, 1'000'000'000),
                             elsewhere = IdsInBuckets(100, 500, 600);
  AssignAll(group.get(), known, 1.0f, true);
  AssignAll(group.get(), {elsewhere[0]}, -5.0f, false);
  ASSERT_TRUE(FastRowReader<16>(group->table(0)).Suits(BucketOf(known[0])));
  ASSERT_FALSE(FastRowReader<16>(group->table(0)).Suits(BucketOf(elsewhere[0])));
  std::mt19937_64 random(5);
  for (const size_t count : {16u, 17u, 1023u, 1024u, 1025u, 1040u, 9000u}) {
    std::vector<int64_t> ids(count);
    std::vector<float> expected(count);
    for (size_t i = 0; i < count; ++i) {
      const size_t place = random() % known.size();
      const uint64_t kind = random() % 10;
      ids[i] = kind == 0 ? absent[place % absent.size()] : kind == 1 ? elsewhere[place % 100] : known[place];
      expected[i] = kind == 0 ? 0.0f : kind == 1 ? (place % 100 == 0 ? -5.0f : 0.0f) : 1.0f + static_cast<float>(place);
    }
    ids[0] = known[0], expected[0] = 1.0f;  // the id by which the table is judged
    ASSERT_EQ(Lookup(*group, ids), expected);
    Plan plan = MakePlan(ids, std::vector<int64_t>{0, static_cast<int64_t>(count)}, true);
    std::vector<float> values(static_cast<size_t>(group->NumValues(plan)));
    group->Read(plan, values, 0);
    for (size_t i = 0; i < count; ++i) {
      const auto unique = static_cast<size_t>(plan.inverse[i]);
      ASSERT_EQ(values[unique * dim], expected[i]);
      ASSERT_EQ(plan.hints[unique] == kNoRow, expected[i] == 0.0f);
    }
  }
  group->Erase(0, known);
  EXPECT_EQ(Lookup(*group, known), std::vector<float>(known.size(), 0.0f));
}

INSTANTIATE_TEST_SUITE_P(Dims, FastRowReaderTest, ::testing::Values(8, 16, 32, 64, 5));

// Writers start and stop, so that reads begin without a writer and end with one.
TEST(FastRowReaderStressTest, RowsAreReadWholeBesideWritersThatComeAndGo) {
  constexpr int kWrites = kReadersLock ? 30 : 600;
  const std::unique_ptr<Group> group = MakeGroup(64);
  const std::vector<int64_t> ids = IdsInBuckets(kRows, 7, 9);
  AssignAll(group.get(), ids, 1.0f, false);
  std::atomic<bool> writing{true};
  RunThreads(3, [&](int t) {
    std::mt19937_64 random(static_cast<uint64_t>(t));
    if (t > 0) {
      while (writing) {
        for (const float value : Lookup(*group, Draw(&random, 3000, ids))) ASSERT_GE(value, 0.0f);
      }
      return;
    }
    for (int write = 0; write < kWrites; ++write) {
      const std::vector<int64_t> some = Draw(&random, 1000, ids);
      write % 8 == 0 ? static_cast<void>(group->Erase(0, some))
                     : AssignAll(group.get(), some, static_cast<float>(write), false);
      for (int pause = static_cast<int>(random() % 50); pause > 0; --pause) std::this_thread::yield();
    }
    writing = false;
  });
}

}  // namespace
}  // namespace monolith
