#include "device/kernels/images.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "device/kernels/eviction.h"
#include "device/rows_for_test.h"

namespace monolith::device {
namespace {

constexpr uint32_t kCutEpoch = 5;

// A pool of images of one table.
class PoolForTest {
 public:
  PoolForTest(uint32_t payload_floats, uint32_t most)
      : records_(payload_floats, most), buckets_(most + 1, 55555), most_(most) {}
  ImagePool view() { return {most_, used_.data(), records_.view(), buckets_.data()}; }
  uint32_t used() const { return used_[0]; }
  uint32_t lane_bits() const { return records_.lane_bits(); }
  const RecordsForTest& records() const { return records_; }
  // Bucket and record of each image.
  std::multiset<std::pair<uint32_t, std::string>> Images() const {
    std::multiset<std::pair<uint32_t, std::string>> images;
    for (uint32_t i = 0; i < std::min(most_, used()); ++i) images.emplace(buckets_[i], records_.At(i));
    EXPECT_TRUE(records_.IsUntouchedFrom(std::min(most_, used())));
    EXPECT_EQ(buckets_.back(), 55555);
    return images;
  }

 private:
  RecordsForTest records_;
  Shared<uint16_t> buckets_;
  Shared<uint32_t> used_ = Shared<uint32_t>(1);
  const uint32_t most_;
};

class ImageKernelsTest : public LauncherTest {
 protected:
  template <typename Kernel>
  void Run(const Kernel& kernel) {
    Launch(kernel.NumThreads(), kernel);
  }

  void Keep(const Tables& tables, const RowList& changing, const Shared<ImagePool>& pools, uint32_t lane_bits,
            const Shared<uint32_t>& read = {}, uint32_t refuses = 0, uint32_t cut_epoch = kCutEpoch) {
    const Shared<uint32_t> refused = {refuses};
    Shared<uint32_t> images(changing.most, 12345);
    const BucketSet read_buckets = {read.empty() ? nullptr : read.data()};
    Run(PickImages{tables, changing, refused.data(), cut_epoch, read_buckets, pools.data(), images.data()});
    Run(KeepImages{tables, changing, pools.data(), images.data(), lane_bits});
  }

