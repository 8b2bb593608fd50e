// Which history a group keeps, and for how long.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "table/cut.h"
#include "table/group.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

constexpr int kTable = 1;

class GroupHistoryTest : public ::testing::Test {
 protected:
  void Assign(const std::vector<int64_t>& ids, float value = 1.0f) {
    group_->Assign(kTable, ids, std::vector<float>(ids.size() * kSgdDim, value), std::vector<int64_t>{kStartTime},
                   false, 0);
  }
  void Erase(const std::vector<int64_t>& ids) { group_->Erase(kTable, ids); }

  std::vector<int64_t> Removed(uint64_t since) const {
    std::vector<int64_t> ids = group_->Tombstones(kTable, since);
    std::sort(ids.begin(), ids.end());
    return ids;
  }
  static std::vector<int64_t> KeysOf(const Content& content) {
    std::vector<int64_t> keys;
    for (const auto& [key, text] : content.rows) keys.push_back(key.second);
    return keys;
  }
  static std::vector<int64_t> RemovedKeysOf(const Content& content) {
    std::vector<int64_t> keys;
    for (const auto& [table, key] : RemovedIn(content)) keys.push_back(key);
    return keys;
  }
  Content ChangesSince(uint64_t since) { return ReadAll(group_->Changes(since, 0, kNumBuckets, true).get()); }
  static Content ReadCut(Cut* cut, std::optional<uint64_t> since) {
    return ReadAll(cut->Blocks(0, kNumBuckets, {.since = since}).get());
  }
  uint64_t NumTombstones() const { return group_->Stats(kTable).tombstones; }

