// The same tables in a group and in memory of a device: both learn the same, and must have the same bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/segment_rules.h"
#include "device/table_for_test.h"
#include "table/group.h"

namespace monolith::device {

// What an update is besides its ids.
struct UpdateForTest {
  std::vector<float> gradients;  // of the distinct ids, in plan order
  std::vector<float> latest = {};
  std::vector<float> rates = {};  // empty: 0.125 for each segment
  int64_t step = 0;
  float scale = 1.0f;
  std::vector<int64_t> times = {100};  // one, or one for each id given
  uint32_t epoch = 1;
};

// One float, or NaN, whose bits differ among processors.
inline uint32_t ComparableBits(const void* word) {
  uint32_t bits;
  std::memcpy(&bits, word, sizeof(bits));
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
}

class TwinTables {
 public:
  // With room for this many rows of each table.
  TwinTables(Launcher& launcher, std::vector<TableSpec> specs, uint32_t num_rows = 64)
      : launcher_(launcher), group_(std::move(specs), nullptr), rules_(group_) {
    for (int t = 0; t < group_.num_tables(); ++t) {
      const auto floats = static_cast<uint32_t>(group_.table(t).spec.training_payload_bytes() / 4);
      tables_.push_back(std::make_unique<TableForTest>(floats, 5, 8, true));
      FillWithGarbage(*tables_.back(), num_rows);
      dims_.push_back(static_cast<uint32_t>(group_.table(t).spec.dim()));
    }
    rules_copy_.assign(rules_.bytes().begin(), rules_.bytes().end());
    keys_.resize(tables_.size());
  }

  // Ids of all tables, or of table `only`, of the following calls.
  void Plan(const std::vector<int64_t>& ids, const std::vector<int64_t>& splits,
            const std::vector<uint16_t>& buckets = {}, int only = -1) {
    first_table_ = static_cast<uint32_t>(std::max(only, 0));
    plan_ = only < 0 ? group_.NewPlan(ids, splits, true, buckets) : group_.NewPlanOf(only, ids, true, buckets);
    device_plan_ = MakeDevicePlan(launcher_, ids, splits, buckets);
    ASSERT_TRUE(std::equal(plan_.unique.data(), plan_.unique.data() + plan_.unique.size(), device_plan_.unique.begin(),
                           device_plan_.unique.end()));
    offsets_ = {0};
    for (uint32_t u = 0; u < device_plan_.unique.size(); ++u) {
      const uint32_t table = first_table_ + device_plan_.ids().TableAt(u);
      offsets_.push_back(offsets_.back() + dims_[table]);
      keys_[table].insert({device_plan_.unique[u], device_plan_.buckets[u]});
    }
  }
  // Of a distinct id of the plan.
  uint32_t TableOf(size_t place) const { return device_plan_.ids().TableAt(static_cast<uint32_t>(place)); }
  size_t num_values() const { return static_cast<size_t>(offsets_.back()); }

  // Applies an update to both, and compares what they count.
  void Apply(const UpdateForTest& given) {
    std::vector<float> rates = given.rates;
    rates.resize(static_cast<size_t>(group_.num_learning_rates()), 0.125f);
    Update update;
    update.gradients = given.gradients;
    update.per_unique = true;
    update.latest = given.latest;
    update.learning_rates = rates;
    update.step = given.step;
    update.times = given.times;
    update.scale = given.scale;
    const Applied applied = group_.Apply(plan_, update);
    const UpdateCounts counts = ApplyOnDevice(given, rates);
    EXPECT_EQ(counts.updated, applied.updated);
    EXPECT_EQ(counts.inserted, applied.inserted);
    EXPECT_EQ(counts.skipped, applied.skipped);
  }

  // Compares the rows of every id of a plan so far.
  void ExpectSameRows(const std::string& what) {
    for (size_t t = 0; t < tables_.size(); ++t) {
      for (const auto& [key, bucket] : keys_[t]) {
        ExpectSameRow(t, key, bucket, what);
        if (testing::Test::HasFailure()) return;
      }
    }
  }

