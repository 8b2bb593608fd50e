// Many workers push to one group concurrently: a cut holds exactly the batches that its stamps name, and every push is
// applied once or rejected. Sized to finish in seconds under the thread sanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "table/cut.h"
#include "table/group.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

constexpr int kWorkers = 4;

using Weights = std::map<int64_t, float>;  // of table 1, by id

const std::vector<int64_t>& PoolOfIds() {
  static const std::vector<int64_t> pool = CrowdedIds(400);
  return pool;
}

// The ids of a batch, the same for every call. Some batches are large enough to be divided among the pool.
std::vector<int64_t> IdsOf(int64_t worker, int64_t seq) {
  std::mt19937_64 random(static_cast<uint64_t>(1000 * worker + seq));
  return Draw(&random, seq % 5 == 0 ? 2000 : 40, PoolOfIds());
}

// Adds 1 to the weights of table 1 for every occurrence in the batch, so that sums are exact in any order.
Applied PushBatch(Group* group, int64_t worker, int64_t incarnation, int64_t seq, int64_t previous) {
  const std::vector<int64_t> ids = IdsOf(worker, seq), times = {kStartTime};
  const std::vector<int64_t> splits = {0, 0, static_cast<int64_t>(ids.size())};
  const std::vector<float> gradients(ids.size() * kSgdDim, -1.0f), learning_rates = {0.5f, 1.0f};
  Update update;
  update.gradients = gradients;
  update.learning_rates = learning_rates;
  update.times = times;
  const Push push{incarnation, seq, {worker, seq, std::to_string(seq), seq}, previous};
  return group->Apply(MakePlan(ids, splits, true), update, {&push, 1});
}

// Returns the expected rows when batches 0 to the stamp's were applied of every worker.
Weights ExpectedAfter(const std::vector<BatchStamp>& stamps) {
  Weights weights;
  for (const BatchStamp& stamp : stamps) {
    EXPECT_EQ(stamp.position, std::to_string(stamp.seq));
    for (int64_t seq = 0; seq <= stamp.seq; ++seq) {
      for (const int64_t id : IdsOf(stamp.worker, seq)) weights[id] += 1.0f;
    }
  }
  return weights;
}

Weights WeightsOf(const Content& content) {
  Weights weights;
  for (const auto& [table_and_id, text] : content.rows) {
    float weight;
    std::memcpy(&weight, text.data() + sizeof(uint32_t), sizeof(weight));
    weights[table_and_id.second] = weight;
  }
  return weights;
}

Weights WeightsOf(const Group& group) { return WeightsOf(RowsOf(group)); }

void ExpectCutsAreExact(Group* group, const std::atomic<int>& pushing) {
  int cuts = 0;
  for (bool last = false; !last; ++cuts) {
    last = pushing.load() == 0;  // one more cut after the last push
    const std::unique_ptr<Cut> cut = group->OpenCut();
    const std::unique_ptr<BlockSource> blocks = cut->Blocks(0, kNumBuckets, {});
    ASSERT_EQ(WeightsOf(ReadAll(blocks.get())), ExpectedAfter(cut->stamps())) << "cut " << cuts;
  }
}

// More threads in a call than this machine may have CPUs, so that tasks of one call run concurrently.
class WorkerStressTest : public ::testing::Test {
 protected:
  void SetUp() override { SetNumThreads(4); }
  void TearDown() override { SetNumThreads(threads_before_); }

 private:
  const int threads_before_ = NumThreads();
};

TEST_F(WorkerStressTest, ACutHoldsExactlyTheBatchesThatItsStampsName) {
  constexpr int64_t kBatches = 30;
  const std::unique_ptr<Group> group = MakeTestGroup();
  std::atomic<int> pushing{kWorkers};
  RunThreads(kWorkers + 1, [&](int t) {
    if (t == kWorkers) return ExpectCutsAreExact(group.get(), pushing);
    std::mt19937_64 random(static_cast<uint64_t>(t));
    const int64_t incarnation = group->Join(t).incarnation;
    for (int64_t seq = 0; seq < kBatches; ++seq) {
      EXPECT_FALSE(PushBatch(group.get(), t, incarnation, seq, seq - 1).duplicate);
      // As if the answer had been lost: repeats this push or an older one.
      if (random() % 2 == 0) {
        EXPECT_TRUE(PushBatch(group.get(), t, incarnation, seq, seq - 1).duplicate);
      }
      if (random() % 4 == 0) {
        EXPECT_TRUE(PushBatch(group.get(), t, incarnation, seq / 2, seq / 2 - 1).duplicate);
      }
      if (random() % 4 == 0) {
        EXPECT_THROW(PushBatch(group.get(), t, incarnation, seq + 2, seq + 1), Error);
      }
    }
    --pushing;
  });
  std::vector<BatchStamp> all;
  for (int64_t worker = 0; worker < kWorkers; ++worker) {
    all.push_back({worker, kBatches - 1, std::to_string(kBatches - 1), kBatches - 1});
  }
  EXPECT_EQ(group->Stamps(), all);
  EXPECT_EQ(WeightsOf(*group), ExpectedAfter(all));
}

// Several threads send the same pushes, like a worker that resends its messages: each is applied by one of them.
TEST_F(WorkerStressTest, RepeatedPushesOfOneWorkerAreAppliedOnce) {
  constexpr int64_t kBatches = 40;
  const std::unique_ptr<Group> group = MakeTestGroup();
  const int64_t incarnation = group->Join(0).incarnation;
  std::vector<std::atomic<int>> applied(kBatches);
  RunThreads(4, [&](int) {
    for (int64_t seq = 0; seq < kBatches; ++seq) {
      applied[static_cast<size_t>(seq)] += !PushBatch(group.get(), 0, incarnation, seq, seq - 1).duplicate;
    }
  });
  for (const std::atomic<int>& times : applied) EXPECT_EQ(times.load(), 1);
  EXPECT_EQ(WeightsOf(*group), ExpectedAfter(group->Stamps()));
}

// Pushes batch after batch from the joined position on, until a later incarnation ends this one or all are applied.
int64_t PushUntilReplaced(Group* group, int64_t num_batches) {
  const WorkerClocks::Joined joined = group->Join(0);
  int64_t applied = 0, last = joined.last.has_value() ? joined.last->seq : kNothingApplied;
  try {
    for (; last + 1 < num_batches; ++last) {
      applied += !PushBatch(group, 0, joined.incarnation, last + 1, last).duplicate;
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kFailedPrecondition);
    EXPECT_NE(std::string(error.what()).find("is over, a later one ("), std::string::npos) << error.what();
  }
  return applied;
}

TEST_F(WorkerStressTest, ARestartedWorkerGoesOnBesideItsOldIncarnation) {
  constexpr int64_t kBatches = 60;
  const std::unique_ptr<Group> group = MakeTestGroup();
  std::atomic<int64_t> applied{0};
  std::atomic<int> pushing{3};
  RunThreads(4, [&](int t) {
    if (t == 3) return ExpectCutsAreExact(group.get(), pushing);
    // One of them runs longer than the others, which replace it from time to time.
    for (int lives = 0; (t == 0 || lives < 10) && group->LastApplied(0) < kBatches - 1; ++lives) {
      applied += PushUntilReplaced(group.get(), kBatches);
    }
    --pushing;
  });
  EXPECT_EQ(applied.load(), kBatches);
  EXPECT_EQ(WeightsOf(*group), ExpectedAfter({{0, kBatches - 1, std::to_string(kBatches - 1), 0}}));
}

}  // namespace
}  // namespace monolith
