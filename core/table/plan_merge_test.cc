// Merged plans: equal to MakePlan() of all inputs end to end, with rows in the order of the sources.
#include "table/plan_merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "table/group_for_test.h"
#include "table/plan_parts.h"

namespace monolith {
namespace {

// The input of one source: ids table by table, and their buckets if the ids do not determine them.
struct SourceInput {
  std::vector<int64_t> ids, splits;
  std::vector<uint16_t> buckets;

  Plan ToPlan() const { return MakePlan(ids, splits, true, buckets); }
};

SourceInput DrawInput(std::mt19937_64* random, size_t num_tables, size_t most_ids, bool wide) {
  SourceInput input;
  input.splits = {0};
  const std::vector<int64_t> pool = SpreadIds(static_cast<int64_t>(most_ids) + 2);
  for (size_t table = 0; table < num_tables; ++table) {
    const std::vector<int64_t> ids = Draw(random, (*random)() % (most_ids + 1), pool);
    input.ids.insert(input.ids.end(), ids.begin(), ids.end());
    input.splits.push_back(static_cast<int64_t>(input.ids.size()));
  }
  for (const int64_t id : input.ids) {
    if (wide) input.buckets.push_back(id < 0 ? static_cast<uint16_t>((id & 7) * 100) : BucketOf(id));
  }
  return input;
}

SourceInput EndToEnd(const std::vector<SourceInput>& inputs, size_t num_tables) {
  SourceInput all;
  all.splits = {0};
  const bool wide = std::any_of(inputs.begin(), inputs.end(), [](const auto& each) { return !each.buckets.empty(); });
  for (size_t table = 0; table < num_tables; ++table) {
    for (const SourceInput& input : inputs) {
      for (int64_t i = input.splits[table]; i < input.splits[table + 1]; ++i) {
        all.ids.push_back(input.ids[i]);
        if (wide) all.buckets.push_back(input.buckets.empty() ? BucketOf(input.ids[i]) : input.buckets[i]);
      }
    }
    all.splits.push_back(static_cast<int64_t>(all.ids.size()));
  }
  return all;
}

template <typename T>
std::vector<T> VectorOf(const Buffer<T>& buffer) {
  return {buffer.data(), buffer.data() + buffer.size()};
}

void ExpectSame(const Plan& got, const Plan& expected) {
  EXPECT_EQ(got.num_tables, expected.num_tables);
  EXPECT_EQ(got.table_splits, expected.table_splits);
  EXPECT_EQ(VectorOf(got.unique), VectorOf(expected.unique));
  EXPECT_EQ(VectorOf(got.buckets), VectorOf(expected.buckets));
  EXPECT_EQ(VectorOf(got.splits), VectorOf(expected.splits));
  EXPECT_EQ(VectorOf(got.inverse), VectorOf(expected.inverse));
  EXPECT_EQ(VectorOf(got.starts), VectorOf(expected.starts));
  EXPECT_EQ(VectorOf(got.order), VectorOf(expected.order));
  for (int64_t u = 0; u < expected.num_unique(); ++u) ASSERT_EQ(got.CountOf(u), expected.CountOf(u));
}

std::vector<const Plan*> PointersTo(const std::vector<Plan>& plans) {
  std::vector<const Plan*> pointers;
  for (const Plan& plan : plans) pointers.push_back(&plan);
  return pointers;
}

int64_t CellOfPlace(const Plan& plan, int64_t place) {
  return std::upper_bound(plan.splits.data(), plan.splits.data() + plan.splits.size(), place) - plan.splits.data() - 1;
}

// The rows of a plan, one after another, by (cell, id).
using RowMap = std::map<std::pair<int64_t, int64_t>, std::vector<float>>;

std::vector<float> DrawRows(std::mt19937_64* random, const Plan& plan, const std::vector<int>& dims) {
  const float some[] = {-0.0f, 0.0f, 1.5f, -3.25f, 1e-40f, 7.0f};
  std::vector<float> rows;
  for (int64_t place = 0; place < plan.num_unique(); ++place) {
    for (int i = 0; i < dims[CellOfPlace(plan, place) % dims.size()]; ++i) rows.push_back(some[(*random)() % 6]);
  }
  return rows;
}

template <typename Visit>
void ForRows(const Plan& plan, const std::vector<int>& dims, std::span<const float> rows, const Visit& visit) {
  size_t at = 0;
  for (int64_t place = 0; place < plan.num_unique(); ++place) {
    const int64_t cell = CellOfPlace(plan, place);
    const auto dim = static_cast<size_t>(dims[cell % dims.size()]);
    visit(std::pair(cell, plan.unique[place]), rows.subspan(at, dim));
    at += dim;
  }
  EXPECT_EQ(at, rows.size());
}

std::vector<float> RowsOfPlan(const Plan& plan, const std::vector<int>& dims, const RowMap& rows) {
  std::vector<float> flat;
  for (int64_t place = 0; place < plan.num_unique(); ++place) {
    const std::vector<float>& row = rows.at({CellOfPlace(plan, place), plan.unique[place]});
    EXPECT_EQ(static_cast<int>(row.size()), dims[CellOfPlace(plan, place) % dims.size()]);
    flat.insert(flat.end(), row.begin(), row.end());
  }
  return flat;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

struct Case {
  std::vector<int> dims;
  std::vector<SourceInput> inputs;
  std::vector<Plan> plans;
};

Case DrawCase(std::mt19937_64* random) {
  Case drawn;
  const size_t num_tables = 1 + (*random)() % 3;
  const int some[] = {1, 3, 4, 16, 17, 33};
  for (size_t table = 0; table < num_tables; ++table) drawn.dims.push_back(some[(*random)() % 6]);
  const size_t sizes[] = {0, 5, 300, 6000};
  for (size_t left = 1 + (*random)() % 4; left > 0; --left)
    drawn.inputs.push_back(DrawInput(random, num_tables, sizes[(*random)() % 4], (*random)() % 3 == 0));
  for (const SourceInput& input : drawn.inputs) drawn.plans.push_back(input.ToPlan());
  return drawn;
}

class PlanMergeTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { SetNumThreads(GetParam()); }
  void TearDown() override { SetNumThreads(threads_before_); }

 private:
  const int threads_before_ = NumThreads();
};
INSTANTIATE_TEST_SUITE_P(Threads, PlanMergeTest, ::testing::Values(1, 4));

TEST_P(PlanMergeTest, ThePlanOfAllIsThatOfTheInputsEndToEnd) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 30; ++round) {
    const Case drawn = DrawCase(&random);
    const MergedPlans merged = MergePlans(PointersTo(drawn.plans), drawn.dims);
    ExpectSame(merged.plan, EndToEnd(drawn.inputs, drawn.dims.size()).ToPlan());
    EXPECT_EQ(merged.plan.counts.size(), 0u);
    for (size_t r = 0; r < drawn.plans.size(); ++r) {
      const MergedSource& source = merged.source(static_cast<int64_t>(r));
      ASSERT_EQ(source.num_keys(), drawn.plans[r].num_unique());
      for (int64_t key = 0; key < source.num_keys(); ++key) {
        ASSERT_EQ(merged.plan.unique[source.places[key]], drawn.plans[r].unique[key]);
        ASSERT_EQ(CellOfPlace(merged.plan, source.places[key]), CellOfPlace(drawn.plans[r], key));
      }
    }
  }
}

