// The epochs of rows wrap around many times without a visible effect: a group with few row epochs is compared with a
// reference without a limit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "table/cut.h"
#include "table/group.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

constexpr int kTable = 1;
constexpr uint32_t kUsedBuckets = 16;  // of a random program, so that reading them takes little time

const std::vector<int64_t>& ProgramIds() {
  static const std::vector<int64_t> ids = IdsInBuckets(60, 0, kUsedBuckets);
  return ids;
}

// Rows and removals with the epochs they have, or had at a cut.
struct Reference {
  struct Row {
    uint64_t epoch;
    float value;
  };
  std::map<int64_t, Row> rows;
  std::vector<std::pair<int64_t, uint64_t>> removals;  // id and epoch

  std::map<int64_t, float> RowsAfter(uint64_t since) const {
    std::map<int64_t, float> found;
    for (const auto& [id, row] : rows) {
      if (row.epoch > since) found[id] = row.value;
    }
    return found;
  }
  std::set<int64_t> RemovedAfter(uint64_t since) const {
    std::set<int64_t> found;
    for (const auto& [id, epoch] : removals) {
      if (epoch > since) found.insert(id);
    }
    return found;
  }
};

std::map<int64_t, float> ValuesIn(const Content& content) {
  std::map<int64_t, float> values;
  for (const auto& [key, text] : content.rows) {
    std::memcpy(&values[key.second], text.data() + sizeof(uint32_t), sizeof(float));
  }
  return values;
}

std::set<int64_t> KeysRemovedIn(const Content& content) {
  std::set<int64_t> keys;
  for (const auto& [table, key] : RemovedIn(content)) keys.insert(key);
  return keys;
}

// One random program on both.
class Twins {
 public:
  Twins(uint32_t max_row_epoch, uint64_t seed)
      : max_row_epoch_(max_row_epoch), group_(MakeTestGroup({.max_row_epoch = max_row_epoch})), random_(seed) {
    group_->FollowHistory(true);
    floor_ = group_->Mark();
    ++now_;
  }

  void Step() {
    switch (random_() % 12) {
      case 0:
      case 1: Assign(SomeIds()); break;
      case 2: Erase(SomeIds()); break;
      case 3: Touch(SomeIds()); break;
      case 4: cut_ ? ReadCut() : OpenCut(); break;
      case 5: CompareChanges(); break;
      case 6: Forget(); break;
      default: Mark();
    }
  }
  uint64_t now() const { return now_; }
  int num_recent() const { return num_recent_; }
  int num_old() const { return num_old_; }

 private:
  std::vector<int64_t> SomeIds() {
    std::vector<int64_t> ids = Draw(&random_, 1 + random_() % 6, ProgramIds());
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
  }

  // Sometimes 0, often the last one.
  uint64_t SomeMark(uint64_t first, uint64_t last) {
    const uint64_t kind = random_() % 6;
    if (kind == 0) return 0;
    return kind < 3 ? last : first + random_() % (last - first + 1);
  }

  void Assign(const std::vector<int64_t>& ids) {
    const float value = static_cast<float>(++writes_);
    group_->Assign(kTable, ids, std::vector<float>(ids.size() * kSgdDim, value), std::vector<int64_t>{1}, false, 0);
    for (const int64_t id : ids) reference_.rows[id] = {now_, value};
  }
  void Erase(const std::vector<int64_t>& ids) {
    group_->Erase(kTable, ids);
    for (const int64_t id : ids) {
      reference_.rows.erase(id);
      reference_.removals.emplace_back(id, now_);  // also of an id that has no row
    }
  }
  void Touch(const std::vector<int64_t>& ids) {
    group_->Touch(kTable, ids);
    for (const int64_t id : ids) {
      const auto found = reference_.rows.find(id);
      if (found == reference_.rows.end()) {
        reference_.removals.emplace_back(id, now_);
      } else {
        found->second.epoch = now_;
      }
    }
  }
  void Mark() { ASSERT_EQ(group_->Mark(), now_++); }

