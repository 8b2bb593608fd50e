// Plans split into the parts of their owners, sent, and merged there; and words that are no part.
#include "table/plan_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "table/group_for_test.h"
#include "table/plan_merge.h"

namespace monolith {
namespace {

const std::vector<int> kDims = {2, 5};
constexpr uint8_t kNarrow[] = {0, 0};
constexpr BucketRange kAll{0, kNumBuckets};

Plan TwoTables(const std::vector<int64_t>& ids, std::span<const uint16_t> buckets = {}) {
  const auto count = static_cast<int64_t>(ids.size());
  return MakePlan(ids, std::vector<int64_t>{0, count / 3, count}, true, buckets);
}

// The input of an owner: its part of every plan, in the order of the plans.
struct Received {
  std::vector<int64_t> words, num_words;
};

Received Exchange(const std::vector<Plan>& plans, std::span<const BucketRange> owners, size_t owner, bool counts) {
  Received received;
  for (const Plan& plan : plans) {
    const PlanParts parts = PartsOf(plan, kDims, owners, counts);
    int64_t first = 0;
    for (size_t k = 0; k < owner; ++k) first += parts.num_words[k];
    const int64_t* begin = parts.words.data() + first;
    received.words.insert(received.words.end(), begin, begin + parts.num_words[owner]);
    received.num_words.push_back(parts.num_words[owner]);
  }
  return received;
}

TEST(PlanPartsTest, OwnersPutTogetherWhatTheRanksAskFor) {
  std::mt19937_64 random(11);
  const std::vector<int64_t> pool = SpreadIds(4000);
  std::vector<Plan> plans;
  for (const size_t size : {9000, 0, 4000, 7}) plans.push_back(TwoTables(Draw(&random, size, pool)));
  std::vector<const Plan*> pointers;
  for (const Plan& plan : plans) pointers.push_back(&plan);
  const MergedPlans all = MergePlans(pointers, kDims);
  const std::vector<BucketRange> owners = {{0, 0}, {0, 300}, {300, 1024}};
  int64_t keys = 0;
  for (size_t owner = 0; owner < owners.size(); ++owner) {
    const Received received = Exchange(plans, owners, owner, true);
    const MergedPlans merged = MergeParts(received.words, received.num_words, kDims, kNarrow, owners[owner]);
    for (int64_t u = 0; u < merged.plan.num_unique(); ++u, ++keys) {
      ASSERT_EQ(merged.plan.unique[u], all.plan.unique[keys]);
      ASSERT_EQ(merged.plan.CountOf(u), all.plan.CountOf(keys));
      ASSERT_EQ(merged.plan.inverse[merged.plan.order[u]], u);
    }
    EXPECT_EQ(merged.plan.num_ids(), merged.plan.num_unique());
    EXPECT_EQ(merged.plan.table_splits.back(), merged.plan.num_unique());
    for (size_t r = 0; r < plans.size(); ++r) {
      const SlicedPlan sliced(plans[r], kDims, owners);
      const PlanSlice& slice = sliced.at(static_cast<int>(owner));
      EXPECT_EQ(merged.sources[r].num_keys(), static_cast<int64_t>(slice.keys.size()));
      EXPECT_EQ(merged.sources[r].num_values(), slice.num_values);
    }
  }
  EXPECT_EQ(keys, all.plan.num_unique());
}

class ReadMergedTest : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  void SetUp() override { SetNumThreads(std::get<0>(GetParam())); }
  void TearDown() override { SetNumThreads(threads_before_); }

