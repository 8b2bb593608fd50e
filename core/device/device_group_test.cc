// A DeviceGroup has the results, errors and contents of a Group to which the same calls are made.
#include "device/device_group.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/twin_groups_for_test.h"

namespace monolith::device {
namespace {

constexpr TableSizes kSmall = {.chunk_bits = 3, .segment_bits = 2, .slab_bytes = size_t{1} << 14};

// One random call after another to both groups.
class Program {
 public:
  Program(const std::shared_ptr<Launcher>& launcher, const TablesOptions& options, uint64_t seed, uint32_t num_ids)
      : batches_(seed, num_ids), has_nan_(options.nonfinite != NonFinite::kApply) {
    twins_ = std::make_unique<TwinGroups>(launcher, [options] { return MakeThreeTables(options); }, kSmall);
  }

  void Run(int num_calls) {
    for (int call = 0; call < num_calls && !testing::Test::HasFailure(); ++call) {
      RunOne();
      if (call % 16 == 15) twins_->ExpectSameContent("after call " + std::to_string(call));
    }
    while (cut_ && ReadCut()) {
    }
    cut_.reset();
    twins_->ExpectSameContent("at the end");
  }

  TwinGroups& twins() { return *twins_; }

 private:
  struct Ids {
    std::vector<int64_t> keys;
    std::vector<uint16_t> buckets;
  };

  void RunOne() {
    const uint64_t kind = batches_.Next(32);
    if (kind < 14) return Apply();
    if (kind < 17) return Assign();
    if (kind < 19) return Erase();
    if (kind < 21) return Touch();
    if (kind < 22) return Evict();
    if (kind < 25) return Mark();
    if (kind < 27) return ReadChanges();
    if (kind < 29) return Load();
    if (kind < 30) return Clear();
    if (kind < 31) return Follow();
    ReadCut();
  }

  void Apply() {
    const TwinGroups::Batch batch = batches_.NextBatch(20);
    if (batches_.OneIn(2)) twins_->ExpectSameReads(batch);
    std::vector<float> gradients =
        batches_.NextFloats(static_cast<size_t>(twins_->group->NumValues(twins_->PlanOf(batch))));
    if (has_nan_ && !gradients.empty() && batches_.OneIn(5)) {
      gradients[batches_.Next(gradients.size())] = std::numeric_limits<float>::infinity();
    }
    twins_->Apply(batch, gradients);
    if (cut_ && batches_.OneIn(2)) ReadCut();
  }

  Ids NextIds(int table) {
    Ids ids;
    for (uint64_t left = batches_.Next(12); left != 0; --left) {
      const SlotKey id = batches_.NextId(table);
      ids.keys.push_back(id.key);
      ids.buckets.push_back(static_cast<uint16_t>(id.bucket));
    }
    return ids;
  }
  int NextTable() { return static_cast<int>(batches_.Next(3)); }

  void Assign() {
    const int table = NextTable();
    const Ids ids = NextIds(table);
    const auto dim = static_cast<size_t>(twins_->group->table(table).spec.dim());
    // Sometimes one value is missing, which is an error.
    const std::vector<float> values = batches_.NextFloats(ids.keys.size() * dim + (batches_.OneIn(6) ? 1 : 0));
    std::vector<int64_t> times;
    for (size_t i = 0; i < ids.keys.size(); ++i) times.push_back(batches_.NextTime());
    if (times.empty()) times = {batches_.NextTime()};
    const bool add = batches_.OneIn(2);
    const int64_t step = batches_.OneIn(2) ? 5 : kNoStep;
    twins_->Same("assign", [&](auto& group) {
      return std::to_string(group.Assign(table, ids.keys, values, times, add, step, ids.buckets));
    });
  }
  void Erase() {
    const int table = NextTable();
    const Ids ids = NextIds(table);
    twins_->Same("erase", [&](auto& group) { return std::to_string(group.Erase(table, ids.keys, ids.buckets)); });
  }
  void Touch() {
    const int table = NextTable();
    const Ids ids = NextIds(table);
    twins_->Same("touch", [&](auto& group) { return std::to_string(group.Touch(table, ids.keys, ids.buckets)); });
  }
  void Evict() {
    const int table = NextTable() - 1;
    const int64_t now = batches_.OneIn(2) ? -1 : batches_.time() + static_cast<int64_t>(batches_.Next(86400));
    twins_->Same("evict", [&](auto& group) { return std::to_string(group.Evict(table, now)); });
  }