  void OpenCut() {
    cut_ = group_->OpenCut();
    ASSERT_EQ(cut_->epoch(), now_++);
    at_cut_ = reference_;
    cut_floor_ = floor_;
  }
  void ReadCut() {
    const uint64_t since = SomeMark(cut_floor_, cut_->epoch());
    // Some buckets now and the others later, after more changes.
    const auto half = static_cast<uint32_t>(random_() % (kUsedBuckets + 1));
    const CutOptions options{.since = since};
    Content content = ReadAll(cut_->Blocks(0, half, options).get());
    for (int i = 0; i < 6; ++i) random_() % 2 == 0 ? Assign(SomeIds()) : Mark();
    const Content rest = ReadAll(cut_->Blocks(half, kUsedBuckets, options).get());
    content.rows.insert(rest.rows.begin(), rest.rows.end());
    content.tombstones.insert(rest.tombstones.begin(), rest.tombstones.end());
    Compare(content, at_cut_, since, cut_floor_);
    cut_.reset();
  }

  void CompareChanges() {
    const uint64_t since = SomeMark(floor_, now_ - 1);
    Compare(ReadAll(group_->Changes(since, 0, kUsedBuckets, true).get()), reference_, since, floor_);
  }

  // Exact after a recent mark; after one that rows cannot represent any more, all rows, so that none is missing.
  void Compare(const Content& content, const Reference& expected, uint64_t since, uint64_t floor) {
    const std::map<int64_t, float> values = ValuesIn(content), wanted = expected.RowsAfter(since),
                                   all = expected.RowsAfter(0);
    const std::set<int64_t> removed = KeysRemovedIn(content), all_removed = expected.RemovedAfter(0),
                            wanted_removed = expected.RemovedAfter(std::max(since, floor));
    const bool is_recent = since != 0 && since + max_row_epoch_ / 2 > now_;
    if (since == 0 || is_recent) {
      ASSERT_EQ(values, wanted) << "since " << since << " at " << now_;
    }
    if (is_recent) {
      ASSERT_EQ(removed, wanted_removed) << "since " << since << " at " << now_;
    }
    ASSERT_TRUE(std::includes(values.begin(), values.end(), wanted.begin(), wanted.end()));
    ASSERT_TRUE(std::includes(all.begin(), all.end(), values.begin(), values.end()));
    ASSERT_TRUE(std::includes(removed.begin(), removed.end(), wanted_removed.begin(), wanted_removed.end()));
    ASSERT_TRUE(std::includes(all_removed.begin(), all_removed.end(), removed.begin(), removed.end()));
    num_recent_ += is_recent;
    num_old_ += since != 0 && !is_recent;
  }

  void Forget() {
    if (random_() % 4 != 0) return;
    floor_ += random_() % (now_ - floor_);
    group_->TruncateHistory(floor_);
  }

  const uint32_t max_row_epoch_;
  const std::unique_ptr<Group> group_;
  std::mt19937_64 random_;
  Reference reference_;
  Reference at_cut_;
  std::unique_ptr<Cut> cut_;
  uint64_t now_ = 1;
  uint64_t floor_ = 1;  // everything after it may be requested
  uint64_t cut_floor_ = 1;
  int writes_ = 0;
  int num_recent_ = 0;  // comparisons after a recent mark
  int num_old_ = 0;     // and after an old one
};

TEST(EpochBaseTest, ARandomProgramAgreesWithTheReference) {
  for (const uint32_t max_row_epoch : {4u, 5u, 9u, 32u, 200u}) {
    SCOPED_TRACE(max_row_epoch);
    Twins twins(max_row_epoch, max_row_epoch);
    for (int step = 0; step < 4000 && !::testing::Test::HasFatalFailure(); ++step) twins.Step();
    ASSERT_FALSE(::testing::Test::HasFatalFailure());
    EXPECT_GT(twins.now(), 10 * max_row_epoch) << "the limit was to be crossed many times";
    EXPECT_GT(twins.num_recent(), 0);
    EXPECT_GT(twins.num_old(), 0);
  }
}