TEST_P(PlanMergeTest, RowsAreAddedInTheOrderOfTheSources) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 30; ++round) {
    const Case drawn = DrawCase(&random);
    const MergedPlans merged = MergePlans(PointersTo(drawn.plans), drawn.dims);
    const bool scaled = round % 2 == 0;
    RowMap sums, firsts;
    std::vector<std::vector<float>> rows;
    std::vector<float> scales;
    for (size_t r = 0; r < drawn.plans.size(); ++r) {
      rows.push_back(DrawRows(&random, drawn.plans[r], drawn.dims));
      scales.push_back(r == 1 ? 1.0f : 0.3f + 0.1f * static_cast<float>(r));
      ForRows(drawn.plans[r], drawn.dims, rows.back(), [&](const auto& key, std::span<const float> row) {
        firsts.try_emplace(key, row.begin(), row.end());
        std::vector<float> own(row.begin(), row.end());
        for (float& value : own) value *= scaled ? scales[r] : 1.0f;
        const auto [found, is_new] = sums.try_emplace(key, own);
        for (size_t i = 0; !is_new && i < own.size(); ++i) found->second[i] += own[i];
      });
    }
    const std::vector<Values> values(rows.begin(), rows.end());
    std::vector<float> out(static_cast<size_t>(merged.num_values()), 99.0f);
    EXPECT_TRUE(SumRows(merged, values, scaled ? scales : std::vector<float>(), out));
    EXPECT_TRUE(SameBits(out, RowsOfPlan(merged.plan, drawn.dims, sums)));
    FirstRows(merged, values, out);
    EXPECT_TRUE(SameBits(out, RowsOfPlan(merged.plan, drawn.dims, firsts)));
    for (size_t r = 0; r < drawn.plans.size(); ++r) {
      std::vector<float> own(static_cast<size_t>(merged.sources[r].num_values()), 99.0f);
      GatherBuckets(merged, static_cast<int64_t>(r), {0, kNumBuckets}, out.data(), own.data());
      EXPECT_TRUE(SameBits(own, RowsOfPlan(drawn.plans[r], drawn.dims, firsts)));
    }
  }
}

