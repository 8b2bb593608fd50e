// Many threads on one group: their writes add up, and no reader ever sees half a row or that of another id. Sized to
// finish in seconds under the thread sanitizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "table/bucket_lock.h"
#include "table/group.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

// More threads in a call than this machine may have CPUs, so that tasks of one call run concurrently.
class GroupStressTest : public ::testing::Test {
 protected:
  void SetUp() override { SetNumThreads(4); }
  void TearDown() override { SetNumThreads(threads_before_); }

 private:
  const int threads_before_ = NumThreads();
};

TEST_F(GroupStressTest, GradientsOfManyThreadsAddUp) {
  constexpr int kWriters = 4, kSteps = 12;
  const std::vector<int64_t> pool = SpreadIds(3000);
  const std::unique_ptr<Group> group = MakeTestGroup();
  std::atomic<int> writing{kWriters};
  std::atomic<int64_t> inserted{0};
  std::vector<std::map<int64_t, int>> seen(kWriters);  // occurrences in table 1, by writer
  RunThreads(kWriters + 2, [&](int t) {
    std::mt19937_64 random(static_cast<uint64_t>(t));
    if (t >= kWriters) {
      while (writing.load() > 0) LookupWhole(*group, t - kWriters, Draw(&random, 5000, pool));
      return;
    }
    for (int step = 0; step < kSteps; ++step) {
      // Every third batch is large enough to be divided among the pool.
      const std::vector<int64_t> ids = Draw(&random, step % 3 == 0 ? 12'000 : 500, pool);
      for (size_t i = ids.size() / 2; i < ids.size(); ++i) ++seen[static_cast<size_t>(t)][ids[i]];
      inserted += ApplyStep(group.get(), ids, 1.0f, kStartTime + step, step % 2 == 0).inserted;
    }
    --writing;
  });
  std::map<int64_t, int> total;
  for (const auto& each : seen) {
    for (const auto& [id, count] : each) total[id] += count;
  }
  std::vector<int64_t> ids;
  for (const auto& [id, count] : total) ids.push_back(id);
  const std::vector<float> weights = LookupWhole(*group, 1, ids);
  for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(weights[i], -static_cast<float>(total[ids[i]])) << ids[i];
  EXPECT_EQ(group->Ids(1).size(), ids.size());
  EXPECT_EQ(inserted.load(), static_cast<int64_t>(group->Ids(0).size() + group->Ids(1).size()));
}

constexpr int64_t kWritesPerId = 4096;

// Writes and removes the rows of ids [1, num_ids] in random order. The weights and the time of a row carry one stamp,
// exact in a float, that identifies its id and the write it came from.
void ChurnRows(Group* group, uint64_t seed, int64_t num_ids, int steps) {
  std::mt19937_64 random(seed);
  for (int step = 0; step < steps; ++step) {
    std::vector<int64_t> ids, times;
    std::vector<float> rows;
    for (int k = 0; k < 40; ++k) {
      ids.push_back(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(num_ids)));
      times.push_back(ids.back() * kWritesPerId + static_cast<int64_t>(random() % kWritesPerId));
      rows.insert(rows.end(), kAdagradDim, static_cast<float>(times.back()));
    }
    random() % 4 == 0 ? group->Erase(0, ids) : group->Assign(0, ids, rows, times, false, 0);
  }
}

void ExpectOwnRow(int64_t id, const float* row, int64_t time, bool found) {
  for (int d = 1; d < kAdagradDim; ++d) ASSERT_EQ(row[d], row[0]) << "torn row of id " << id;
  if (!found) {
    ASSERT_EQ(row[0], 0.0f);
    return;
  }
  ASSERT_EQ(row[0], static_cast<float>(time)) << "row and time of id " << id << " are of two writes";
  ASSERT_EQ(time / kWritesPerId, id) << "row of another id";
}