  using Images = std::multiset<std::pair<uint32_t, std::string>>;
  // What has to be kept of these rows.
  static Images Expected(const RowsForTest& rows, const Shared<uint32_t>& changing, const PoolForTest& pool,
                         const std::set<uint32_t>& read = {}) {
    Images images;
    for (const uint32_t row : changing) {
      if (row == kNoRow || EpochOf(rows.HeaderAt(row)) > kCutEpoch) continue;
      const uint32_t bucket = rows.table.view().BucketOfRow(row);
      if (!read.contains(bucket)) images.emplace(bucket, pool.records().Of(rows.table.view(), row));
    }
    return images;
  }
};

constexpr KeysForTest kAllKeys[] = {KeysForTest::kIds, KeysForTest::kOneBucket, KeysForTest::kWide};

TEST_P(ImageKernelsTest, RowsThatTheCutNeedsAreKeptWhereverTheyGo) {
  for (const KeysForTest keys : kAllKeys) {
    for (const uint32_t payload_floats : {1u, 2u, 33u, 2048u}) {
      const RowsOptions options = {.count = 400, .payload_floats = payload_floats, .keys = keys, .erase_every = 6};
      RowsForTest rows(launcher(), options);
      const PlanForTest plan = rows.PlanOf(MakeIds(500, keys, 100));  // some have no row
      const Shared<uint32_t> changing = rows.tables.Find(plan);
      PoolForTest pool(payload_floats, 500);
      const Shared<ImagePool> pools = {pool.view()};
      const std::set<uint32_t> read = {3, 77, 512, 1023};
      Keep(rows.tables.tables(), RowsOfIds(plan.ids(), changing.data()), pools, pool.lane_bits(),
           SetOfBuckets({read.begin(), read.end()}));
      EXPECT_GT(pool.used(), 0u);
      EXPECT_EQ(pool.Images(), Expected(rows, changing, pool, read));
    }
  }
}

TEST_P(ImageKernelsTest, NothingIsKeptForARefusedUpdateOrAfterAChange) {
  RowsForTest rows(launcher(), {.count = 400});
  const PlanForTest plan = rows.PlanOf(MakeIds(400, KeysForTest::kIds));
  const Shared<uint32_t> changing = rows.tables.Find(plan);
  PoolForTest pool(3, 400);
  const Shared<ImagePool> pools = {pool.view()};
  const RowList list = RowsOfIds(plan.ids(), changing.data());
  Keep(rows.tables.tables(), list, pools, pool.lane_bits(), {}, 1);
  EXPECT_EQ(pool.used(), 0u);
  const Images expected = Expected(rows, changing, pool);
  Keep(rows.tables.tables(), list, pools, pool.lane_bits());
  for (const uint32_t row : changing) rows.table.view().HeaderAt(row)->meta = MakeMeta(2, kCutEpoch + 1);
  Keep(rows.tables.tables(), list, pools, pool.lane_bits());
  EXPECT_EQ(pool.Images(), expected);
  std::vector<uint32_t> every(kNumBuckets);
  for (uint32_t bucket = 0; bucket < kNumBuckets; ++bucket) every[bucket] = bucket;
  Keep(rows.tables.tables(), list, pools, pool.lane_bits(), SetOfBuckets(every), 0, kMaxRowEpoch);
  EXPECT_EQ(pool.Images(), expected) << "all buckets have been read";
}

TEST_P(ImageKernelsTest, APoolCanBeFullToTheLastImage) {
  RowsForTest rows(launcher(), {.count = 900});
  const PlanForTest plan = rows.PlanOf(MakeIds(900, KeysForTest::kIds));
  const Shared<uint32_t> changing = rows.tables.Find(plan);
  const RowList list = RowsOfIds(plan.ids(), changing.data());
  PoolForTest measure(3, 900);
  const Images expected = Expected(rows, changing, measure);
  const auto size = static_cast<uint32_t>(expected.size());
  for (const uint32_t most : {size, size - 1, 0u}) {
    PoolForTest pool(3, most);
    const Shared<ImagePool> pools = {pool.view()};
    Keep(rows.tables.tables(), list, pools, pool.lane_bits());
    EXPECT_EQ(pool.used(), size) << "tells of lost images";
    const Images kept = pool.Images();
    EXPECT_EQ(kept.size(), most);
    EXPECT_TRUE(std::includes(expected.begin(), expected.end(), kept.begin(), kept.end()));
  }
}

TEST_P(ImageKernelsTest, RowsOfSeveralTablesGoToTheirOwnPools) {
  TableForTest small(1, 4, 6), large(40, 4, 6), unused(5, 4, 6);
  TablesForTest tables(launcher(), {&small, &large, &unused});
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 600; ++i) ids.push_back(i % 350);
  const PlanForTest plan = MakeDevicePlan(launcher(), ids, std::vector<int64_t>{0, 250, 600, 600}, {});
  const Shared<uint32_t> rows = tables.FindOrInsert(plan, kCutEpoch);
  PoolForTest pool_small(1, 250), pool_large(40, 350), pool_unused(5, 1);
  const Shared<ImagePool> pools = {pool_small.view(), pool_large.view(), pool_unused.view()};
  Keep(tables.tables(), RowsOfIds(plan.ids(), rows.data()), pools, 2);
  EXPECT_EQ(pool_small.Images().size(), 250u);
  EXPECT_EQ(pool_large.Images().size(), 350u);
  EXPECT_EQ(pool_unused.used(), 0u);
  Images expected;
  for (uint32_t row = 0; row < large.counters().next_row; ++row) {
    expected.emplace(large.view().BucketOfRow(row), pool_large.records().Of(large.view(), row));
  }
  EXPECT_EQ(pool_large.Images(), expected);
}

TEST_P(ImageKernelsTest, ListedRowsAreKeptBeforeTheyAreErased) {
  RowsForTest rows(launcher(), {.count = 500, .payload_floats = 8, .keys = KeysForTest::kWide});
  const std::vector<uint32_t> live = rows.LiveRows();
  Shared<uint32_t> list(live.begin(), live.begin() + 300);
  const Shared<uint32_t> used = {200};
  PoolForTest pool(8, 300);
  const Shared<ImagePool> pools = {pool.view()};
  const Images expected = Expected(rows, {list.begin(), list.begin() + 200}, pool);
  const RowList listed = RowsOfTable(0, list.data(), 300, used.data());
  Keep(rows.tables.tables(), listed, pools, pool.lane_bits());
  Shared<int64_t> keys(300);
  Shared<uint16_t> buckets(300);
  Run(EraseListed{rows.tables.tables(), listed, keys.data(), buckets.data()});
  EXPECT_EQ(pool.Images(), expected);
  EXPECT_EQ(rows.LiveRows().size(), live.size() - 200);
}

// Reads a cut in ranges of buckets while rows change, are erased, come back under other ids, and are renumbered.
class CutForTest {
 public:
  CutForTest(Launcher& launcher, KeysForTest keys)
      : launcher_(launcher),
        keys_(keys),
        rows_(launcher, {.count = 1500, .payload_floats = 5, .keys = keys}),
        pool_(5, 4000),
        pools_{pool_.view()},
        read_(SetOfBuckets({})) {
    for (uint32_t row = 0; row < rows_.num_rows(); ++row) {
      RowHeader& header = *rows_.table.view().HeaderAt(row);
      header.meta = MakeMeta(FrequencyOf(header), row % (kCutEpoch + 1));
      at_flip_.emplace(rows_.table.view().BucketOfRow(row), RecordWithoutEpoch(row));
    }
  }

