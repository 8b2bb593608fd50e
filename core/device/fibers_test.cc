#include "device/fibers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "device/on_cpu.h"

namespace monolith::device {
namespace {

constexpr uint32_t kCount = 64;

// Every fiber adds up what all of them have written, round after round: wrong without barriers, in any order.
struct Rounds {
  int num_rounds;
  std::vector<uint32_t>* shared;
  std::vector<uint32_t>* sums;

  static void Run(const void* argument) {
    const auto& rounds = *static_cast<const Rounds*>(argument);
    const uint32_t me = threadIdx.x;
    for (int round = 0; round < rounds.num_rounds; ++round) {
      (*rounds.shared)[me] = me + static_cast<uint32_t>(round);
      __syncthreads();
      uint32_t sum = 0;
      for (const uint32_t value : *rounds.shared) sum += value;
      (*rounds.sums)[me] += sum;
      __syncthreads();
    }
  }
};

TEST(FibersTest, EveryFiberSeesWhatAllWroteBeforeTheBarrier) {
  for (const uint64_t seed : {0, 1, 2}) {
    ThreadOrder order(kCount, seed);
    Fibers fibers(kCount);
    for (int block = 0; block < 3; ++block) {  // fibers are used again
      std::vector<uint32_t> shared(kCount), sums(kCount);
      const Rounds rounds = {5, &shared, &sums};
      fibers.Run(Rounds::Run, &rounds, order);
      constexpr uint32_t kSumOfNumbers = kCount * (kCount - 1) / 2;
      EXPECT_EQ(sums, std::vector<uint32_t>(kCount, 5 * kSumOfNumbers + kCount * (0 + 1 + 2 + 3 + 4)));
    }
  }
}

TEST(FibersTest, BodiesWithoutBarriersRunOnceEachInTheGivenOrder) {
  struct Record {
    std::vector<uint32_t>* numbers;
    uint32_t* next;
    static void Run(const void* argument) {
      const auto& record = *static_cast<const Record*>(argument);
      (*record.numbers)[atomicAdd(record.next, 1u)] = threadIdx.x;
    }
  };
  std::vector<uint32_t> in_order(kCount), ran(kCount);
  uint32_t next = 0;
  std::iota(in_order.begin(), in_order.end(), 0u);
  Fibers fibers(kCount);
  const Record record = {&ran, &next};
  ThreadOrder ascending(kCount, 0), shuffled(kCount, 7);
  fibers.Run(Record::Run, &record, ascending);
  EXPECT_EQ(ran, in_order);
  next = 0;
  fibers.Run(Record::Run, &record, shuffled);
  EXPECT_NE(ran, in_order);
  std::sort(ran.begin(), ran.end());
  EXPECT_EQ(ran, in_order);
}

TEST(FibersDeathTest, ABarrierThatSomeFibersDoNotReachAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  struct HalfWait {
    static void Run(const void*) {
      if (threadIdx.x % 2 == 0) __syncthreads();
    }
  };
  EXPECT_DEATH(
      {
        ThreadOrder order(4, 0);
        Fibers fibers(4);
        fibers.Run(HalfWait::Run, nullptr, order);
      },
      "num_waiting");
}

}  // namespace
}  // namespace monolith::device
