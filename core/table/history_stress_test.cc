// Cuts and changes with concurrent writers: a cut is the state of one instant, and nothing is missing from the changes.
// Sized to finish in seconds under the thread sanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "table/cut.h"
#include "table/gate.h"
#include "table/group.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

const std::vector<int64_t>& Pool() {
  static const std::vector<int64_t> pool = CrowdedIds(1500);
  return pool;
}

// One random call of those that change a group.
void ChangeSomething(Group* group, std::mt19937_64* random, int step) {
  const uint64_t kind = (*random)() % 10;
  const int64_t time = kStartTime + static_cast<int64_t>((*random)() % (3 * kSecondsPerDay));
  const std::vector<int64_t> ids = Draw(random, kind < 7 ? 250 : 60, Pool());
  if (kind < 7) {
    ApplyStep(group, ids, 0.125f * static_cast<float>(1 + step % 5), time, kind < 3);
  } else if (kind == 7) {
    const std::vector<float> rows(ids.size() * kSgdDim, static_cast<float>(step));
    group->Assign(1, ids, rows, std::vector<int64_t>{time}, step % 2 == 0, 0);
  } else if (kind == 8) {
    group->Erase(static_cast<int>((*random)() % 2), ids);
  } else {
    group->Evict(-1, kStartTime + 2 * kSecondsPerDay + static_cast<int64_t>((*random)() % kSecondsPerDay));
  }
}

// Starts writers that run until stopped; `pause` lets a test stop them all between two calls.
class Writers {
 public:
  Writers(Group* group, int count) {
    for (int t = 0; t < count; ++t) {
      threads_.emplace_back([this, group, t] {
        std::mt19937_64 random(static_cast<uint64_t>(100 + t));
        for (int step = 0; !stop_; ++step) {
          {
            const Gate::Shared running(pause);
            ChangeSomething(group, &random, step);
          }
          ++calls;
        }
      });
    }
  }
  ~Writers() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void WaitForCalls(int count) const {
    for (const int until = calls + count; calls < until;) std::this_thread::yield();
  }