  using Images = std::multiset<std::pair<uint32_t, std::string>>;
  const Images& at_flip() const { return at_flip_; }
  const Images& found() const { return found_; }

  void Update(uint64_t first, uint32_t count) {
    const PlanForTest plan = rows_.PlanOf(MakeIds(count, keys_, first));
    Keep(plan);
    for (const uint32_t row : rows_.tables.FindOrInsert(plan, epoch_)) {
      rows_.Fill(row);
      RowHeader& header = *rows_.table.view().HeaderAt(row);
      header.meta = MakeMeta(FrequencyOf(header), epoch_);
    }
  }
  void Erase(uint64_t first, uint32_t count) {
    const PlanForTest plan = rows_.PlanOf(MakeIds(count, keys_, first));
    Keep(plan);
    rows_.tables.Erase(plan);
  }
  void Read(uint32_t begin, uint32_t end) {
    RowSelection selection = AllRows();
    selection.last_epoch = cut_epoch_;
    selection.first_bucket = begin;
    selection.end_bucket = end;
    Add(ListRows(rows_, selection, rows_.num_rows()), [&](uint32_t row) { return RecordWithoutEpoch(row); });
    const auto images =
        ListByBucket([&](uint32_t* counts) { Run(CountImagesInBuckets{pool_.view(), selection, counts}); },
                     [&](const BucketPlaces& places, uint32_t* items) {
                       Run(ListImagesInBuckets{pool_.view(), selection, places, items});
                     });
    Add(images, [&](uint32_t image) { return Packed(image); });
    for (uint32_t bucket = begin; bucket < end; ++bucket) read_[bucket / 32] |= 1u << bucket % 32;
  }
  void Renumber() {
    const EpochShift shift{3, cut_epoch_};
    Run(ShiftEpochs{rows_.tables.tables(), 0, rows_.num_rows(), shift});
    Run(ShiftImageEpochs{pool_.view(), shift});
    epoch_ = shift.Of(epoch_);
    cut_epoch_ = shift.Of(cut_epoch_);
  }

 private:
  template <typename Kernel>
  void Run(const Kernel& kernel) {
    launcher_.Launch(kernel.NumThreads(), kernel, Stream{});
  }
  void Keep(const PlanForTest& plan) {
    const Shared<uint32_t> rows = rows_.tables.Find(plan);
    Shared<uint32_t> images(rows.size());
    const RowList changing = RowsOfIds(plan.ids(), rows.data());
    Run(PickImages{rows_.tables.tables(), changing, nullptr, cut_epoch_, {read_.data()}, pools_.data(), images.data()});
    Run(KeepImages{rows_.tables.tables(), changing, pools_.data(), images.data(), pool_.lane_bits()});
  }
  template <typename RecordOf>
  void Add(const std::vector<std::vector<uint32_t>>& items, RecordOf&& record_of) {
    for (uint32_t bucket = 0; bucket < kNumBuckets; ++bucket) {
      for (const uint32_t item : items[bucket]) found_.emplace(bucket, record_of(item));
    }
  }
  static std::string WithoutEpoch(std::string record) {
    std::fill_n(record.begin() + 13, 3, '\0');  // they are renumbered
    return record;
  }
  std::string RecordWithoutEpoch(uint32_t row) const {
    return WithoutEpoch(pool_.records().Of(rows_.table.view(), row));
  }
  std::string Packed(uint32_t image) {
    RecordsForTest packed(5, 1);
    const Shared<uint32_t> list = {image};
    Run(PackImages{pool_.view().records, 1, list.data(), packed.view(), packed.lane_bits()});
    EXPECT_TRUE(packed.IsUntouchedFrom(1));
    return WithoutEpoch(packed.At(0));
  }