TEST_F(GroupStressTest, RowsAreReadWholeWhileRecordsAreReused) {
  constexpr int kWriters = 3, kSteps = 400;
  constexpr int64_t kIds = 300;
  const std::unique_ptr<Group> group = MakeTestGroup();
  std::atomic<int> writing{kWriters};
  std::vector<int64_t> ids(kIds);
  std::iota(ids.begin(), ids.end(), 1);
  RunThreads(kWriters + 2, [&](int t) {
    if (t < kWriters) {
      ChurnRows(group.get(), static_cast<uint64_t>(t), kIds, kSteps);
      --writing;
      return;
    }
    std::vector<float> weights(kIds * kAdagradDim);
    std::vector<uint8_t> state(kIds * static_cast<size_t>(group->table(0).spec.state_bytes())), found(kIds);
    std::vector<int64_t> times(kIds);
    while (writing.load() > 0) {
      group->LookupRows(0, ids, weights, state, times, found);
      for (size_t i = 0; i < ids.size(); ++i) {
        ExpectOwnRow(ids[i], weights.data() + i * kAdagradDim, times[i], found[i] != 0);
      }
      for (const float value : LookupWhole(*group, 0, ids)) EXPECT_GE(value, 0.0f);
    }
  });
  EXPECT_EQ(group->Stats(0).rows, static_cast<int64_t>(group->Ids(0).size()));
}

// Rows that take long to copy, and few of them: a reader that does not validate sees halves of two writes.
TEST_F(GroupStressTest, WideRowsAreReadWhole) {
  constexpr int kDim = 1024, kWriters = 2;
  constexpr int kWrites = kReadersLock ? 100 : 3000;  // the thread sanitizer is slow, and under it all readers lock
  const Kernel sgd = {"sgd", Params({{"stochastic_rounding", 0}, {"delay_compensation_lambda", 0}})};
  std::vector<TableSpec> specs;
  specs.push_back(MakeTestSpec("wide", kDim, sgd, {}));
  Group group(std::move(specs), nullptr);
  const std::vector<int64_t> ids = {1, 2, 3, 4};
  std::atomic<int> writing{kWriters};
  RunThreads(kWriters + 2, [&](int t) {
    std::vector<float> rows(ids.size() * kDim);
    if (t < kWriters) {
      for (int write = 1; write < kWrites; ++write) {
        std::fill(rows.begin(), rows.end(), static_cast<float>(write * kWriters + t));
        group.Assign(0, ids, rows, std::vector<int64_t>{write}, false, 0);
      }
      --writing;
      return;
    }
    while (writing.load() > 0) {
      group.Lookup(ids, std::vector<int64_t>{0, 4}, rows, 0);
      for (size_t i = 0; i < ids.size(); ++i) {
        const auto row = std::span(rows).subspan(i * kDim, kDim);
        ASSERT_EQ(std::count(row.begin(), row.end(), row[0]), kDim) << "torn row of id " << ids[i];
      }
    }
  });
}

TEST_F(GroupStressTest, PooledReadsSeeWholeRows) {
  const std::unique_ptr<Group> group = MakeTestGroup();
  std::atomic<bool> writing{true};
  constexpr int64_t kIds = 200, kBags = 50;
  std::vector<int64_t> ids(kIds), splits(kBags + 1);
  std::iota(ids.begin(), ids.end(), 1);
  for (int64_t bag = 0; bag <= kBags; ++bag) splits[static_cast<size_t>(bag)] = bag * kIds / kBags;
  RunThreads(3, [&](int t) {
    if (t == 0) {
      ChurnRows(group.get(), 7, kIds, 600);
      writing = false;
      return;
    }
    const Pooling pooling = t == 1 ? Pooling::kSum : Pooling::kFirstN;
    std::vector<float> values(kBags * kAdagradDim * (t == 1 ? 1 : 2));
    while (writing) {
      group->LookupPooled(0, ids, splits, pooling, 2, values, 0);
      for (size_t row = 0; row < values.size(); row += kAdagradDim) {
        for (size_t d = 1; d < kAdagradDim; ++d) ASSERT_EQ(values[row + d], values[row]);
      }
    }
  });
}

