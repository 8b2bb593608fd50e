// One update with the pushes of several workers: all of them are recorded, or none.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "table/cut.h"
#include "table/group_for_test.h"
#include "table/worker_clock.h"

namespace monolith {
namespace {

using Pushes = std::vector<Push>;

Push PushOf(int64_t worker, int64_t incarnation, int64_t seq) {
  return {incarnation, seq, {worker, seq, "at " + std::to_string(seq), 1000 + seq}, seq - 1};
}

// Throws the errors of the clocks; true iff the update was applied now.
bool Apply(WorkerClocks* clocks, const Pushes& pushes) {
  WorkerClocks::Turns turns(*clocks, pushes);
  if (!turns.are_duplicates()) turns.Record();
  return !turns.are_duplicates();
}

void ExpectRefused(WorkerClocks* clocks, const Pushes& pushes, Code code, const std::string& message) {
  const std::vector<BatchStamp> before = clocks->Stamps();
  try {
    Apply(clocks, pushes);
    FAIL() << "nothing was thrown; expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(error.what(), message);
  }
  EXPECT_EQ(clocks->Stamps(), before);
}

TEST(SeveralPushesTest, AllStampsAreRecorded) {
  WorkerClocks clocks;
  const int64_t three = clocks.Join(3).incarnation, minus = clocks.Join(-5).incarnation;
  EXPECT_TRUE(Apply(&clocks, {PushOf(3, three, 0), PushOf(-5, minus, 0)}));
  EXPECT_TRUE(Apply(&clocks, {PushOf(-5, minus, 1), PushOf(3, three, 1)}));
  EXPECT_EQ(clocks.Stamps(), (std::vector<BatchStamp>{{-5, 1, "at 1", 1001}, {3, 1, "at 1", 1001}}));
  EXPECT_EQ(clocks.Steps(), 4);
  EXPECT_TRUE(Apply(&clocks, {}));
  EXPECT_TRUE(Apply(&clocks, {}));
  EXPECT_EQ(clocks.Steps(), 4);
}

TEST(SeveralPushesTest, ARepeatedUpdateIsADuplicateIfAllOfItWasApplied) {
  WorkerClocks clocks;
  const int64_t one = clocks.Join(1).incarnation, two = clocks.Join(2).incarnation, nine = clocks.Join(9).incarnation;
  Apply(&clocks, {PushOf(1, one, 0), PushOf(2, two, 0)});
  EXPECT_FALSE(Apply(&clocks, {PushOf(2, two, 0), PushOf(1, one, 0)}));
  EXPECT_FALSE(Apply(&clocks, {PushOf(2, two, 0)}));
  ExpectRefused(&clocks, {PushOf(9, nine, 0), PushOf(2, two, 0), PushOf(1, one, 0)}, Code::kFailedPrecondition,
                "worker 2: batch 0 was applied before, but batch 0 of worker 9, which is part of the same update, was "
                "not; repeat complete updates");
  ExpectRefused(&clocks, {PushOf(1, one, 1), PushOf(2, two, 0)}, Code::kFailedPrecondition,
                "worker 2: batch 0 was applied before, but batch 1 of worker 1, which is part of the same update, was "
                "not; repeat complete updates");
}

TEST(SeveralPushesTest, OneThatIsRefusedRefusesAll) {
  WorkerClocks clocks;
  const int64_t one = clocks.Join(1).incarnation, two = clocks.Join(2).incarnation;
  ExpectRefused(&clocks, {PushOf(1, one, 0), PushOf(2, two, 4)}, Code::kFailedPrecondition,
                "worker 2: batch 4 names batch 3 as the push before it, but nothing was applied yet; push it first");
  ExpectRefused(&clocks, {PushOf(1, one, 0), PushOf(2, two + 7, 0)}, Code::kFailedPrecondition,
                "worker 2: incarnation 9 is unknown, the present one is 2; join again");
  ExpectRefused(&clocks, {PushOf(1, one, 0), PushOf(8, 1, 0)}, Code::kFailedPrecondition,
                "worker 8: incarnation 1 is unknown, the worker has not joined; join first");
  ExpectRefused(&clocks, {PushOf(1, one, 0), PushOf(2, two, -1)}, Code::kInvalidArgument,
                "worker 2: batch numbers must be >= 0 and first_seq not above seq, got first_seq -1 and seq -1");
  ExpectRefused(&clocks, {PushOf(2, two, 0), PushOf(1, one, 0), PushOf(2, two, 0)}, Code::kInvalidArgument,
                "worker 2: two pushes were given for one update; give one of each worker");
  EXPECT_TRUE(Apply(&clocks, {PushOf(1, one, 0), PushOf(2, two, 0)}));  // no turn was held
}

TEST(SeveralPushesTest, ThoseBehindWaitForTheTurnsOfAll) {
  WorkerClocks clocks;
  const int64_t one = clocks.Join(1).incarnation, two = clocks.Join(2).incarnation;
  std::future<bool> behind;
  {
    const Pushes pushes = {PushOf(2, two, 0), PushOf(1, one, 0)};
    WorkerClocks::Turns turns(clocks, pushes);
    behind = std::async(std::launch::async, [&] { return Apply(&clocks, {PushOf(2, two, 1)}); });
    EXPECT_EQ(behind.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    turns.Record();
  }
  EXPECT_TRUE(behind.get());  // it found the batch before it
}

// The gradient of every occurrence is -1, so that sums are exact in any order.
Applied ApplyTo(Group* group, const std::vector<int64_t>& ids, const Pushes& pushes, float gradient = -1.0f) {
  const std::vector<int64_t> splits = {0, 0, static_cast<int64_t>(ids.size())}, times = {kStartTime};
  const std::vector<float> gradients(ids.size() * kSgdDim, gradient), learning_rates = {0.5f, 1.0f};
  Update update;
  update.gradients = gradients;
  update.learning_rates = learning_rates;
  update.times = times;
  return group->Apply(MakePlan(ids, splits, true), update, pushes);
}

TEST(SeveralPushesTest, RowsAndAllStampsChangeTogether) {
  const std::unique_ptr<Group> group = MakeTestGroup();
  const int64_t one = group->Join(1).incarnation, two = group->Join(2).incarnation;
  const Pushes pushes = {PushOf(2, two, 0), PushOf(1, one, 0)};
  EXPECT_FALSE(group->IsDuplicate(pushes));
  EXPECT_THROW(ApplyTo(group.get(), {5}, pushes, std::numeric_limits<float>::quiet_NaN()), Error);
  EXPECT_TRUE(group->Stamps().empty());
  EXPECT_EQ(ApplyTo(group.get(), {5}, pushes).inserted, 1);
  EXPECT_TRUE(group->IsDuplicate(pushes));
  const Applied again = ApplyTo(group.get(), {5}, pushes);
  EXPECT_TRUE(again.duplicate);
  EXPECT_EQ(again.updated, 0);
  EXPECT_THROW(ApplyTo(group.get(), {5}, {PushOf(1, one, 1), PushOf(2, two, 0)}), Error);
  EXPECT_THROW(group->IsDuplicate(Pushes{PushOf(1, one, 1), PushOf(2, two, 0)}), Error);
  EXPECT_EQ(LookupWhole(*group, 1, {5}), std::vector<float>{1.0f});
  EXPECT_EQ(group->Stamps(), (std::vector<BatchStamp>{{1, 0, "at 0", 1000}, {2, 0, "at 0", 1000}}));
  EXPECT_FALSE(group->IsDuplicate({}));
}

constexpr int64_t kWorkers = 6, kUpdates = 60, kSecondIds = 1 << 20;

// Two threads, each of which pushes for every other worker together, to separate rows.
class PushingSets {
 public:
  PushingSets() : group_(MakeTestGroup()) {
    for (int64_t worker = 0; worker < kWorkers; ++worker) incarnations_.push_back(group_->Join(worker).incarnation);
  }
  Group* group() const { return group_.get(); }
  bool are_pushing() const { return pushing_.load() > 0; }
  Push Of(int64_t worker, int64_t seq) const { return PushOf(worker, incarnations_[static_cast<size_t>(worker)], seq); }

  void PushAll(int set) {
    std::mt19937_64 random(static_cast<uint64_t>(set));
    const std::vector<int64_t> ids = set == 0 ? IdsInBuckets(600, 0, 40) : IdsInBuckets(600, 20, 60, kSecondIds);
    for (int64_t seq = 0; seq < kUpdates; ++seq) {
      Pushes pushes;
      for (int64_t worker = set; worker < kWorkers; worker += 2) pushes.push_back(Of(worker, seq));
      std::shuffle(pushes.begin(), pushes.end(), random);
      EXPECT_FALSE(ApplyTo(group(), ids, pushes).duplicate);
      if (seq % 3 == 0) {
        EXPECT_TRUE(ApplyTo(group(), ids, pushes).duplicate);
      }
    }
    --pushing_;
  }

  // A cut has all stamps of an update or none, and the rows of exactly the updates whose stamps it has.
  void ExpectWholeCut() const {
    const std::unique_ptr<Cut> cut = group_->OpenCut();
    std::vector<int64_t> applied(kWorkers, 0);
    for (const BatchStamp& stamp : cut->stamps()) applied[static_cast<size_t>(stamp.worker)] = stamp.seq + 1;
    for (size_t worker = 2; worker < kWorkers; ++worker) EXPECT_EQ(applied[worker], applied[worker % 2]);
    const Content content = ReadAll(cut->Blocks(0, kNumBuckets, {}).get());
    for (const auto& [table_and_id, text] : content.rows) {
      float weight;
      std::memcpy(&weight, text.data() + sizeof(uint32_t), sizeof(weight));
      ASSERT_EQ(weight, static_cast<float>(applied[table_and_id.second >= kSecondIds ? 1 : 0]));
    }
  }

  // Pushes of both sets, in reverse order: applied before, or a part that is rejected.
  void AskForAll() const {
    Pushes pushes;
    for (int64_t worker = kWorkers - 1; worker >= 0; --worker) pushes.push_back(Of(worker, 0));
    try {
      group_->IsDuplicate(pushes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kFailedPrecondition);
    }
  }

 private:
  const std::unique_ptr<Group> group_;
  std::vector<int64_t> incarnations_;
  std::atomic<int> pushing_{2};
};

// Other threads join, acquire the turns of all workers and open cuts meanwhile, without a deadlock.
TEST(SeveralPushesStressTest, CutsHaveWholeUpdates) {
  const int threads_before = NumThreads();
  SetNumThreads(4);
  PushingSets sets;
  RunThreads(5, [&](int t) {
    if (t < 2) return sets.PushAll(t);
    while (sets.are_pushing()) {
      if (t == 2) sets.group()->Join(100);
      if (t == 3) sets.ExpectWholeCut();
      if (t == 4) sets.AskForAll();
    }
  });
  sets.ExpectWholeCut();
  EXPECT_EQ(sets.group()->Steps(), kWorkers * kUpdates);
  SetNumThreads(threads_before);
}

}  // namespace
}  // namespace monolith
