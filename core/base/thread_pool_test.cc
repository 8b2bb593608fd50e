#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MONOLITH_THREAD_SANITIZER 1
#endif
#endif

namespace monolith {
namespace {

class ThreadPoolTest : public testing::Test {
 protected:
  void TearDown() override { SetNumThreads(threads_before_); }

 private:
  const int threads_before_ = NumThreads();
};

TEST_F(ThreadPoolTest, EachTaskIsDoneOnceWhateverTheNumberOfThreads) {
  for (const int threads : {1, 2, 3, 8, 16, 70}) {
    SetNumThreads(threads);
    EXPECT_EQ(NumThreads(), threads);
    for (const int tasks : {0, 1, 2, 63, 1000}) {
      std::vector<std::atomic<int>> done(static_cast<size_t>(tasks));
      ParallelFor(tasks, [&](int task) { done[static_cast<size_t>(task)].fetch_add(1); });
      for (const auto& count : done) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST_F(ThreadPoolTest, ManyShortCallsInARow) {
  SetNumThreads(4);
  int64_t sum = 0;
  for (int call = 0; call < 5000; ++call) {
    std::atomic<int64_t> of_call{0};
    ParallelFor(3, [&](int task) { of_call.fetch_add(task + call); });
    sum += of_call.load();
  }
  EXPECT_EQ(sum, int64_t{3} * 5000 + int64_t{3} * 5000 * 4999 / 2);
}

TEST_F(ThreadPoolTest, TheFirstErrorIsThrownWhenTheOthersAreDone) {
  for (const int threads : {1, 4}) {
    SetNumThreads(threads);
    std::atomic<int> done{0};
    const auto fail = [&](int task) {
      done.fetch_add(1);
      if (task % 10 == 3) throw Error(Code::kInvalidArgument, "task failed");
    };
    EXPECT_THROW(ParallelFor(100, fail), Error);
    EXPECT_EQ(done.load(), 100);
    done = 0;
    ParallelFor(100, [&](int) { done.fetch_add(1); });  // the error does not outlive its call
    EXPECT_EQ(done.load(), 100);
  }
}

// All workers are in the middle of another call's tasks, and stay there.
TEST_F(ThreadPoolTest, ACallerFinishesWhatNobodyTakes) {
  SetNumThreads(3);
  std::latch workers_are_busy(3), go_on(1);
  std::thread other([&] {
    ParallelFor(3, [&](int) {
      workers_are_busy.count_down();
      go_on.wait();
    });
  });
  workers_are_busy.wait();
  const std::thread::id self = std::this_thread::get_id();
  int done = 0;
  ParallelFor(50, [&](int) {
    EXPECT_EQ(std::this_thread::get_id(), self);
    ++done;
  });
  EXPECT_EQ(done, 50);
  go_on.count_down();
  other.join();
}

// One worker, two calls whose own threads are blocked: it must not serve one call and starve the other.
TEST_F(ThreadPoolTest, CallsInFlightShareTheWorkers) {
  SetNumThreads(2);
  constexpr int kTasks = 40;
  std::latch both_called(2), worker_did_most(kTasks);
  std::vector<int> served;  // by the worker alone, until the latch releases the callers
  const auto call = [&](int number) {
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<bool> is_first{true};
    ParallelFor(kTasks, [&](int) {
      if (std::this_thread::get_id() == caller) {
        if (is_first.exchange(false)) both_called.count_down();
        worker_did_most.wait();
      } else {
        both_called.wait();
        if (worker_did_most.try_wait()) return;
        served.push_back(number);
        worker_did_most.count_down();
      }
    });
  };
  std::thread first(call, 0), second(call, 1);
  first.join();
  second.join();
  int of_second = 0;
  for (const int number : served) of_second += number;
  EXPECT_GE(served.size(), size_t{kTasks});
  EXPECT_NEAR(of_second, kTasks / 2, 2);
}

TEST_F(ThreadPoolTest, ATaskMayCallItself) {
  SetNumThreads(4);
  std::atomic<int> done{0};
  ParallelFor(8, [&](int) { ParallelFor(8, [&](int) { done.fetch_add(1); }); });
  EXPECT_EQ(done.load(), 64);
}

TEST_F(ThreadPoolTest, MoreCallsThanThePoolKeepsGoOnAlone) {
  SetNumThreads(2);
  constexpr int kCalls = 100;
  std::latch all_called(kCalls);
  std::atomic<int> done{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < kCalls; ++i) {
    callers.emplace_back([&] {
      std::atomic<bool> is_first{true};
      const std::thread::id caller = std::this_thread::get_id();
      ParallelFor(4, [&](int) {
        if (std::this_thread::get_id() == caller && is_first.exchange(false)) all_called.count_down();
        all_called.wait();
        done.fetch_add(1);
      });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done.load(), 4 * kCalls);
}

TEST_F(ThreadPoolTest, ThreadsComeAndGoBesideCalls) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      while (!stop.load()) {
        std::atomic<int> done{0};
        ParallelFor(16, [&](int) { done.fetch_add(1); });
        EXPECT_EQ(done.load(), 16);
      }
    });
  }
  for (int round = 0; round < 50; ++round) SetNumThreads(1 + round % 5);
  stop = true;
  for (std::thread& caller : callers) caller.join();
}

// A worker that falls asleep at the same time must learn that it is surplus. The race window is short: without the
// order of the two loads in Pool::Work() about one round in fifty thousand never ended, so run it with --gtest_repeat
// to be sure.
TEST_F(ThreadPoolTest, ASmallerPoolWaitsForNobodyWhoSleeps) {
  for (int round = 0; round < 500; ++round) {
    SetNumThreads(6);
    ParallelFor(12, [](int) {});
    SetNumThreads(1);
  }
  EXPECT_EQ(NumThreads(), 1);
}

TEST_F(ThreadPoolTest, AThreadThatIsAloneUsesNoOther) {
  SetNumThreads(4);
  const AloneScope alone(true);
  const std::thread::id self = std::this_thread::get_id();
  ParallelFor(100, [&](int) { EXPECT_EQ(std::this_thread::get_id(), self); });
}

TEST_F(ThreadPoolTest, NoThreadsAreRefused) {
  EXPECT_THROW(SetNumThreads(0), Error);
  EXPECT_THROW(SetNumThreads(-1), Error);
}

#ifndef MONOLITH_THREAD_SANITIZER  // which ends a child that starts threads
TEST_F(ThreadPoolTest, AForkedChildHasThreadsOfItsOwn) {
  SetNumThreads(3);
  ParallelFor(10, [](int) {});
  const pid_t child = fork();
  if (child == 0) {
    SetNumThreads(3);
    std::latch all_here(3);  // all three threads are needed concurrently
    ParallelFor(3, [&](int) { all_here.arrive_and_wait(); });
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  std::latch all_here(3);
  ParallelFor(3, [&](int) { all_here.arrive_and_wait(); });
}
#endif

}  // namespace
}  // namespace monolith
