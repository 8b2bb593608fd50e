// The updates applied of every worker: incarnations, repeated and missing pushes, and stamps that change with the rows.
#include "table/worker_clock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "table/cut.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

Push PushOf(int64_t incarnation, int64_t seq, int64_t previous, int64_t worker = 3) {
  return {incarnation, seq, {worker, seq, "at " + std::to_string(seq), 1000 + seq % 1000}, previous};
}

// Throws the errors of the clocks; true iff the push was applied now.
bool Apply(WorkerClocks* clocks, const Push& push) {
  WorkerClocks::Turn turn(*clocks, push);
  if (!turn.is_duplicate()) turn.Record();
  return !turn.is_duplicate();
}

template <typename Call>
void ExpectError(Code code, const std::string& message, const Call& call) {
  try {
    call();
    FAIL() << "nothing was thrown; expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(error.what(), message);
  }
}

void ExpectRefused(WorkerClocks* clocks, const Push& push, const std::string& message) {
  const std::vector<BatchStamp> before = clocks->Stamps();
  ExpectError(Code::kFailedPrecondition, message, [&] { Apply(clocks, push); });
  EXPECT_EQ(clocks->Stamps(), before);
}

TEST(WorkerClocksTest, KeepTheLastStampOfEveryWorker) {
  WorkerClocks clocks;
  const int64_t second = clocks.Join(-5).incarnation, first = clocks.Join(3).incarnation;
  EXPECT_TRUE(Apply(&clocks, PushOf(first, 0, -1)));
  EXPECT_TRUE(Apply(&clocks, PushOf(first, 7, 0)));
  EXPECT_TRUE(Apply(&clocks, PushOf(second, 2, -1, -5)));
  const std::vector<BatchStamp> expected = {{-5, 2, "at 2", 1002}, {3, 7, "at 7", 1007}};
  EXPECT_EQ(clocks.Stamps(), expected);
  EXPECT_EQ(clocks.LastApplied(3), 7);
  EXPECT_EQ(clocks.LastApplied(4), kNothingApplied);
}

TEST(WorkerClocksTest, CountTheBatchesOfAllWorkers) {
  WorkerClocks clocks;
  EXPECT_EQ(clocks.Steps(), 0);
  const int64_t first = clocks.Join(3).incarnation, second = clocks.Join(4).incarnation;
  Apply(&clocks, PushOf(first, 0, -1));
  Apply(&clocks, PushOf(first, 7, 0));  // seven batches in one push, or some of them discarded
  Apply(&clocks, PushOf(second, 1, -1, 4));
  EXPECT_FALSE(Apply(&clocks, PushOf(second, 1, -1, 4)));  // counted once
  EXPECT_EQ(clocks.Steps(), 8 + 2);
  EXPECT_EQ(clocks.StepsOfOthers(3), 2);
  EXPECT_EQ(clocks.StepsOfOthers(4), 8);
  EXPECT_EQ(clocks.StepsOfOthers(5), 10);
  clocks.Resume(std::vector<BatchStamp>{{4, 2, "", 0}, {6, 9, "", 0}});
  EXPECT_EQ(clocks.Steps(), 3 + 10);
  EXPECT_EQ(clocks.StepsOfOthers(3), 13);
  EXPECT_EQ(clocks.StepsOfOthers(6), 3);
  Apply(&clocks, PushOf(clocks.Join(4).incarnation, 3, 2, 4));
  EXPECT_EQ(clocks.Steps(), 14);
  clocks.Resume({});
  EXPECT_EQ(clocks.Steps(), 0);
}

TEST(WorkerClocksTest, AStrangersNumberDoesNotOverflowTheSum) {
  WorkerClocks clocks;
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  for (const int64_t worker : {1, 2}) Apply(&clocks, PushOf(clocks.Join(worker).incarnation, kLast, -1, worker));
  EXPECT_EQ(clocks.LastApplied(2), kLast);
  clocks.Resume(std::vector<BatchStamp>{{1, kLast, "", 0}, {2, kLast, "", 0}, {3, 0, "", 0}});
  EXPECT_EQ(clocks.Steps(), 1);  // it wraps
}

TEST(WorkerClocksTest, ARepeatedPushIsADuplicateWhateverItNamesBeforeIt) {
  WorkerClocks clocks;
  const int64_t incarnation = clocks.Join(3).incarnation;
  Apply(&clocks, PushOf(incarnation, 4, -1));
  for (const int64_t previous : {-1, 0, 4, 9}) EXPECT_FALSE(Apply(&clocks, PushOf(incarnation, 4, previous)));
  EXPECT_FALSE(Apply(&clocks, PushOf(incarnation, 2, -1)));
  EXPECT_EQ(clocks.LastApplied(3), 4);
}

