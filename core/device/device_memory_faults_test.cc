// Memory of the device that runs out, at every place where it is taken: an error before any row changed, and the call
// can be repeated.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cpu_launcher.h"
#include "device/twin_groups_for_test.h"

namespace monolith::device {
namespace {

// Has no memory for one request, or for all of them from that one on.
class ShortLauncher final : public CpuLauncher {
 public:
  ShortLauncher() : CpuLauncher(Order::kAscending) {}

  void* Allocate(size_t bytes) override {
    const bool fails = fails_on_ ? num_left_ <= 0 : num_left_ == 0;
    --num_left_;
    if (fails) throw Error(Code::kResourceExhausted, "no memory for a test");
    return CpuLauncher::Allocate(bytes);
  }

  // Serves this many requests first.
  void FailAfter(int64_t num_requests, bool fails_on) {
    num_left_ = num_requests;
    fails_on_ = fails_on;
  }
  void Recover() { FailAfter(-1, false); }
  bool HasFailed() const { return num_left_ < 0; }

 private:
  int64_t num_left_ = -1;
  bool fails_on_ = false;
};

// Groups with rows, at which one call is tried with less memory than it needs.
struct Fixture {
  // Rows are long, so that a few hundred of them do not fit into the least memory that is taken.
  explicit Fixture(TablesOptions options, uint64_t seed = 7)
      : launcher(std::make_shared<ShortLauncher>()),
        batches(seed, 900),
        twins(
            launcher,
            [options]() mutable {
              options.dim = 64;
              return MakeThreeTables(options);
            },
            TableSizes{.chunk_bits = 5, .segment_bits = 4, .slab_bytes = size_t{1} << 16}) {}

  void Learn(int num_batches, size_t most_of_table) {
    for (int i = 0; i < num_batches; ++i) {
      const TwinGroups::Batch batch = batches.NextBatch(most_of_table);
      twins.Apply(batch, GradientsOf(batch));
    }
  }
  std::vector<float> GradientsOf(const TwinGroups::Batch& batch) {
    return batches.NextFloats(static_cast<size_t>(twins.group->NumValues(twins.PlanOf(batch))));
  }