  static std::string ErrorOf(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  const std::unique_ptr<Group> group_ = MakeTestGroup();
};

using Ids = std::vector<int64_t>;

const std::vector<int64_t>& ManyIds() {
  static const std::vector<int64_t> ids = SpreadIds(20'000);
  return ids;
}

TEST_F(GroupHistoryTest, WithoutAListenerRemovalsCostNothing) {
  Assign(ManyIds());
  group_->Mark();
  const uint64_t before = group_->Stats(kTable).other_bytes;
  for (int round = 0; round < 3; ++round) {
    Erase(ManyIds());
    Assign(ManyIds());
    group_->Mark();
  }
  EXPECT_EQ(NumTombstones(), 0u);
  EXPECT_EQ(group_->Stats(kTable).other_bytes, before);
}

TEST_F(GroupHistoryTest, WithoutAListenerNoMarkCanBeAskedFor) {
  Assign({1, 2});
  const uint64_t mark = group_->Mark();
  Erase({1});
  EXPECT_GT(group_->HistoryFloor(), group_->LastMark());
  EXPECT_THROW(ChangesSince(mark), Error);
  EXPECT_THROW(Removed(mark), Error);
  EXPECT_EQ(KeysOf(ChangesSince(0)), Ids({2}));
  group_->FollowHistory(true);
  EXPECT_THROW(ChangesSince(mark), Error) << "the removal of 1 is not known";
  const uint64_t later = group_->Mark();
  Erase({2});
  EXPECT_EQ(Removed(later), Ids({2}));
}

TEST_F(GroupHistoryTest, WhileFollowedEverythingAfterAMarkIsThere) {
  group_->FollowHistory(true);
  Assign({1, 2, 3});
  const uint64_t mark = group_->Mark();
  Assign({2});
  Erase({3});
  group_->FollowHistory(true);  // idempotent
  EXPECT_EQ(KeysOf(ChangesSince(mark)), Ids({2}));
  EXPECT_EQ(RemovedKeysOf(ChangesSince(mark)), Ids({3}));
  EXPECT_EQ(group_->LastMark(), mark);
  EXPECT_LE(group_->HistoryFloor(), mark);
}

TEST_F(GroupHistoryTest, WhenNobodyFollowsAnyMoreEverythingIsDropped) {
  const auto other_bytes = [&] { return group_->Stats(0).other_bytes + group_->Stats(kTable).other_bytes; };
  Assign(ManyIds());
  const uint64_t before = other_bytes();
  group_->FollowHistory(true);
  const uint64_t mark = group_->Mark();
  Assign(ManyIds());
  Erase(ManyIds());
  EXPECT_EQ(NumTombstones(), ManyIds().size());
  group_->FollowHistory(false);
  EXPECT_EQ(NumTombstones(), 0u);
  EXPECT_EQ(other_bytes(), before) << "memory that was kept for more is given back, too";
  group_->FollowHistory(true);
  EXPECT_THROW(ChangesSince(mark), Error);
}

TEST_F(GroupHistoryTest, ACutKeepsRemovalsUntilItCloses) {
  Assign({1, 2, 3});
  Erase({1});
  {
    const std::unique_ptr<Cut> cut = group_->OpenCut();
    Erase({2});
    EXPECT_EQ(Removed(cut->epoch()), Ids({2}));
    EXPECT_EQ(Removed(0), Ids({2}));
    EXPECT_TRUE(ReadCut(cut.get(), std::nullopt).tombstones.empty()) << "2 was there at the cut";
  }
  EXPECT_EQ(NumTombstones(), 0u);
  EXPECT_GT(group_->HistoryFloor(), group_->LastMark());
}

TEST_F(GroupHistoryTest, TellsWhetherACutIsOpen) {
  EXPECT_EQ(group_->OpenCutEpoch(), std::nullopt);
  std::unique_ptr<Cut> cut = group_->OpenCut();
  group_->Mark();
  EXPECT_EQ(group_->OpenCutEpoch(), cut->epoch());
  cut.reset();
  EXPECT_EQ(group_->OpenCutEpoch(), std::nullopt);
}

TEST_F(GroupHistoryTest, FollowingBesideACutBeginsAtTheCut) {
  Assign({1, 2, 3});
  std::unique_ptr<Cut> cut = group_->OpenCut();
  const uint64_t mark = cut->epoch();
  Erase({1});
  Assign({2});
  group_->Mark();
  group_->FollowHistory(true);
  cut.reset();
  EXPECT_EQ(KeysOf(ChangesSince(mark)), Ids({2}));
  EXPECT_EQ(RemovedKeysOf(ChangesSince(mark)), Ids({1}));
}

TEST_F(GroupHistoryTest, TheLastReaderLeavingBesideACutLeavesWhatComesAfterTheCut) {
  group_->FollowHistory(true);
  Assign({1, 2, 3});
  const uint64_t early = group_->Mark();
  Erase({1});
  const std::unique_ptr<Cut> cut = group_->OpenCut();
  Erase({2});
  group_->FollowHistory(false);
  EXPECT_THROW(Removed(early), Error);
  EXPECT_EQ(Removed(cut->epoch()), Ids({2}));
  EXPECT_EQ(RemovedKeysOf(ReadCut(cut.get(), early)), Ids({1})) << "the cut has what was there when it was taken";
}

TEST_F(GroupHistoryTest, ForgettingBesideACutTakesEffectWhenItCloses) {
  group_->FollowHistory(true);
  Assign({1, 2, 3, 4});
  const uint64_t first = group_->Mark();
  Erase({1});
  const uint64_t second = group_->Mark();
  Erase({2});
  std::unique_ptr<Cut> cut = group_->OpenCut();
  Erase({3});
  group_->TruncateHistory(second);
  EXPECT_THROW(ChangesSince(first), Error);
  EXPECT_EQ(Removed(second), Ids({2, 3}));
  EXPECT_EQ(NumTombstones(), 3u);
  EXPECT_EQ(RemovedKeysOf(ReadCut(cut.get(), first)), Ids({1, 2}));
  cut.reset();
  EXPECT_EQ(NumTombstones(), 2u);
  EXPECT_EQ(Removed(second), Ids({2, 3}));
}

TEST_F(GroupHistoryTest, EpochsToComeAreRefused) {
  group_->FollowHistory(true);
  for (int i = 0; i < 12; ++i) group_->Mark();
  EXPECT_EQ(group_->LastMark(), 12u);
  const std::string text = "epoch 1000000 has not happened yet, the last mark is 12";
  EXPECT_NE(ErrorOf([&] { ChangesSince(1'000'000); }).find(text), std::string::npos);
  EXPECT_NE(ErrorOf([&] { Removed(1'000'000); }).find(text), std::string::npos);
  EXPECT_NE(ErrorOf([&] { ChangesSince(13); }).find("epoch 13 has not happened yet"), std::string::npos);
  EXPECT_EQ(ErrorOf([&] { ChangesSince(12); }), "no error");
  EXPECT_THROW(group_->TruncateHistory(13), Error);
  const std::unique_ptr<Cut> cut = group_->OpenCut();
  group_->Mark();
  EXPECT_NE(ErrorOf([&] { ReadCut(cut.get(), 14); }).find("epoch 14 comes after this cut, which is of epoch 13"),
            std::string::npos);
  EXPECT_EQ(ErrorOf([&] { ReadCut(cut.get(), 13); }), "no error");
}

TEST_F(GroupHistoryTest, ASourceOfChangesThatWereDroppedThrowsOnTheWay) {
  group_->FollowHistory(true);
  Assign(ManyIds());
  const uint64_t mark = group_->Mark();
  Assign(ManyIds());
  std::string block;
  const auto source = group_->Changes(mark, 0, kNumBuckets, true);
  ASSERT_TRUE(source->Next(&block));
  group_->Clear();
  EXPECT_THROW(source->Next(&block), Error);
}

std::string Joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}

TEST_F(GroupHistoryTest, PackedChangesAreTheChangesEndToEndOnAnyNumberOfThreads) {
  group_->FollowHistory(true);
  Assign(ManyIds());
  ApplyStep(group_.get(), SpreadIds(900), 1.0f, kStartTime, false);
  const uint64_t mark = group_->Mark();
  Assign({ManyIds().begin(), ManyIds().begin() + 4000}, 2.0f);
  Erase({ManyIds().begin(), ManyIds().begin() + 1500});
  const int threads = NumThreads();
  for (const uint64_t since : {uint64_t{0}, mark}) {
    for (const bool state : {false, true}) {
      for (const auto& [begin, end] : {std::pair(0u, 1024u), {3u, 1001u}, {700u, 701u}, {9u, 9u}}) {
        std::string expected;
        const std::unique_ptr<BlockSource> source = group_->Changes(since, begin, end, state);
        for (std::string block; source->Next(&block);) expected += block;
        EXPECT_EQ(expected.empty(), begin == end);
        for (const int count : {1, 3}) {
          SetNumThreads(count);
          EXPECT_EQ(Joined(group_->PackedChanges(since, begin, end, state)), expected);
        }
      }
    }
  }
  SetNumThreads(threads);
}

TEST_F(GroupHistoryTest, PackedChangesAreRefusedLikeChanges) {
  EXPECT_THROW(group_->PackedChanges(1000, 0, kNumBuckets, true), Error) << "an epoch to come";
  EXPECT_THROW(group_->PackedChanges(0, 5, 4, true), Error);
  EXPECT_THROW(group_->PackedChanges(0, 0, kNumBuckets + 1, true), Error);
  const uint64_t mark = group_->Mark();
  Assign(ManyIds());
  group_->Mark();
  EXPECT_THROW(group_->PackedChanges(mark, 0, kNumBuckets, true), Error) << "nobody kept it";
}

TEST_F(GroupHistoryTest, HistoryDoesNotReachAcrossAClearedBucket) {
  group_->FollowHistory(true);
  Assign({1, 2});
  const uint64_t mark = group_->Mark();
  group_->ClearBuckets(BucketOf(1), BucketOf(1) + 1);
  EXPECT_THROW(ChangesSince(mark), Error);
  const uint64_t later = group_->Mark();
  Erase({2});
  EXPECT_EQ(Removed(later), Ids({2}));
  group_->Clear();
  EXPECT_THROW(ChangesSince(later), Error);
  EXPECT_TRUE(Removed(0).empty());
}

TEST_F(GroupHistoryTest, ATouchedRowCountsAsChangedAndStaysAsItIs) {
  group_->FollowHistory(true);
  Assign({1, 2});
  const Content before = RowsOf(*group_);
  const uint64_t mark = group_->Mark();
  EXPECT_EQ(group_->Touch(kTable, Ids({2, 2, 7, 7})), 1);
  EXPECT_EQ(RowsOf(*group_), before);
  EXPECT_EQ(KeysOf(ChangesSince(mark)), Ids({2}));
  EXPECT_EQ(Removed(mark), Ids({7})) << "once, and not in the other table";
  EXPECT_TRUE(group_->Tombstones(0, mark).empty());
}

TEST_F(GroupHistoryTest, ATouchDoesNotMoveACut) {
  group_->FollowHistory(true);
  Assign({1, 2});
  const uint64_t mark = group_->Mark();
  const std::unique_ptr<Cut> cut = group_->OpenCut();
  group_->Touch(kTable, Ids({1, 9}));
  const Content content = ReadCut(cut.get(), mark);
  EXPECT_TRUE(content.rows.empty());
  EXPECT_TRUE(content.tombstones.empty());
  EXPECT_EQ(KeysOf(ChangesSince(cut->epoch())), Ids({1}));
}

TEST_F(GroupHistoryTest, TouchingWithoutAListenerKeepsNothing) {
  Assign({1});
  EXPECT_EQ(group_->Touch(kTable, Ids({1, 2})), 1);
  EXPECT_EQ(NumTombstones(), 0u);
  EXPECT_THROW(group_->Touch(5, Ids({1})), Error);
}

TEST_F(GroupHistoryTest, ACutSinceAMarkHasWhatChangedBetweenTheTwo) {
  group_->FollowHistory(true);
  Assign({1, 2, 3, 4, 5, 6});
  const uint64_t mark = group_->Mark();
  Assign({2, 3, 7}, 2.0f);
  Erase({4, 5});
  const std::unique_ptr<Cut> cut = group_->OpenCut();
  Assign({1, 3, 8}, 3.0f);  // 3 is read from its old image, 1 and 8 do not matter
  Erase({6, 7});
  const Content content = ReadCut(cut.get(), mark);
  EXPECT_EQ(KeysOf(content), Ids({2, 3, 7}));
  EXPECT_EQ(RemovedKeysOf(content), Ids({4, 5}));
  const float weight = 2.0f;
  for (const auto& [key, text] : content.rows)
    EXPECT_EQ(text.compare(4, 4, reinterpret_cast<const char*>(&weight), 4), 0);
}

TEST_F(GroupHistoryTest, ACutSinceAForgottenMarkIsRefusedAndCanStillBeRead) {
  group_->FollowHistory(true);
  const uint64_t first = group_->Mark();
  const uint64_t second = group_->Mark();
  group_->TruncateHistory(second);
  Assign({1});
  const std::unique_ptr<Cut> cut = group_->OpenCut();
  EXPECT_NE(ErrorOf([&] { ReadCut(cut.get(), first); }).find("was discarded"), std::string::npos);
  EXPECT_EQ(KeysOf(ReadCut(cut.get(), second)), Ids({1}));
}

TEST_F(GroupHistoryTest, AnErasedIdCountsAsRemovedAlsoWithoutARow) {
  group_->FollowHistory(true);
  Assign({1, 2});
  const uint64_t mark = group_->Mark();
  EXPECT_EQ(group_->Erase(1, Ids({1, 7})), 1);
  EXPECT_EQ(group_->Tombstones(1, mark).size(), 2u);
}

TEST_F(GroupHistoryTest, WhatAnErasedIdWasCountedLeavesTheFilterAndStaysInAnOpenCut) {
  const std::unique_ptr<Group> group = MakeTestGroup({.sgd_min_count = 2});
  ApplyStep(group.get(), {1, 2, 5, 6}, 1.0f, kStartTime, false);
  const auto before = ReadCut(group->OpenCut().get(), std::nullopt).filters;
  {
    const std::unique_ptr<Cut> cut = group->OpenCut();
    EXPECT_EQ(group->Erase(1, std::vector<int64_t>{5}), 0);
    EXPECT_EQ(ReadCut(cut.get(), std::nullopt).filters, before);
  }
  EXPECT_NE(ReadCut(group->OpenCut().get(), std::nullopt).filters, before);
  ApplyStep(group.get(), {1, 2, 5, 6}, 1.0f, kStartTime, false);
  ApplyStep(group.get(), {1, 2, 5, 6}, 1.0f, kStartTime, false);
  EXPECT_EQ(group->Ids(1), std::vector<int64_t>{6});
}

TEST_F(GroupHistoryTest, ACutSinceAMarkLeavesFiltersOut) {
  const std::unique_ptr<Group> group = MakeTestGroup({.sgd_min_count = 2});
  group->FollowHistory(true);
  const uint64_t mark = group->Mark();
  ApplyStep(group.get(), ManyIds(), 1.0f, kStartTime, false);
  EXPECT_TRUE(ReadCut(group->OpenCut().get(), mark).filters.empty());
  EXPECT_FALSE(ReadCut(group->OpenCut().get(), std::nullopt).filters.empty());
}

}  // namespace
}  // namespace monolith