  void Mark() {
    twins_->Same("mark", [&](auto& group) { return std::to_string(mark_ = group.Mark()); });
  }
  // Of an epoch that is closed or not, kept or not.
  void ReadChanges() {
    const uint64_t since = batches_.OneIn(4) ? 0 : mark_ + 1 - std::min(mark_ + 1, batches_.Next(6));
    const auto begin = static_cast<uint32_t>(batches_.Next(kNumBuckets)), end = begin + 300;  // sometimes too many
    const bool state = batches_.OneIn(2);
    BlocksContent contents[2];
    int next = 0;
    twins_->Same("changes", [&](auto& group) {
      contents[next] = ContentOf(*group.Changes(since, begin, end, state));
      return std::to_string(contents[next++].rows.size());
    });
    ExpectSame(contents[0], contents[1], "changes since " + std::to_string(since));
  }

  // What the tables had at some time, into some of the buckets; now and then the same row several times.
  void Load() {
    if (blocks_.empty() || batches_.OneIn(3)) {
      const auto source = twins_->group->Changes(0, 0, kNumBuckets, true);
      if (batches_.OneIn(2)) blocks_.clear();
      for (std::string block; source->Next(&block);) blocks_.push_back(block);
    }
    std::vector<RowBlockView> views;
    for (const std::string& block : blocks_) {
      if (views.size() < 80 && batches_.OneIn(4)) views.emplace_back(block);
    }
    const auto begin = static_cast<uint32_t>(batches_.Next(kNumBuckets / 2)), end = begin + 600;
    twins_->Same("load", [&](auto& group) {
      const Loaded loaded = LoadInto(group, views, begin, std::min<uint32_t>(end, kNumBuckets));
      return std::to_string(loaded.rows) + " rows, " + std::to_string(loaded.tombstones) + " removals, " +
             std::to_string(loaded.filters) + " filters, " + std::to_string(loaded.ignored) + " ignored";
    });
  }
  static Loaded LoadInto(Group& group, const std::vector<RowBlockView>& views, uint32_t begin, uint32_t end) {
    return group.Load(views, begin, end, {});
  }
  static Loaded LoadInto(DeviceGroup& group, const std::vector<RowBlockView>& views, uint32_t begin, uint32_t end) {
    return group.Load(views, begin, end);
  }

  void Clear() {
    const bool all = batches_.OneIn(6);
    const uint32_t begin = all ? 0 : static_cast<uint32_t>(batches_.Next(kNumBuckets));
    const uint32_t end = all ? kNumBuckets : std::min<uint32_t>(begin + 100, kNumBuckets);
    twins_->Same("clear", [&](auto& group) {
      group.ClearBuckets(begin, end);
      return std::string();
    });
  }

  // Which history is kept; the device asks its host group.
  void Follow() {
    const uint64_t kind = batches_.Next(4);
    const uint64_t before = mark_ == 0 ? 0 : mark_ - batches_.Next(2);
    const auto change = [&](Group& group) {
      if (kind == 0) group.FollowHistory(false);
      if (kind == 1 || kind == 2) group.FollowHistory(true);
      if (kind == 3) group.TruncateHistory(before);
      return std::string();
    };
    EXPECT_EQ(ResultOf([&] { return change(twins_->host()); }), ResultOf([&] { return change(*twins_->group); }));
  }

  // Opens a cut, or reads some more of it; returns false if it has been read and closed.
  bool ReadCut() {
    if (!cut_) {
      cut_ = std::make_unique<TwinCuts>(*twins_);
      options_ = {.state = batches_.OneIn(2), .drop_expired = batches_.OneIn(3)};
      const uint64_t floor = twins_->group->HistoryFloor(), last = twins_->group->LastMark();
      if (floor < last && batches_.OneIn(2)) options_.since = floor + batches_.Next(last - floor) + 1;
      return true;
    }
    if (cut_->ReadMore(static_cast<uint32_t>(batches_.Next(kNumBuckets / 2)), options_)) {
      if (!batches_.OneIn(8)) return true;
    }
    cut_->Release();
    cut_->Release();
    cut_.reset();
    return false;
  }