  const std::shared_ptr<ShortLauncher> launcher;
  RandomBatches batches;
  TwinGroups twins;
};

// The call to be tried: returns what it does to the device, and to the group, as text.
struct Calls {
  std::function<std::string()> device, group;
};
using MakeCalls = std::function<Calls(Fixture&)>;

constexpr const char* kNoMemory = "no memory for a test";

bool IsShort(const std::string& result) { return result.find(kNoMemory) != std::string::npos; }

// Tries the call on new groups with more and more requests that are served, until these are enough.
void FailEverywhere(const TablesOptions& options, const std::function<void(Fixture&)>& prepare, const MakeCalls& make,
                    int least_failures) {
  int num_failures = 0;
  bool has_failed = true;
  for (int64_t requests = 0; has_failed && !testing::Test::HasFailure(); requests += requests < 8 ? 1 : 5) {
    SCOPED_TRACE("request " + std::to_string(requests));
    Fixture fixture(options);
    prepare(fixture);
    const Calls calls = make(fixture);
    fixture.launcher->FailAfter(requests, requests % 2 == 0);
    std::string result = ResultOf(calls.device);
    has_failed = fixture.launcher->HasFailed();
    fixture.launcher->Recover();
    if (IsShort(result)) {
      ++num_failures;
      fixture.twins.ExpectSameContent("after an error");
      result = ResultOf(calls.device);
    }
    EXPECT_EQ(result, ResultOf(calls.group));
    fixture.twins.ExpectSameContent("after the call");
  }
  EXPECT_GE(num_failures, least_failures);
}

Calls ApplyTo(Fixture& fixture) {
  const TwinGroups::Batch batch = fixture.batches.NextBatch(400);
  const std::vector<float> gradients = fixture.GradientsOf(batch);
  return {[=, &fixture] { return fixture.twins.ApplyOnDevice(batch, gradients); },
          [=, &fixture] { return fixture.twins.ApplyOnGroup(batch, gradients); }};
}

// The same call of both.
template <typename Call>
MakeCalls Both(const Call& call) {
  return [call](Fixture& fixture) {
    return Calls{[&fixture, call] { return call(fixture.twins.device); },
                 [&fixture, call] { return call(*fixture.twins.group); }};
  };
}

void LearnALittle(Fixture& fixture) { fixture.Learn(3, 40); }

std::vector<int64_t> KnownKeys(const Fixture& fixture, int table) { return fixture.twins.group->Ids(table); }

TEST(DeviceMemoryFaultsTest, UpdateOfNewTables) {
  FailEverywhere({}, [](Fixture&) {}, ApplyTo, 5);
}

TEST(DeviceMemoryFaultsTest, UpdateThatAsksAFilter) { FailEverywhere({.has_filter = true}, LearnALittle, ApplyTo, 5); }

TEST(DeviceMemoryFaultsTest, UpdateThatEvicts) {
  FailEverywhere(
      {.max_rows = 100, .expire_days = 1, .evict_every_seconds = 20000},
      [](Fixture& fixture) { fixture.Learn(2, 400); }, ApplyTo, 5);
}

TEST(DeviceMemoryFaultsTest, UpdateWithAnOpenCut) {
  std::unique_ptr<TwinCuts> cuts;
  const auto open = [&](Fixture& fixture) {
    cuts.reset();
    fixture.Learn(2, 300);
    cuts = std::make_unique<TwinCuts>(fixture.twins);
  };
  const auto make = [&](Fixture& fixture) {
    Calls calls = ApplyTo(fixture);
    const auto apply = calls.device;
    calls.group = [&, apply_to_group = calls.group] {
      const std::string result = apply_to_group();
      while (cuts->ReadMore(512, {})) {
      }
      cuts.reset();
      return result;
    };
    return calls;
  };
  FailEverywhere({.max_rows = 100}, open, make, 5);
}

TEST(DeviceMemoryFaultsTest, Clear) {
  const auto clear = [](uint32_t begin, uint32_t end) {
    return Both([=](auto& group) {
      group.ClearBuckets(begin, end);
      return std::string();
    });
  };
  FailEverywhere({}, LearnALittle, clear(0, kNumBuckets), 15);
  FailEverywhere({}, [](Fixture& fixture) { fixture.Learn(2, 300); }, clear(5, 900), 2);
}

TEST(DeviceMemoryFaultsTest, Evict) {
  const auto prepare = [](Fixture& fixture) { fixture.Learn(2, 300); };
  // Tables before the one that fails may have been done.
  const auto evict = Both([](auto& group) {
    group.Evict(-1, RandomBatches::kStart + int64_t{4} * 86400);
    return std::string();
  });
  int num_failures = 0;
  for (int64_t requests = 0; !HasFailure(); ++requests) {
    Fixture fixture({.expire_days = 2});
    prepare(fixture);
    const Calls calls = evict(fixture);
    fixture.launcher->FailAfter(requests, true);
    std::string result = ResultOf(calls.device);
    const bool has_failed = fixture.launcher->HasFailed();
    fixture.launcher->Recover();
    num_failures += IsShort(result);
    if (IsShort(result)) result = ResultOf(calls.device);
    EXPECT_EQ(result, ResultOf(calls.group));
    fixture.twins.ExpectSameContent("after the call");
    if (!has_failed) break;
  }
  EXPECT_GE(num_failures, 2);
}

// Rows go to the host group and back.
TEST(DeviceMemoryFaultsTest, CallsOnTheHost) {
  const auto prepare = [](Fixture& fixture) { fixture.Learn(2, 300); };
  const auto make = [](auto call) {
    return [call](Fixture& fixture) {
      std::vector<int64_t> keys = KnownKeys(fixture, 2);
      for (int64_t key = 0; key < 200; ++key) keys.push_back(key);
      const std::vector<float> values = fixture.batches.NextFloats(keys.size());
      std::vector<int64_t> times;
      for (size_t i = 0; i < keys.size(); ++i) times.push_back(fixture.batches.NextTime());
      return Calls{[=, &fixture] { return call(fixture.twins.device, keys, values, times); },
                   [=, &fixture] { return call(*fixture.twins.group, keys, values, times); }};
    };
  };
  const auto assign = [](auto& group, const auto& keys, const auto& values, const auto& times) {
    return std::to_string(group.Assign(2, keys, values, times, true, 1, {}));
  };
  const auto erase = [](auto& group, const auto& keys, const auto&, const auto&) {
    return std::to_string(group.Erase(2, keys, {}));
  };
  const auto touch = [](auto& group, const auto& keys, const auto&, const auto&) {
    return std::to_string(group.Touch(2, keys, {}));
  };
  FailEverywhere({}, prepare, make(assign), 1);
  FailEverywhere({.max_rows = 150}, prepare, make(assign), 1);
  FailEverywhere({}, prepare, make(erase), 1);
  FailEverywhere({}, prepare, make(touch), 1);
}

TEST(DeviceMemoryFaultsTest, Load) {
  std::vector<std::string> blocks;
  Fixture source({}, 8);
  source.Learn(2, 400);
  const auto changes = source.twins.group->Changes(0, 0, kNumBuckets, true);
  for (std::string block; changes->Next(&block);) blocks.push_back(block);
  const std::vector<RowBlockView> views(blocks.begin(), blocks.end());
  const auto make = [&](Fixture& fixture) {
    return Calls{[&] { return std::to_string(fixture.twins.device.Load(views, 0, kNumBuckets).rows); },
                 [&] { return std::to_string(fixture.twins.group->Load(views, 0, kNumBuckets, {}).rows); }};
  };
  FailEverywhere({}, [](Fixture& fixture) { fixture.Learn(2, 300); }, make, 5);
}

// Reading fails as well, and resumes where it was.
TEST(DeviceMemoryFaultsTest, Reading) {
  Fixture fixture({.has_filter = true});
  fixture.twins.group->FollowHistory(true);
  fixture.twins.host().FollowHistory(true);
  fixture.Learn(2, 400);
  const std::vector<int64_t> erased = KnownKeys(fixture, 0);
  fixture.twins.Same("erase", [&](auto& group) { return std::to_string(group.Erase(0, erased, {})); });
  for (int64_t requests = 0; requests < 6; ++requests) {
    const auto read_all = [&](BlockSource& source) {
      BlocksContent content;
      std::string block;
      fixture.launcher->FailAfter(requests, false);
      for (bool is_left = true; is_left;) {
        const std::string result = ResultOf([&] {
          is_left = source.Next(&block);
          return std::string();
        });
        if (result.empty() && is_left) content.Add(block);
      }
      fixture.launcher->Recover();
      return content;
    };
    const std::unique_ptr<Cut> expected = fixture.twins.group->OpenCut(), cut = fixture.twins.device.OpenCut();
    ExpectSame(ContentOf(*expected->Blocks(0, kNumBuckets, {})), read_all(*cut->Blocks(0, kNumBuckets, {})), "cut");
    ExpectSame(ContentOf(*fixture.twins.group->Changes(0, 0, kNumBuckets, true)),
               read_all(*fixture.twins.device.Changes(0, 0, kNumBuckets, true)), "changes");
  }
}

}  // namespace
}  // namespace monolith::device