TEST(WorkerClocksTest, AMissingPushIsNoticed) {
  WorkerClocks clocks;
  const int64_t incarnation = clocks.Join(3).incarnation;
  ExpectRefused(&clocks, PushOf(incarnation, 9, 7),
                "worker 3: batch 9 names batch 7 as the push before it, but nothing was applied yet; push it first");
  Apply(&clocks, PushOf(incarnation, 5, -1));
  ExpectRefused(&clocks, PushOf(incarnation, 9, 7),
                "worker 3: batch 9 names batch 7 as the push before it, but the last one applied here is 5; push what "
                "follows 5 first");
  ExpectRefused(&clocks, PushOf(incarnation, 9, -1),
                "worker 3: batch 9 names no push before it, but the last one applied here is 5; push what follows 5 "
                "first");
  EXPECT_TRUE(Apply(&clocks, PushOf(incarnation, 9, 5)));  // 6 to 8 were discarded
}

TEST(WorkerClocksTest, HalfAnUpdateIsRefused) {
  WorkerClocks clocks;
  const int64_t incarnation = clocks.Join(3).incarnation;
  Apply(&clocks, PushOf(incarnation, 5, -1));
  Push summed = PushOf(incarnation, 8, 5);
  summed.first_seq = 5;
  ExpectRefused(&clocks, summed, "worker 3: batch 5 was applied before, batch 8 was not; repeat complete updates");
  summed.first_seq = 6;
  EXPECT_TRUE(Apply(&clocks, summed));
}

TEST(WorkerClocksTest, NumbersThatCannotBeAreRefused) {
  WorkerClocks clocks;
  const int64_t incarnation = clocks.Join(3).incarnation;
  Push push = PushOf(incarnation, 5, -1);
  push.first_seq = 6;
  ExpectError(Code::kInvalidArgument,
              "worker 3: batch numbers must be >= 0 and first_seq not above seq, got first_seq 6 and seq 5",
              [&] { Apply(&clocks, push); });
  EXPECT_THROW(Apply(&clocks, PushOf(incarnation, -1, -1)), Error);
}

TEST(WorkerClocksTest, ALaterIncarnationEndsTheOneBefore) {
  WorkerClocks clocks;
  const int64_t first = clocks.Join(3).incarnation;
  Apply(&clocks, PushOf(first, 5, -1));
  clocks.Join(4);
  clocks.Join(4);
  const WorkerClocks::Joined again = clocks.Join(3);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(again.incarnation, 4);
  EXPECT_EQ(again.last, (BatchStamp{3, 5, "at 5", 1005}));
  const std::string over = "worker 3: this incarnation (1) is over, a later one (4) has joined; join again";
  ExpectRefused(&clocks, PushOf(first, 6, 5), over);
  ExpectRefused(&clocks, PushOf(first, 5, -1), over);  // a repeated one, too
  ExpectError(Code::kFailedPrecondition, over, [&] { clocks.Require(3, first); });
  EXPECT_NO_THROW(clocks.Require(3, again.incarnation));
  EXPECT_TRUE(Apply(&clocks, PushOf(again.incarnation, 6, 5)));
}

TEST(WorkerClocksTest, AnIncarnationThatNeverWasIsRefused) {
  WorkerClocks clocks;
  const std::string unknown = "worker 3: incarnation 2 is unknown, the worker has not joined; join first";
  ExpectError(Code::kFailedPrecondition, unknown, [&] { clocks.Require(3, 2); });
  ExpectRefused(&clocks, PushOf(2, 0, -1), unknown);
  EXPECT_THROW(clocks.Require(3, 0), Error);
  clocks.Join(3);
  ExpectRefused(&clocks, PushOf(2, 0, -1), "worker 3: incarnation 2 is unknown, the present one is 1; join again");
}

TEST(WorkerClocksTest, AResumeReplacesStampsAndEndsIncarnations) {
  WorkerClocks clocks;
  const int64_t first = clocks.Join(3).incarnation, other = clocks.Join(6).incarnation;
  Apply(&clocks, PushOf(first, 5, -1));
  Apply(&clocks, PushOf(other, 5, -1, 6));
  const std::vector<BatchStamp> saved = {{9, 0, "", 0}, {3, 2, "saved", 50}};  // 0 is the number of a first batch
  clocks.Resume(saved);
  EXPECT_EQ(clocks.Stamps(), (std::vector<BatchStamp>{saved[1], saved[0]}));
  EXPECT_EQ(clocks.LastApplied(6), kNothingApplied);
  ExpectRefused(&clocks, PushOf(first, 6, 5),
                "worker 3: incarnation 1 is over: the store was resumed from a saved state; join again");
  const WorkerClocks::Joined again = clocks.Join(3);
  EXPECT_EQ(again.last, saved[1]);
  EXPECT_GT(again.incarnation, other);
  EXPECT_TRUE(Apply(&clocks, PushOf(again.incarnation, 3, 2)));
  EXPECT_EQ(clocks.Join(6).last, std::nullopt);
}