TEST(EpochBaseTest, AReaderThatKeepsUpGetsWhatChangedAndNoMore) {
  const std::unique_ptr<Group> group = MakeTestGroup({.max_row_epoch = 6});
  group->FollowHistory(true);
  const std::vector<int64_t> ids = SpreadIds(200);
  group->Assign(kTable, ids, std::vector<float>(ids.size() * kSgdDim), std::vector<int64_t>{1}, false, 0);
  uint64_t since = group->Mark();
  for (size_t round = 0; round < 100; ++round) {
    group->Touch(kTable, std::span(ids).subspan(round, 1));
    const uint64_t mark = group->Mark();
    const Content content = ReadAll(group->Changes(since, 0, kNumBuckets, true).get());
    ASSERT_EQ(content.rows.size(), 1u);
    ASSERT_EQ(content.rows.begin()->first.second, ids[round]);
    group->TruncateHistory(mark);
    since = mark;
  }
}

TEST(EpochBaseTest, WithoutAListenerEverythingIsStillReadFromTheBeginning) {
  const std::unique_ptr<Group> group = MakeTestGroup({.max_row_epoch = 4});
  const std::vector<int64_t> ids = SpreadIds(50);
  group->Assign(kTable, ids, std::vector<float>(ids.size() * kSgdDim), std::vector<int64_t>{1}, false, 0);
  for (int i = 0; i < 20; ++i) group->Mark();
  EXPECT_EQ(ReadAll(group->Changes(0, 0, kNumBuckets, true).get()).rows, RowsOf(*group).rows);
  EXPECT_EQ(ReadAll(group->OpenCut()->Blocks(0, kNumBuckets, {}).get()).rows, RowsOf(*group).rows);
}

TEST(EpochBaseTest, RemovalsTellTheEpochTheyHadBeforeEpochsStartedOver) {
  const std::unique_ptr<Group> group = MakeTestGroup({.max_row_epoch = 8});
  group->FollowHistory(true);
  uint64_t mark = 0;
  for (int i = 0; i < 30; ++i) mark = group->Mark();
  group->TruncateHistory(mark);
  group->Touch(kTable, std::vector<int64_t>{5});
  for (int i = 0; i < 3; ++i) group->Mark();
  const Content content = ReadAll(group->Changes(mark, 0, kNumBuckets, true).get());
  EXPECT_EQ(content.tombstones, (std::set<std::tuple<uint32_t, int64_t, uint32_t>>{{kTable, 5, mark + 1}}));
}

TEST(EpochBaseTest, SixteenMillionMarksGoUnnoticed) {
#if defined(MONOLITH_THREAD_SANITIZER) || defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
  GTEST_SKIP() << "takes too long in a slow build; the other tests lower the limit";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "takes too long in a slow build; the other tests lower the limit";
#endif
#endif
  const std::unique_ptr<Group> group = MakeTestGroup();
  const std::vector<int64_t> ids = SpreadIds(100);
  const auto assign = [&](float value) {
    group->Assign(kTable, ids, std::vector<float>(ids.size() * kSgdDim, value), std::vector<int64_t>{1}, false, 0);
  };
  assign(1.0f);
  const std::unique_ptr<Cut> cut = group->OpenCut();
  const Content before = RowsOf(*group);
  assign(2.0f);
  const uint64_t enough = cut->epoch() + kMaxRowEpoch + 10;
  while (group->Mark() < enough) {
  }
  assign(3.0f);
  EXPECT_EQ(ReadAll(cut->Blocks(0, kNumBuckets, {}).get()).rows, before.rows);
  const uint64_t since = group->Mark();
  group->Touch(kTable, std::span(ids).subspan(7, 1));
  EXPECT_EQ(ReadAll(group->Changes(since, 0, kNumBuckets, true).get()).rows.size(), 1u);
}

}  // namespace
}  // namespace monolith