  RandomBatches batches_;
  const bool has_nan_;
  std::unique_ptr<TwinGroups> twins_;
  std::unique_ptr<TwinCuts> cut_;
  CutOptions options_;
  uint64_t mark_ = 0;
  std::vector<std::string> blocks_;
};

class DeviceGroupTest : public LauncherTest {
 protected:
  // The launcher belongs to the test.
  std::shared_ptr<Launcher> Shared() { return {std::shared_ptr<Launcher>(), &launcher()}; }
  void RunPrograms(const TablesOptions& options, uint64_t seed, int num_calls = 60, uint32_t num_ids = 120) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Program(Shared(), options, seed, num_ids).Run(num_calls);
  }
};

TEST_P(DeviceGroupTest, RandomProgramsHaveTheSameResults) {
  for (uint64_t seed = 1; seed <= 4; ++seed) RunPrograms({}, seed);
}

TEST_P(DeviceGroupTest, EpochsWrapInTheMiddleOfCutsAndHistory) {
  for (uint32_t most = 4; most <= 8; most += 2) RunPrograms({.max_row_epoch = most}, 10 + most, 120);
}

TEST_P(DeviceGroupTest, FiltersCountTheSameIds) {
  for (uint64_t seed = 20; seed <= 22; ++seed) RunPrograms({.has_filter = true}, seed);
}

TEST_P(DeviceGroupTest, RowsExpireInTurn) {
  const TablesOptions options = {.expire_days = 2, .evict_every_seconds = 86400, .max_row_epoch = 8};
  for (uint64_t seed = 30; seed <= 32; ++seed) RunPrograms(options, seed, 80, 2000);
}

TEST_P(DeviceGroupTest, CapsEvictTheSameRows) {
  for (uint64_t seed = 40; seed <= 42; ++seed) {
    const auto eviction = seed % 2 == 0 ? CapEviction::kLeastRecentlyUsed : CapEviction::kLeastFrequentlyUsed;
    RunPrograms({.max_rows = 40, .cap_eviction = eviction, .max_row_epoch = 6}, seed, 80, 300);
  }
}

TEST_P(DeviceGroupTest, GradientsThatAreNotFiniteAreSkippedOrApplied) {
  RunPrograms({.has_filter = true, .nonfinite = NonFinite::kSkip}, 50);
  RunPrograms({.nonfinite = NonFinite::kApply}, 51);
}

// A cut that was released, and is destroyed after the next one was opened, leaves that one alone.
TEST_P(DeviceGroupTest, OneCutAfterAnother) {
  RandomBatches batches(60, 100);
  TwinGroups twins(Shared(), [] { return MakeThreeTables({}); }, kSmall);
  const auto learn = [&] {
    const TwinGroups::Batch batch = batches.NextBatch(60);
    twins.Apply(batch, batches.NextFloats(static_cast<size_t>(twins.group->NumValues(twins.PlanOf(batch)))));
  };
  learn();
  auto first = std::make_unique<TwinCuts>(twins);
  first->ReadMore(100, {});
  learn();
  first->Release();
  learn();
  TwinCuts second(twins);
  second.ReadMore(200, {});
  first.reset();
  learn();
  while (second.ReadMore(300, {})) {
  }
  second.Release();
  twins.ExpectSameContent("after both");
}

TEST_P(DeviceGroupTest, CutsRefuseTheSameReads) {
  TwinGroups twins(Shared(), [] { return MakeThreeTables({}); }, kSmall);
  const std::unique_ptr<Cut> expected = twins.group->OpenCut(), cut = twins.device.OpenCut();
  const auto expect_same = [&](uint32_t begin, uint32_t end, const CutOptions& options) {
    const auto blocks = [&](Cut& of) {
      return ResultOf([&] {
        of.Blocks(begin, end, options);
        return std::string();
      });
    };
    EXPECT_EQ(blocks(*cut), blocks(*expected)) << begin << " to " << end;
  };
  expect_same(3, 2, {});
  expect_same(1000, 1025, {});
  expect_same(1000, 1024, {});
  expect_same(7, 7, {.since = 1000});
  expect_same(900, 1001, {});
  EXPECT_EQ(ResultOf([&] { return twins.device.OpenCut(), std::string(); }),
            ResultOf([&] { return twins.group->OpenCut(), std::string(); }));
  expected->Release();
  cut->Release();
  expect_same(5, 5, {});
}

INSTANTIATE_FOR_LAUNCHERS(DeviceGroupTest);

}  // namespace
}  // namespace monolith::device