TEST_F(GroupStressTest, EverythingAtOnceLeavesTablesWhole) {
  constexpr int kWriters = 3, kSteps = 60;
  const std::vector<int64_t> pool = CrowdedIds(2000);
  constexpr uint64_t kCap = 400;
  const std::unique_ptr<Group> group = MakeTestGroup({.sgd_min_count = 2, .expire_days = 1, .max_rows = kCap});
  std::atomic<int> writing{kWriters};
  RunThreads(kWriters + 4, [&](int t) {
    std::mt19937_64 random(static_cast<uint64_t>(t));
    if (t < kWriters) {
      for (int step = 0; step < kSteps; ++step) {
        const int64_t time = kStartTime + static_cast<int64_t>(random() % (3 * kSecondsPerDay));
        ApplyStep(group.get(), Draw(&random, 300, pool), 0.25f, time, step % 2 == 0);
      }
      --writing;
      return;
    }
    while (writing.load() > 0) {
      const std::vector<int64_t> ids = Draw(&random, 100, pool);
      if (t == kWriters) group->Evict(-1, kStartTime + 2 * kSecondsPerDay);
      if (t == kWriters + 1) random() % 8 == 0 ? group->Clear() : group->ClearBuckets(100, 300);
      if (t == kWriters + 2) {
        std::vector<int8_t> status(ids.size());
        group->Reinitialize(0, ids, kStartTime, status);
        group->Erase(1, ids);
      }
      if (t == kWriters + 3) {
        for (int table = 0; table < 2; ++table) {
          LookupWhole(*group, table, ids);
          EXPECT_GE(group->Stats(table).rows, 0);
          const std::vector<int64_t> there = group->Ids(table);
          EXPECT_EQ(std::set<int64_t>(there.begin(), there.end()).size(), there.size()) << "an id has two rows";
        }
      }
      std::this_thread::yield();
    }
  });
  for (int table = 0; table < 2; ++table) {
    const std::vector<int64_t> ids = group->Ids(table);
    EXPECT_EQ(group->Stats(table).rows, static_cast<int64_t>(ids.size()));
    EXPECT_LE(ids.size(), kCap);
    std::vector<uint8_t> found(ids.size());
    EXPECT_EQ(group->Contains(table, ids, found), static_cast<int64_t>(ids.size()));
  }
}

// Row numbers are reused after a clear: the hints of an older plan may then name rows of other buckets, which another
// thread is changing.
TEST_F(GroupStressTest, APlanReadBeforeAClearStillUpdatesItsOwnRows) {
  const std::unique_ptr<Group> group = MakeTestGroup();
  const std::vector<int64_t> ids = IdsInBuckets(100, 500, 1000), others = IdsInBuckets(100, 0, 400);
  const std::vector<int64_t> splits = {0, 0, 100}, times = {kStartTime};
  const std::vector<float> rows(100 * kSgdDim, 1.0f), learning_rates = {0.5f, 1.0f};
  Update update;
  update.gradients = rows;
  update.learning_rates = learning_rates;
  update.times = times;
  for (int round = 0; round < 20; ++round) {
    group->Assign(1, ids, rows, times, false, 0);
    Plan plan = MakePlan(ids, splits, true);
    std::vector<float> values(static_cast<size_t>(group->NumValues(plan)));
    ASSERT_EQ(group->Read(plan, values, 0), 100);
    group->Clear();
    RunThreads(2, [&](int t) {
      if (t == 0) {
        group->Apply(plan, update);
        return;
      }
      group->Assign(1, others, rows, times, false, 0);
      group->Erase(1, others);
      group->Assign(1, others, rows, times, false, 0);
    });
    ASSERT_EQ(LookupWhole(*group, 1, ids), std::vector<float>(100, -1.0f));
    ASSERT_EQ(LookupWhole(*group, 1, others), std::vector<float>(100, 1.0f));
  }
}

}  // namespace
}  // namespace monolith