 private:
  const int threads_before_ = NumThreads();
};
INSTANTIATE_TEST_SUITE_P(ThreadsAndIds, ReadMergedTest,
                         ::testing::Combine(::testing::Values(1, 4), ::testing::Values(60, 9000)));

TEST_P(ReadMergedTest, EverySourceGetsTheRowsThatItAskedFor) {
  const std::unique_ptr<Group> group = MakeTestGroup();
  std::mt19937_64 random(2);
  const std::vector<int64_t> pool = SpreadIds(6000);
  for (int step = 1; step < 4; ++step) ApplyStep(group.get(), Draw(&random, 4000, pool), 0.25f * step, 5, false);
  std::vector<Plan> plans;
  for (int r = 0; r < 3; ++r)
    plans.push_back(TwoTables(Draw(&random, r == 1 ? 0 : static_cast<size_t>(std::get<1>(GetParam())), pool)));
  std::vector<float> expected;
  std::vector<const Plan*> pointers;
  int64_t found = 0;
  for (Plan& plan : plans) {
    std::vector<float> rows(static_cast<size_t>(group->NumValues(plan)));
    group->Read(plan, rows, 0);
    expected.insert(expected.end(), rows.begin(), rows.end());
    pointers.push_back(&plan);
  }
  MergedPlans merged = group->Merge(pointers);
  std::vector<float> all(static_cast<size_t>(merged.num_values()));
  found = group->Read(merged.plan, all, 0);
  const std::vector<uint32_t> hints(merged.plan.hints.data(), merged.plan.hints.data() + merged.plan.hints.size());
  merged = group->Merge(pointers);
  std::vector<float> values(expected.size(), 99.0f);
  EXPECT_EQ(group->ReadMerged(merged, values, 0), found);
  EXPECT_EQ(values, expected);
  EXPECT_EQ(std::vector<uint32_t>(merged.plan.hints.data(), merged.plan.hints.data() + merged.plan.hints.size()),
            hints);
  EXPECT_GT(std::count(values.begin(), values.end(), 0.0f), 0);
  EXPECT_LT(std::count(values.begin(), values.end(), 0.0f), static_cast<int64_t>(values.size()));
  values.pop_back();
  EXPECT_THROW(group->ReadMerged(merged, values, 0), Error);
}

TEST(PlanPartsTest, SizesAreThoseOfTheExchanges) {
  const Plan plan = TwoTables(IdsInBuckets(60, 300, 310));
  const std::vector<BucketRange> owners = {{0, 305}, {305, 305}, {305, 1024}};
  const PlanParts parts = PartsOf(plan, kDims, owners, false);
  EXPECT_EQ(parts.num_keys[0] + parts.num_keys[2], 60);
  EXPECT_EQ(parts.num_keys[1], 0);
  EXPECT_EQ(parts.num_words[1], 0);
  EXPECT_EQ(parts.num_values[0] + parts.num_values[2], 20 * 2 + 40 * 5);
  EXPECT_EQ(parts.num_words[0] + parts.num_words[2], static_cast<int64_t>(parts.words.size()));
}

TEST(PlanPartsTest, WithoutCountsEveryIdCountsOncePerRank) {
  std::vector<Plan> plans;
  for (int r = 0; r < 2; ++r) plans.push_back(TwoTables({7, 7, 7, 7, 7, 7}));
  Received received = Exchange(plans, std::vector<BucketRange>{kAll}, 0, false);
  MergedPlans merged = MergeParts(received.words, received.num_words, kDims, kNarrow, kAll);
  EXPECT_EQ(merged.plan.CountOf(0), 1);
  received = Exchange(plans, std::vector<BucketRange>{kAll}, 0, true);
  merged = MergeParts(received.words, received.num_words, kDims, kNarrow, kAll);
  EXPECT_EQ(merged.plan.CountOf(0), 4);
  EXPECT_EQ(merged.plan.CountOf(1), 8);
}

TEST(PlanPartsTest, TimesOfAnIdAreTheNewestOfAllRanks) {
  const std::vector<int64_t> ids = IdsInBuckets(3, 8, 9);
  std::vector<Plan> plans;
  plans.push_back(TwoTables({ids[0], ids[1], ids[2]}));  // table 0: the first id, table 1: the others
  plans.push_back(TwoTables({ids[0], ids[2], ids[2]}));
  plans.push_back(TwoTables({}));
  const Received received = Exchange(plans, std::vector<BucketRange>{kAll}, 0, false);
  const MergedPlans merged = MergeParts(received.words, received.num_words, kDims, kNarrow, kAll);
  const std::vector<int64_t> first = {5, 6, 7}, second = {4, 9}, none = {}, one = {8};
  using Given = std::vector<std::span<const int64_t>>;
  EXPECT_EQ(TimesOfIds(merged, Given{first, second, none}), (std::vector<int64_t>{5, 6, 9}));
  EXPECT_EQ(TimesOfIds(merged, Given{first, one, none}), (std::vector<int64_t>{8, 6, 8}));
  EXPECT_EQ(TimesOfIds(merged, Given{one, one, none}), one);
  EXPECT_THROW(TimesOfIds(merged, Given{first, first, none}), Error);
  EXPECT_THROW(TimesOfIds(merged, Given{first, none, none}), Error);
  EXPECT_THROW(TimesOfInputs(merged, Given{one, one, one}), Error);
}

TEST(PlanPartsTest, NewestTimesAreOfTheDistinctIds) {
  const std::vector<int64_t> ids = IdsInBuckets(2, 8, 9);
  const Plan plan = TwoTables({ids[0], ids[1], ids[0], ids[0], ids[1], ids[0]});
  const std::vector<int64_t> times = {1, 2, 3, 4, 5, 6}, one = {9}, wrong = {1, 2};
  EXPECT_EQ(NewestTimes(plan, times), (std::vector<uint32_t>{1, 2, 6, 5}));
  EXPECT_EQ(NewestTimes(plan, one), (std::vector<uint32_t>{9}));
  EXPECT_THROW(NewestTimes(plan, wrong), Error);
}

TEST(PlanPartsTest, OwnersMustHaveAllBuckets) {
  const Plan plan = TwoTables({1, 2, 3});
  for (const auto& owners : std::vector<std::vector<BucketRange>>{
           {}, {{0, 1000}}, {{1, 1024}}, {{0, 500}, {501, 1024}}, {{0, 500}, {400, 1024}}, {{0, 2000}}})
    EXPECT_THROW(PartsOf(plan, kDims, owners, false), Error);
  const Plan apart = MakePlan(std::vector<int64_t>{1, 1}, std::vector<int64_t>{0, 1, 2}, false);
  EXPECT_THROW(PartsOf(apart, kDims, std::vector<BucketRange>{kAll}, false), Error);
}

std::string WhyRefused(const std::vector<int64_t>& words, std::vector<int64_t> num_words = {},
                       BucketRange buckets = kAll) {
  if (num_words.empty()) num_words = {0, static_cast<int64_t>(words.size())};
  try {
    MergeParts(words, num_words, kDims, kNarrow, buckets);
  } catch (const Error& error) {
    return error.code() == Code::kInvalidArgument ? error.what() : "other code";
  }
  return "";
}

constexpr int64_t Cell(int64_t cell, int64_t count) { return cell | count << 32; }

TEST(PlanPartsTest, HostileWordsAreRefused) {
  const std::vector<int64_t> ids = IdsInBuckets(3, 8, 9);
  const int64_t a = ids[0], b = ids[1], c = ids[2];
  const auto is_refused = [](const std::string& why) { return why.starts_with("part 1: "); };
  EXPECT_EQ(WhyRefused({3, 1, 0, a, b, c, Cell(16, 3)}), "");
  EXPECT_EQ(WhyRefused({3, 1, 1, a, b, c, Cell(16, 3), Cell(1, 1), 1}), "");
  EXPECT_TRUE(is_refused(WhyRefused({1})));
  EXPECT_TRUE(is_refused(WhyRefused({3, 1, 0, a, b, Cell(16, 3)})));                          // a word is missing
  EXPECT_TRUE(is_refused(WhyRefused({3, 1, 0, a, b, c, Cell(16, 3), 0})));                    // one too many
  EXPECT_TRUE(is_refused(WhyRefused({-1, 1, 0, Cell(16, 3)})));                               // false sizes
  EXPECT_TRUE(is_refused(WhyRefused({std::numeric_limits<int64_t>::max(), 4, 0, a, b, c})));  // and overflow
  EXPECT_TRUE(is_refused(WhyRefused({3, 1, 2, a, b, c, Cell(16, 3)})));                       // no such flag
  EXPECT_TRUE(is_refused(WhyRefused({3, 1, 0, a, b, c, Cell(16, 2)})));                       // a key of no cell
  EXPECT_TRUE(is_refused(WhyRefused({3, 1, 0, a, b, c, Cell(16, 0xffffffff)})));              // a cell without keys
  EXPECT_TRUE(is_refused(WhyRefused({3, 2, 0, a, b, c, Cell(17, 1), Cell(16, 2)})));          // descending
  EXPECT_TRUE(is_refused(WhyRefused({3, 2, 0, a, b, c, Cell(16, 1), Cell(16, 2)})));          // twice
  EXPECT_TRUE(is_refused(WhyRefused({3, 1, 0, a, b, c, Cell(18, 3)})));                       // another bucket
  EXPECT_TRUE(is_refused(WhyRefused({3, 1, 0, a, b, c, Cell(2048, 3)})));                     // no cell
  EXPECT_TRUE(is_refused(WhyRefused({3, 1, 0, a, b, a, Cell(16, 3)})));                       // an id twice
  EXPECT_TRUE(is_refused(WhyRefused({3, 1, 1, a, b, c, Cell(16, 3), Cell(1, 0), 1})));        // that did not occur
  EXPECT_TRUE(is_refused(WhyRefused({3, 1, 0, a, b, c, Cell(16, 3)}, {}, {0, 8})));           // not the owner's
  EXPECT_NE(WhyRefused({3, 1, 0, a, b, c, Cell(16, 3)}, {-1, 8}), "");
  EXPECT_NE(WhyRefused({3, 1, 0, a, b, c, Cell(16, 3)}, {1, 8}), "");
  const std::vector<int64_t> twice = {1, 1, 0, a, Cell(16, 1), 2, 1, 0, a, a, Cell(16, 2)};
  EXPECT_TRUE(is_refused(WhyRefused(twice, {5, 6})));  // also if another rank has the id
}

TEST(PlanPartsTest, CountsOfStrangersDoNotOverflow) {
  const int64_t id = IdsInBuckets(1, 8, 9)[0], most = std::numeric_limits<int32_t>::max();
  const std::vector<int64_t> words = {1, 1, 1, id, Cell(16, 1), most, 1, 1, 1, id, Cell(16, 1), most};
  const MergedPlans merged = MergeParts(words, std::vector<int64_t>{6, 6}, kDims, kNarrow, kAll);
  EXPECT_EQ(merged.plan.CountOf(0), most);
}

TEST(PlanPartsTest, RandomWordsAreRefusedOrAPlan) {
  std::mt19937_64 random(5);
  const std::vector<int64_t> ids = IdsInBuckets(40, 8, 12);
  const Plan plan = TwoTables(ids);
  const PlanParts parts = PartsOf(plan, kDims, std::vector<BucketRange>{kAll}, true);
  const std::vector<int64_t> good(parts.words.data(), parts.words.data() + parts.words.size());
  EXPECT_EQ(WhyRefused(good), "");
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<int64_t> words = good;
    for (size_t left = 1 + random() % 3; left > 0; --left)
      words[random() % words.size()] ^= int64_t{1} << (random() % 64);
    if (random() % 8 == 0) words.resize(random() % words.size());
    refused += !WhyRefused(words).empty();
  }
  EXPECT_GT(refused, 2000);
}

TEST(PlanPartsTest, AWideKeyStaysInTheBucketItComesIn) {
  const int64_t key = std::numeric_limits<int64_t>::min() + 5;
  const std::vector<uint16_t> buckets = {static_cast<uint16_t>((BucketOf(key) + 1) % kNumBuckets)};
  const Plan plan = TwoTables({key}, buckets);
  const PlanParts parts = PartsOf(plan, kDims, std::vector<BucketRange>{kAll}, false);
  const std::span<const int64_t> words(parts.words.data(), parts.words.size());
  const uint8_t wide[] = {0, 1};
  const MergedPlans merged = MergeParts(words, parts.num_words, kDims, wide, kAll);
  EXPECT_EQ(merged.plan.buckets[0], buckets[0]);
  EXPECT_THROW(MergeParts(words, parts.num_words, kDims, kNarrow, kAll), Error);
}

}  // namespace
}  // namespace monolith
