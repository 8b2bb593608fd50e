#include "table/touched_key_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"

namespace monolith {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> ids(static_cast<size_t>(end - begin));
  std::iota(ids.begin(), ids.end(), begin);
  return ids;
}

std::vector<int64_t> Sorted(std::vector<int64_t> ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

// The specification in its simplest form.
class ReferenceSet {
 public:
  explicit ReferenceSet(size_t capacity) : capacity_(capacity) {}
  int64_t Insert(int64_t id) {
    size_t dropped = 0;
    if (keys_.size() > capacity_) {
      dropped = keys_.size();
      keys_.clear();
    }
    keys_.insert(id);
    return static_cast<int64_t>(dropped);
  }
  std::vector<int64_t> Steal() {
    std::vector<int64_t> ids(keys_.begin(), keys_.end());
    keys_.clear();
    return ids;
  }
  int64_t Size() const { return static_cast<int64_t>(keys_.size()); }

 private:
  size_t capacity_;
  std::set<int64_t> keys_;
};

TEST(TouchedKeySetTest, StealReturnsWhatWasInsertedAndEmptiesTheSet) {
  TouchedKeySet set(1000, 1);
  EXPECT_EQ(set.Insert(Range(0, 1000)), 0);
  EXPECT_EQ(set.Size(), 1000);
  EXPECT_EQ(Sorted(set.Steal()), Range(0, 1000));
  EXPECT_EQ(set.Size(), 0);
  EXPECT_TRUE(set.Steal().empty());
}

TEST(TouchedKeySetTest, AnInsertAboveCapacityDropsEverythingFirst) {
  for (const int64_t level : {1, 2, 3, 1024}) {
    TouchedKeySet set(1000, level);
    EXPECT_EQ(set.Insert(Range(0, 1005)), 1001);
    EXPECT_EQ(Sorted(set.Steal()), Range(1001, 1005));
    int64_t dropped = 0;
    for (int64_t id = 0; id < 1005; ++id) {
      const int64_t once = set.Insert(id);
      EXPECT_EQ(once, id == 1001 ? 1001 : 0);
      dropped += once;
    }
    EXPECT_EQ(dropped, 1001);
    EXPECT_EQ(Sorted(set.Steal()), Range(1001, 1005));
  }
}

TEST(TouchedKeySetTest, ADuplicateInsertAboveCapacityStillClears) {
  TouchedKeySet set(2, 4);
  EXPECT_EQ(set.Insert(Range(0, 3)), 0);
  EXPECT_EQ(set.Insert(1), 3);
  EXPECT_EQ(set.Steal(), std::vector<int64_t>{1});
}

TEST(TouchedKeySetTest, DuplicatesCostNothing) {
  TouchedKeySet set(10, 2);
  for (int round = 0; round < 100; ++round) EXPECT_EQ(set.Insert(Range(0, 10)), 0);
  EXPECT_EQ(set.Size(), 10);
  EXPECT_EQ(Sorted(set.Steal()), Range(0, 10));
}

TEST(TouchedKeySetTest, EveryInt64IsAnOrdinaryKey) {
  TouchedKeySet set(100, 1);
  const std::vector<int64_t> ids = {kMin, kMin + 1, -1, 0, 1, kMax - 1, kMax};
  EXPECT_EQ(set.Insert(ids), 0);
  EXPECT_EQ(set.Insert(ids), 0);
  EXPECT_EQ(set.Size(), 7);
  EXPECT_EQ(Sorted(set.Steal()), ids);
  EXPECT_EQ(set.Insert(kMin), 0);
  EXPECT_EQ(set.Steal(), std::vector<int64_t>{kMin});
}

TEST(TouchedKeySetTest, MemoryIsTakenAtTheFirstInsertAndGivenBackBySteal) {
  TouchedKeySet set(1 << 21, 1024);
  EXPECT_EQ(set.AllocatedBytes(), 0u);
  EXPECT_EQ(set.Insert(std::vector<int64_t>{}), 0);
  EXPECT_TRUE(set.Steal().empty());
  EXPECT_EQ(set.AllocatedBytes(), 0u);
  set.Insert(7);
  EXPECT_GT(set.AllocatedBytes(), 0u);
  EXPECT_LT(set.AllocatedBytes(), 1024u);
  set.Insert(Range(0, 500'000));
  EXPECT_LT(set.AllocatedBytes(), 500'000u * 24);
  set.Steal();
  EXPECT_EQ(set.AllocatedBytes(), 0u);
}

TEST(TouchedKeySetTest, BadParametersAreRefusedByName) {
  for (const int64_t capacity : {int64_t{0}, int64_t{-1}, kMin}) EXPECT_THROW(TouchedKeySet(capacity, 1), Error);
  for (const int64_t level : {int64_t{0}, int64_t{-5}, TouchedKeySet::kMaxConcurrencyLevel + 1, kMax}) {
    EXPECT_THROW(TouchedKeySet(1, level), Error);
  }
  try {
    TouchedKeySet set(0, 1);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_STREQ(error.what(), "touched key set: capacity must be > 0, got 0");
  }
  TouchedKeySet set(kMax, TouchedKeySet::kMaxConcurrencyLevel);
  EXPECT_EQ(set.capacity(), kMax);
  EXPECT_EQ(set.Insert(Range(0, 10)), 0);
  EXPECT_EQ(set.Size(), 10);
}

TEST(TouchedKeySetTest, RandomOperationsAgreeWithTheReference) {
  std::mt19937_64 random(301);
  for (const int64_t level : {1, 5, 64}) {
    for (const int64_t capacity : {1, 2, 50, 400}) {
      TouchedKeySet set(capacity, level);
      ReferenceSet reference(static_cast<size_t>(capacity));
      for (int step = 0; step < 5000; ++step) {
        if (random() % 300 == 0) {
          ASSERT_EQ(Sorted(set.Steal()), reference.Steal());
        } else {
          const int64_t id = random() % 50 == 0 ? kMin : static_cast<int64_t>(random() % 700) - 350;
          ASSERT_EQ(set.Insert(id), reference.Insert(id)) << "step " << step;
        }
        ASSERT_EQ(set.Size(), reference.Size());
      }
    }
  }
}

// Runs `work(thread number)` on the given number of threads concurrently.
template <typename Work>
void RunThreads(int count, const Work& work) {
  std::atomic<int> waiting{count};
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      for (--waiting; waiting.load() > 0;) std::this_thread::yield();
      work(t);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TouchedKeySetTest, ManyThreadsInsertingTheSameKeysKeepEachOnce) {
  for (const int64_t level : {1, 8, 1024}) {
    TouchedKeySet set(100'000, level);
    RunThreads(6, [&](int t) {
      std::vector<int64_t> ids = Range(0, 5000);
      std::shuffle(ids.begin(), ids.end(), std::mt19937_64(static_cast<uint64_t>(t)));
      EXPECT_EQ(set.Insert(ids), 0);
    });
    EXPECT_EQ(set.Size(), 5000);
    EXPECT_EQ(Sorted(set.Steal()), Range(0, 5000));
  }
}

TEST(TouchedKeySetTest, DistinctKeysOfManyThreadsAreStolenOrDroppedExactlyOnce) {
  constexpr int64_t kPerThread = 20'000;
  constexpr int kWriters = 4;
  for (const int64_t capacity : {10, 1500, 1'000'000}) {
    TouchedKeySet set(capacity, 16);
    std::atomic<int64_t> dropped{0};
    std::atomic<int> writing{kWriters};
    std::map<int64_t, int> stolen;
    RunThreads(kWriters + 1, [&](int t) {
      if (t == kWriters) {
        while (writing.load() > 0) {
          EXPECT_LE(set.Size(), capacity + 1);
          for (const int64_t id : set.Steal()) ++stolen[id];
          std::this_thread::yield();
        }
        return;
      }
      const std::vector<int64_t> ids = Range(t * kPerThread, (t + 1) * kPerThread);
      for (size_t i = 0; i < ids.size(); i += 100) dropped += set.Insert(std::span(ids).subspan(i, 100));
      --writing;
    });
    for (const int64_t id : set.Steal()) ++stolen[id];
    for (const auto& [id, times] : stolen) {
      ASSERT_EQ(times, 1) << "id " << id;
      ASSERT_TRUE(id >= 0 && id < kWriters * kPerThread) << "phantom id " << id;
    }
    EXPECT_EQ(static_cast<int64_t>(stolen.size()) + dropped.load(), kWriters * kPerThread);
    if (capacity == 1'000'000) {
      EXPECT_EQ(dropped.load(), 0);
    }
  }
}

TEST(TouchedKeySetTest, EveryDropOfAnyThreadIsCapacityPlusOne) {
  constexpr int64_t kCapacity = 20;
  TouchedKeySet set(kCapacity, 4);
  std::atomic<int64_t> drops{0};
  RunThreads(4, [&](int t) {
    for (int64_t i = 0; i < 10'000; ++i) {
      const int64_t dropped = set.Insert(t * 10'000 + i);
      if (dropped != 0) {
        EXPECT_EQ(dropped, kCapacity + 1);
        ++drops;
      }
    }
  });
  // Distinct keys: one clear for every capacity + 1 inserts that are followed by another, whatever the order of
  // threads.
  EXPECT_EQ(drops.load(), (40'000 - 1) / (kCapacity + 1));
  EXPECT_EQ(set.Size(), 40'000 - drops.load() * (kCapacity + 1));
}

}  // namespace
}  // namespace monolith