  // Compares what the plan reads.
  void ExpectSameReads(int64_t step) {
    std::vector<float> expected(num_values());
    group_.Read(plan_, expected, step);
    const Shared<uint32_t> rows = Find();
    Shared<float> weights(num_values(), 7.0f);
    const RowsOfPlan plan = PlanOf(rows);
    Launch(plan.ids.count, GatherRows<1>{plan.ids, plan.tables, plan.layout, 0, rows.data(), weights.data()});
    rules_.Retrieve(launcher_, Stream{}, rules_copy_.data(), plan, step, weights.data());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(ComparableBits(&weights[i]), ComparableBits(&expected[i])) << i << " at step " << step;
    }
  }

  Group& group() { return group_; }
  const SegmentRules& rules() const { return rules_; }
  uint32_t first_refused() const { return first_refused_[0]; }
  bool is_refused() const { return refused_[0] != 0; }

  // Without the group.
  UpdateCounts ApplyOnDevice(const UpdateForTest& given, const std::vector<float>& given_rates) {
    const auto count = static_cast<uint32_t>(device_plan_.unique.size());
    const DistinctIds ids = device_plan_.ids();
    Shared<uint32_t> rows = Find();
    const RowsOfPlan plan = PlanOf(rows);
    Shared<int32_t> is_missing(count);
    Launch(count, FlagMissing{count, rows.data(), is_missing.data()});
    Shared<float> gradients(given.gradients.begin(), given.gradients.end()), scaled(gradients.size());
    Shared<UpdateCounts> counts(1);
    refused_ = {0};
    first_refused_ = {kNoPlace};
    const uint32_t lane_bits = rules_.lane_bits();
    Launch(uint64_t{count} << lane_bits,
           CheckGradients{ids, plan.layout, rules_.traits(rules_copy_.data()) + first_table_, lane_bits,
                          gradients.data(), given.scale, scaled.data(), refused_.data(), first_refused_.data(),
                          rows.data(), is_missing.data(), counts.data()});
    const Inserted inserted = Insert(std::move(is_missing), rows);
    const NewRanks ranks = inserted.RanksOf(device_plan_);
    const Shared<float> rates(given_rates.begin(), given_rates.end()), latest(given.latest.begin(), given.latest.end());
    Shared<float> adjusted(gradients.size());
    rules_.Learn(launcher_, Stream{}, rules_copy_.data(), plan,
                 {ranks, given.scale == 1.0f ? gradients.data() : scaled.data(),
                  rules_.adjusts_gradients() ? adjusted.data() : nullptr, latest.empty() ? nullptr : latest.data(),
                  rates.data(), given.step, refused_.data()});
    const std::vector<uint32_t> newest = NewestTimes(plan_, given.times);
    const Shared<uint32_t> times(newest.begin(), newest.end());
    const bool has_times = given.times.size() != 1;
    launcher_.LaunchBlocks(
        BlocksForCounting(launcher_, count),
        StampRows{ids, plan.tables, ranks, rows.data(), has_times ? times.data() : nullptr,
                  static_cast<uint32_t>(given.times[0]), given.epoch, refused_.data(), counts.data()},
        Stream{});
    epoch_ = given.epoch;
    return counts[0];
  }

 private:
  template <typename Kernel>
  void Launch(uint64_t num_threads, const Kernel& kernel) {
    launcher_.Launch(num_threads, kernel, Stream{});
  }

  // Memory of rows is not cleared.
  static void FillWithGarbage(TableForTest& table, uint32_t num_rows) {
    table.Reserve(num_rows);
    for (uint32_t row = 0; row < num_rows; ++row) {
      std::memset(table.view().PayloadAt(row), 0xa5, table.view().stride * sizeof(float));
    }
  }