TEST(WorkerClocksTest, AResumeThatMakesNoSenseChangesNothing) {
  WorkerClocks clocks;
  const int64_t incarnation = clocks.Join(3).incarnation;
  Apply(&clocks, PushOf(incarnation, 5, -1));
  const std::vector<BatchStamp> twice = {{3, 1, "", 0}, {3, 2, "", 0}}, negative = {{3, -1, "", 0}};
  ExpectError(Code::kInvalidArgument, "worker 3: two stamps were given; give the last one of each worker",
              [&] { clocks.Resume(twice); });
  EXPECT_THROW(clocks.Resume(negative), Error);
  EXPECT_EQ(clocks.LastApplied(3), 5);
  EXPECT_NO_THROW(clocks.Require(3, incarnation));
}

TEST(WorkerClocksTest, JoiningWaitsForThePushUnderWayAndNobodyElseDoes) {
  WorkerClocks clocks;
  const int64_t incarnation = clocks.Join(3).incarnation, other = clocks.Join(4).incarnation;
  std::future<WorkerClocks::Joined> joined;
  {
    WorkerClocks::Turn turn(clocks, PushOf(incarnation, 5, -1));
    joined = std::async(std::launch::async, [&] { return clocks.Join(3); });
    EXPECT_TRUE(Apply(&clocks, PushOf(other, 0, -1, 4)));
    EXPECT_EQ(clocks.LastApplied(3), kNothingApplied);
    EXPECT_EQ(clocks.Stamps().size(), 1u);
    EXPECT_NO_THROW(clocks.Require(3, incarnation));
    EXPECT_EQ(joined.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    turn.Record();
  }
  EXPECT_EQ(joined.get().last, (BatchStamp{3, 5, "at 5", 1005}));
}

// One gradient of 1 for each of two ids of table 1.
Applied ApplyTo(Group* group, const Push& push, float gradient = 1.0f) {
  const std::vector<int64_t> ids = {1, 2}, splits = {0, 0, 2}, times = {kStartTime};
  const std::vector<float> gradients(2 * kSgdDim, gradient), learning_rates = {0.5f, 1.0f};
  Update update;
  update.gradients = gradients;
  update.learning_rates = learning_rates;
  update.times = times;
  return group->Apply(MakePlan(ids, splits, true), update, {&push, 1});
}

TEST(GroupPushTest, RowsAndStampsChangeTogether) {
  const std::unique_ptr<Group> group = MakeTestGroup();
  const int64_t incarnation = group->Join(3).incarnation;
  const Applied applied = ApplyTo(group.get(), PushOf(incarnation, 0, -1));
  EXPECT_EQ(applied.inserted, 2);
  EXPECT_FALSE(applied.duplicate);
  const Applied repeated = ApplyTo(group.get(), PushOf(incarnation, 0, -1));
  EXPECT_TRUE(repeated.duplicate);
  EXPECT_EQ(repeated.updated, 0);
  EXPECT_THROW(ApplyTo(group.get(), PushOf(incarnation, 2, 1)), Error);
  EXPECT_EQ(LookupWhole(*group, 1, {1, 2}), (std::vector<float>{-1.0f, -1.0f}));
  EXPECT_EQ(group->Stamps(), (std::vector<BatchStamp>{{3, 0, "at 0", 1000}}));
}

TEST(GroupPushTest, WhatIsRefusedRecordsNothingAndCanBePushedAgain) {
  const std::unique_ptr<Group> group = MakeTestGroup();
  const int64_t incarnation = group->Join(3).incarnation;
  EXPECT_THROW(ApplyTo(group.get(), PushOf(incarnation, 0, -1), std::numeric_limits<float>::quiet_NaN()), Error);
  EXPECT_EQ(group->LastApplied(3), kNothingApplied);
  EXPECT_EQ(ApplyTo(group.get(), PushOf(incarnation, 0, -1)).updated, 2);
  EXPECT_EQ(group->LastApplied(3), 0);
}

TEST(GroupPushTest, ACutKeepsTheStampsOfItsMoment) {
  const std::unique_ptr<Group> group = MakeTestGroup();
  const int64_t incarnation = group->Join(3).incarnation;
  ApplyTo(group.get(), PushOf(incarnation, 0, -1));
  const std::unique_ptr<Cut> cut = group->OpenCut();
  ApplyTo(group.get(), PushOf(incarnation, 1, 0));
  EXPECT_EQ(cut->stamps(), (std::vector<BatchStamp>{{3, 0, "at 0", 1000}}));
  group->Resume({});
  EXPECT_EQ(cut->stamps().size(), 1u);
  EXPECT_TRUE(group->Stamps().empty());
  EXPECT_THROW(group->RequireCurrent(3, incarnation), Error);
}

}  // namespace
}  // namespace monolith