  Gate pause;
  std::atomic<int> calls{0};

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// Reads the cut with several threads, a part of the buckets each.
Content ReadInParallel(Cut* cut, uint32_t num_threads) {
  std::vector<Content> parts(num_threads);
  RunThreads(static_cast<int>(num_threads), [&](int t) {
    const auto part = static_cast<uint32_t>(t);
    const auto source = cut->Blocks(kNumBuckets * part / num_threads, kNumBuckets * (part + 1) / num_threads, {});
    parts[part] = ReadAll(source.get());
  });
  Content content;
  for (Content& part : parts) {
    content.rows.merge(part.rows);
    content.tombstones.merge(part.tombstones);
    content.filters.merge(part.filters);
  }
  return content;
}

TEST(CutStressTest, ACutReadBesideWritersIsTheStateWhenItWasTaken) {
  const std::unique_ptr<Group> group = MakeTestGroup({.sgd_min_count = 2, .expire_days = 1});
  Writers writers(group.get(), 3);
  for (int round = 0; round < 5; ++round) {
    writers.WaitForCalls(20);
    Content at_rest;
    std::unique_ptr<Cut> cut;
    {
      const Gate::Alone paused(writers.pause);
      at_rest = ReadInParallel(group->OpenCut().get(), 1);
      ASSERT_EQ(at_rest.rows, RowsOf(*group).rows);
      cut = group->OpenCut();
      EXPECT_THROW(group->OpenCut(), Error);
    }
    writers.WaitForCalls(round * 5);  // so that rows change before, while and after they are read
    if (round % 2 == 0) group->Mark();
    const Content under_fire = ReadInParallel(cut.get(), 2);
    EXPECT_EQ(cut->counts()[0] + cut->counts()[1], static_cast<int64_t>(under_fire.rows.size()));
    EXPECT_FALSE(at_rest.filters.empty());
    ASSERT_EQ(under_fire.rows, at_rest.rows);
    ASSERT_EQ(under_fire.tombstones, at_rest.tombstones);
    ASSERT_EQ(under_fire.filters, at_rest.filters);
  }
}

// A walk in bucket order begins in the first buckets and ends in the last: these alone show whether a cut fell in
// between.
TEST(CutStressTest, ABatchIsInACutAsAWholeOrNotAtAll) {
  constexpr int kWriters = 3, kCuts = 60;
  const std::unique_ptr<Group> group = MakeTestGroup();
  std::vector<std::vector<int64_t>> ids(kWriters);
  for (int t = 0; t < kWriters; ++t) {
    ids[static_cast<size_t>(t)] = IdsInBuckets(10, 0, 8, t * 1'000'000);
    for (const int64_t id : IdsInBuckets(200, 8, 1016, t * 1'000'000)) ids[static_cast<size_t>(t)].push_back(id);
    for (const int64_t id : IdsInBuckets(10, 1016, 1024, t * 1'000'000)) ids[static_cast<size_t>(t)].push_back(id);
  }
  std::atomic<int> batches{0};
  std::atomic<bool> stop{false};
  RunThreads(kWriters + 1, [&](int t) {
    if (t < kWriters) {
      const std::vector<int64_t>& mine = ids[static_cast<size_t>(t)];
      for (int64_t write = 1; !stop; ++write, ++batches) {
        const std::vector<float> rows(mine.size() * kSgdDim, static_cast<float>(write));
        group->Assign(1, mine, rows, std::vector<int64_t>{write}, false, 0);
      }
      return;
    }
    for (int round = 0; round < kCuts; ++round) {
      for (const int until = batches + 2; batches < until;) std::this_thread::yield();
      const std::unique_ptr<Cut> cut = group->OpenCut();
      Content content = ReadAll(cut->Blocks(0, 8, {}).get());
      content.rows.merge(ReadAll(cut->Blocks(1016, 1024, {}).get()).rows);
      std::vector<std::set<std::string>> texts(kWriters);
      for (const auto& [key, text] : content.rows) texts[static_cast<size_t>(key.second / 1'000'000)].insert(text);
      for (const auto& each : texts) EXPECT_LE(each.size(), 1u) << "parts of two batches in one cut";
      EXPECT_EQ(content.rows.size() % 20, 0u) << "a part of a first batch";
    }
    stop = true;
  });
}

TEST(CutStressTest, RowsThatChangeAfterTheyWereReadAreNotReadAgain) {
  const std::unique_ptr<Group> group = MakeTestGroup();
  const std::vector<int64_t> ids = IdsInBuckets(6000, 7, 8);  // more than one block of one bucket
  const std::vector<int64_t> erased(ids.begin(), ids.begin() + 3000);
  const auto assign_all = [&](float value) {
    group->Assign(1, ids, std::vector<float>(ids.size() * kSgdDim, value), std::vector<int64_t>{kStartTime}, false, 0);
  };
  assign_all(1.0f);
  const Content before = RowsOf(*group);
  const std::unique_ptr<Cut> cut = group->OpenCut();
  const std::unique_ptr<BlockSource> source = cut->Blocks(0, kNumBuckets, {});
  Content content;
  int blocks = 0;
  for (std::string block; source->Next(&block); ++blocks) {
    AddBlock(block, &content);
    assign_all(static_cast<float>(2 + blocks));
    group->Erase(1, erased);
    assign_all(static_cast<float>(3 + blocks));  // the erased ids are inserted again, in records used before
  }
  EXPECT_GT(blocks, 1);
  EXPECT_EQ(content.rows, before.rows);
}

TEST(CutStressTest, AnAbandonedCutDoesNoHarm) {
  const std::unique_ptr<Group> group = MakeTestGroup({.sgd_min_count = 2, .expire_days = 1});
  Writers writers(group.get(), 2);
  for (int round = 0; round < 10; ++round) {
    const std::unique_ptr<Cut> cut = group->OpenCut();
    const auto source = cut->Blocks(0, 300, {});
    std::string block;
    for (int i = 0; i < 20 && source->Next(&block); ++i) {
    }
    writers.WaitForCalls(5);
  }
  writers.Stop();
  EXPECT_EQ(ReadInParallel(group->OpenCut().get(), 2).rows, RowsOf(*group).rows);
}

// Applies everything changed since the last mark to a copy.
uint64_t Follow(Group* group, Group* copy, uint64_t since) {
  const uint64_t mark = group->Mark();
  std::string packed;
  for (const std::string& part : group->PackedChanges(since, 0, kNumBuckets, true)) packed += part;
  copy->Load(RowBlockView::AllIn(packed), 0, kNumBuckets, {});
  return mark;
}

// Closes epochs continuously, so that those of rows wrap around many times.
class Marker {
 public:
  explicit Marker(Group* group)
      : thread_([this, group] {
          for (; !stop_; ++marks) {
            group->Mark();
            std::this_thread::yield();
          }
        }) {}
  ~Marker() {
    stop_ = true;
    thread_.join();
  }
  void WaitForMarks(int count) const {
    for (const int until = marks + count; marks < until;) std::this_thread::yield();
  }