  Tables TablesOfPlan() {
    views_.clear();
    for (size_t t = first_table_; t < tables_.size(); ++t) views_.push_back(tables_[t]->view());
    return {views_.data(), kProcessKey};
  }
  RowsOfPlan PlanOf(const Shared<uint32_t>& rows) {
    const bool is_single = device_plan_.num_tables == 1;
    const ValueLayout layout = {dims_[first_table_], is_single ? nullptr : dims_.data(),
                                is_single ? nullptr : offsets_.data()};
    return {first_table_, device_plan_.ids(), TablesOfPlan(), layout, rows.data()};
  }
  Shared<uint32_t> Find() {
    Shared<uint32_t> rows(device_plan_.unique.size());
    Launch(rows.size(), FindRows{device_plan_.ids(), TablesOfPlan(), rows.data()});
    return rows;
  }
  Inserted Insert(Shared<int32_t> is_missing, Shared<uint32_t>& rows) {
    Inserted made = {{}, InclusiveSums(is_missing), Shared<int32_t>(size_t{kNumBuckets} * device_plan_.num_tables)};
    Launch(made.sums.size(),
           CountNewInCells{device_plan_.num_tables, device_plan_.splits.data(), made.ranks.data(), made.sums.data()});
    for (size_t i = 0; i < made.sums.size(); ++i) {
      if (i % kNumBuckets != 0) made.sums[i] += made.sums[i - 1];
    }
    const NewRanks ranks = made.RanksOf(device_plan_);
    Launch(rows.size(), InsertRows{device_plan_.ids(), TablesOfPlan(), ranks, refused_.data(), 1, rows.data()});
    Launch(device_plan_.num_tables, CountInserted{device_plan_.ids(), TablesOfPlan(), ranks, refused_.data()});
    return made;
  }

  void ExpectSameRow(size_t number, int64_t key, uint32_t bucket, const std::string& what) {
    const Table& table = group_.table(static_cast<int>(number));
    const uint32_t expected_row = table.shards[bucket].Find(table.rows, HashInBucket(bucket, key), key);
    const TableView& view = tables_[number]->view();
    const uint32_t row = FindRow(view, kProcessKey, bucket, key);
    ASSERT_EQ(row == kNoRow, expected_row == kNoRow) << what << ", key " << key;
    if (row == kNoRow) return;
    const std::byte* record = table.rows.At(expected_row);
    const RowHeader &header = *view.HeaderAt(row), &expected = *HeaderOf(record);
    EXPECT_EQ(header.time, expected.time) << what;
    EXPECT_EQ(FrequencyOf(header), FrequencyOf(expected)) << what;
    EXPECT_TRUE(IsLive(header)) << what;
    EXPECT_LE(EpochOf(header), epoch_) << what;
    const auto floats = static_cast<uint32_t>(table.spec.training_payload_bytes() / 4);
    const float* payload = view.PayloadAt(row);
    for (uint32_t i = 0; i < view.stride; ++i) {
      const uint32_t bits = i < floats ? ComparableBits(PayloadOf(record) + 4 * size_t{i}) : 0;
      ASSERT_EQ(ComparableBits(payload + i), bits) << what << ", key " << key << ", float " << i << " of " << floats;
    }
  }

  Launcher& launcher_;
  Group group_;
  const SegmentRules rules_;
  Shared<std::byte> rules_copy_;
  std::vector<std::unique_ptr<TableForTest>> tables_;
  Shared<uint32_t> dims_;
  std::vector<std::set<std::pair<int64_t, uint32_t>>> keys_;  // of each table, with their buckets
  uint32_t first_table_ = 0;
  monolith::Plan plan_;
  PlanForTest device_plan_;
  Shared<int64_t> offsets_;
  Shared<TableView> views_;
  Shared<uint32_t> refused_ = {0}, first_refused_ = {kNoPlace};
  uint32_t epoch_ = 0;
};

}  // namespace monolith::device