  Launcher& launcher_;
  const KeysForTest keys_;
  RowsForTest rows_;
  PoolForTest pool_;
  const Shared<ImagePool> pools_;
  Shared<uint32_t> read_;
  uint32_t cut_epoch_ = kCutEpoch, epoch_ = kCutEpoch + 1;
  Images at_flip_, found_;
};

TEST_P(ImageKernelsTest, ACutIsTheStateAtItsFlip) {
  for (const KeysForTest keys : kAllKeys) {
    CutForTest cut(launcher(), keys);
    uint32_t begin = 0;
    for (uint32_t step = 0; begin < kNumBuckets; ++step) {
      cut.Update(step * 211 % 1500, 300);
      cut.Erase((step * 97 + 50) % 1500, 100);
      if (step == 4) cut.Renumber();
      const uint32_t end = std::min<uint32_t>(begin + step * 40, kNumBuckets);
      cut.Read(begin, end);
      begin = end;
    }
    EXPECT_EQ(cut.found().size(), 1500u);
    EXPECT_EQ(cut.found(), cut.at_flip());
  }
}

TEST_P(ImageKernelsTest, ImagesAreSelectedAsRowsAre) {
  RowsForTest rows(launcher(), {.count = 800, .keys = KeysForTest::kWide});
  const std::vector<uint32_t> live = rows.LiveRows();
  const Shared<uint32_t> list(live.begin(), live.end());
  PoolForTest pool(3, 1000);
  const Shared<ImagePool> pools = {pool.view()};
  Keep(rows.tables.tables(), RowsOfTable(0, list.data(), static_cast<uint32_t>(list.size())), pools, pool.lane_bits(),
       {}, 0, kMaxRowEpoch);
  ASSERT_EQ(pool.used(), 800u);
  const Shared<uint32_t> skipped = SetOfBuckets({200, 300, 301});
  const RowSelection selection = {
      1, 6, 100, 900, {skipped.data()}, true, {RowsForTest::kNow, 5, nullptr, {nullptr, 0}}};
  const auto images = ListByBucket([&](uint32_t* counts) { Run(CountImagesInBuckets{pool.view(), selection, counts}); },
                                   [&](const BucketPlaces& places, uint32_t* items) {
                                     Run(ListImagesInBuckets{pool.view(), selection, places, items});
                                   });
  Images of_images, of_rows;
  const auto by_rows = ListRows(rows, selection, rows.num_rows());
  for (uint32_t bucket = 0; bucket < kNumBuckets; ++bucket) {
    for (const uint32_t image : images[bucket]) of_images.emplace(bucket, pool.records().At(image));
    for (const uint32_t row : by_rows[bucket]) {
      of_rows.emplace(bucket, pool.records().Of(rows.table.view(), row));
    }
  }
  EXPECT_GT(of_rows.size(), 0u);
  EXPECT_EQ(of_images, of_rows);
}

TEST_P(ImageKernelsTest, ImagesOfEverySizeArePackedInTheOrderOfTheirList) {
  for (const uint32_t payload_floats : {1u, 2u, 33u, 2048u}) {
    RowsForTest rows(launcher(), {.count = 60, .payload_floats = payload_floats});
    Shared<uint32_t> list(60), order;
    for (uint32_t row = 0; row < 60; ++row) list[row] = row;
    PoolForTest pool(payload_floats, 60);
    const Shared<ImagePool> pools = {pool.view()};
    Keep(rows.tables.tables(), RowsOfTable(0, list.data(), 60), pools, pool.lane_bits(), {}, 0, kMaxRowEpoch);
    for (uint32_t i = 0; i < 40; ++i) order.push_back(i * 17 % 60);
    RecordsForTest packed(payload_floats, 40);
    Run(PackImages{pool.view().records, 40, order.data(), packed.view(), packed.lane_bits()});
    for (uint32_t i = 0; i < 40; ++i) ASSERT_EQ(packed.At(i), pool.records().At(order[i]));
    EXPECT_TRUE(packed.IsUntouchedFrom(40));
  }
}

INSTANTIATE_FOR_LAUNCHERS(ImageKernelsTest);

}  // namespace
}  // namespace monolith::device