TEST(PlanMergeRowsTest, SumsThatAreNotFiniteAreTold) {
  const std::vector<int64_t> ids = {1, 2}, splits = {0, 2};
  std::vector<Plan> plans;
  for (int i = 0; i < 2; ++i) plans.push_back(MakePlan(ids, splits, true));
  const MergedPlans merged = MergePlans(PointersTo(plans), {2});
  const float big = std::numeric_limits<float>::max();
  const std::vector<float> large = {1, 1, 1, big}, nan = {1, NAN, 1, 1}, ones(4, 1.0f);
  std::vector<float> out(4);
  const auto sum = [&](const std::vector<float>& a, const std::vector<float>& b, std::vector<float> scales = {}) {
    return SumRows(merged, std::vector<Values>{a, b}, scales, out);
  };
  EXPECT_TRUE(sum(large, ones));
  EXPECT_FALSE(sum(large, large));
  EXPECT_TRUE(sum(large, large, {0.5f, 0.5f}));
  EXPECT_FALSE(sum(ones, nan));
  EXPECT_FALSE(sum(ones, ones, {1.0f, INFINITY}));
}

TEST(PlanMergeRowsTest, TimesGoWithTheirInputs) {
  const std::vector<int64_t> first = {1, 2, 3}, second = {3, 4}, splits = {0, 2, 3}, other = {0, 1, 2};
  std::vector<Plan> plans;
  plans.push_back(MakePlan(first, splits, true));
  plans.push_back(MakePlan(second, other, true));
  const MergedPlans merged = MergePlans(PointersTo(plans), {1, 1});
  using Given = std::vector<std::span<const int64_t>>;
  const std::vector<int64_t> one = {9}, same = {9}, many = {5, 6, 7}, two = {8, 4};
  EXPECT_EQ(TimesOfInputs(merged, Given{one, same}), one);
  EXPECT_EQ(TimesOfInputs(merged, Given{many, two}), (std::vector<int64_t>{5, 6, 8, 7, 4}));
  EXPECT_EQ(TimesOfInputs(merged, Given{many, one}), (std::vector<int64_t>{5, 6, 9, 7, 9}));
  EXPECT_THROW(TimesOfInputs(merged, Given{two, two}), Error);
  EXPECT_THROW(TimesOfInputs(merged, Given{one}), Error);
  EXPECT_THROW(TimesOfIds(merged, Given{one, one}), Error);
}

TEST(PlanMergeRowsTest, WhatDoesNotFitIsRefused) {
  const std::vector<int64_t> ids = {1, 1, 2}, splits = {0, 3}, two_tables = {0, 1, 3};
  const Plan plan = MakePlan(ids, splits, true), apart = MakePlan(ids, splits, false),
             other = MakePlan(ids, two_tables, true);
  const auto merge = [](std::vector<const Plan*> plans, std::vector<int> dims) { return MergePlans(plans, dims); };
  EXPECT_THROW(merge({}, {}), Error);
  EXPECT_THROW(merge({&plan, &apart}, {2}), Error);
  EXPECT_THROW(merge({&plan, &other}, {2}), Error);
  EXPECT_THROW(merge({&plan}, {2, 2}), Error);
  const MergedPlans merged = merge({&plan, &plan}, {2});
  std::vector<float> rows(4), out(4), few(3);
  EXPECT_THROW(SumRows(merged, std::vector<Values>{rows}, {}, out), Error);
  EXPECT_THROW(SumRows(merged, std::vector<Values>{rows, few}, {}, out), Error);
  EXPECT_THROW(SumRows(merged, std::vector<Values>{rows, rows}, {}, few), Error);
  EXPECT_THROW(SumRows(merged, std::vector<Values>{rows, rows}, std::vector<float>{1.0f}, out), Error);
}

}  // namespace
}  // namespace monolith