  std::atomic<int> marks{0};

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(CutStressTest, ACutStaysExactWhileEpochsStartOver) {
  constexpr uint32_t kFewEpochs = 12;
  const std::unique_ptr<Group> group = MakeTestGroup({.expire_days = 1, .max_row_epoch = kFewEpochs});
  group->FollowHistory(true);
  group->Mark();  // removals up to the first mark cannot be requested: the first cut to close drops them
  Writers writers(group.get(), 2);
  const Marker marker(group.get());
  for (int round = 0; round < 6; ++round) {
    writers.WaitForCalls(10);
    Content at_rest;
    std::unique_ptr<Cut> cut;
    {
      const Gate::Alone paused(writers.pause);
      at_rest = ReadInParallel(group->OpenCut().get(), 1);
      ASSERT_EQ(at_rest.rows, RowsOf(*group).rows);
      cut = group->OpenCut();
    }
    writers.WaitForCalls(round * 5);
    marker.WaitForMarks(static_cast<int>(kFewEpochs) * round);
    if (round % 2 == 0) group->TruncateHistory(cut->epoch());
    const Content under_fire = ReadInParallel(cut.get(), 2);
    ASSERT_EQ(under_fire.rows, at_rest.rows);
    ASSERT_EQ(RemovedIn(under_fire), RemovedIn(at_rest));
  }
}

TEST(ChangesStressTest, ACopyEndsUpEqualWhileEpochsStartOver) {
  constexpr uint32_t kFewEpochs = 12;
  const std::unique_ptr<Group> group = MakeTestGroup({.expire_days = 1, .max_row_epoch = kFewEpochs});
  const std::unique_ptr<Group> copy = MakeTestGroup();
  group->FollowHistory(true);
  uint64_t since = 0;
  {
    Writers writers(group.get(), 2);
    const Marker marker(group.get());
    for (int round = 0; round < 12; ++round) {
      writers.WaitForCalls(3);
      since = Follow(group.get(), copy.get(), since);
      if (round % 3 != 2) group->TruncateHistory(since);
      if (round % 4 == 3) ReadInParallel(group->OpenCut().get(), 1);
    }
  }
  Follow(group.get(), copy.get(), since);
  EXPECT_FALSE(RowsOf(*group).rows.empty());
  EXPECT_EQ(RowsOf(*copy).rows, RowsOf(*group).rows);
}

TEST(ChangesStressTest, ACopyThatFollowsTheChangesEndsUpEqual) {
  const std::unique_ptr<Group> group = MakeTestGroup({.sgd_min_count = 2, .expire_days = 1});
  const std::unique_ptr<Group> copy = MakeTestGroup();
  group->FollowHistory(true);
  Writers writers(group.get(), 3);
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    std::mt19937_64 random(9);
    while (!stop) LookupWhole(*copy, 0, Draw(&random, 500, Pool()));
  });
  uint64_t since = 0;
  for (int round = 0; round < 12; ++round) {
    writers.WaitForCalls(4);
    since = Follow(group.get(), copy.get(), since);
    if (round % 5 == 4) group->TruncateHistory(since);
    if (round % 6 == 5) ReadInParallel(group->OpenCut().get(), 1);
  }
  writers.Stop();
  Follow(group.get(), copy.get(), since);
  stop = true;
  reader.join();
  EXPECT_FALSE(RowsOf(*group).rows.empty());
  EXPECT_EQ(RowsOf(*copy).rows, RowsOf(*group).rows);
}

TEST(ChangesStressTest, EveryRemovalIsATombstoneAfterItsMark) {
  const std::unique_ptr<Group> group = MakeTestGroup();
  std::vector<int64_t> ids(2000);
  std::iota(ids.begin(), ids.end(), -1000);
  ApplyStep(group.get(), ids, 1.0f, kStartTime, false);
  group->FollowHistory(true);
  const uint64_t mark = group->Mark();
  const std::vector<int64_t> first_half(ids.begin(), ids.begin() + 1000);
  RunThreads(4, [&](int t) {
    for (size_t i = static_cast<size_t>(t); i < first_half.size(); i += 4) {
      EXPECT_EQ(group->Erase(0, std::span(first_half).subspan(i, 1)), 1);
    }
  });
  std::vector<int64_t> removed = group->Tombstones(0, mark);
  std::sort(removed.begin(), removed.end());
  EXPECT_EQ(removed, first_half);
  EXPECT_TRUE(group->Tombstones(0, group->Mark()).empty());
  EXPECT_TRUE(group->Tombstones(1, mark).empty());
}

}  // namespace
}  // namespace monolith
