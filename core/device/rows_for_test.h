// A table with rows of all ages, and what a caller of kernels about history and eviction has to bring along.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/kernels/history.h"
#include "device/kernels/records.h"
#include "device/table_for_test.h"
#include "table/slot_keys.h"

namespace monolith::device {

enum class KeysForTest { kIds, kOneBucket, kWide };

struct RowsOptions {
  uint32_t count = 3000;
  uint32_t payload_floats = 3;
  KeysForTest keys = KeysForTest::kIds;
  uint32_t erase_every = 0;  // of the ids; 0: none
};

// Ids or keys with buckets, all different.
struct IdsForTest {
  std::vector<int64_t> ids;
  std::vector<uint16_t> buckets;
};

inline IdsForTest MakeIds(uint32_t count, KeysForTest keys, uint64_t first = 0) {
  IdsForTest made;
  for (uint64_t i = first; i < first + count; ++i) {
    const uint64_t hash = HashId(static_cast<int64_t>(i));
    SlotKey key{static_cast<int64_t>((i % 40) << kNarrowBits | i), 0};
    if (keys == KeysForTest::kWide && i % 3 != 0) {
      // Neighbours have the same key in two buckets.
      const uint64_t pair = HashId(static_cast<int64_t>(i / 2));
      key = {WithWideIndex(static_cast<int64_t>(pair), static_cast<uint32_t>(i / 2 % 5)),
             (BucketOfHash(pair) + static_cast<uint32_t>(i % 2)) % kNumBuckets};
    } else if (keys == KeysForTest::kOneBucket) {
      key = {IdOfHash(uint64_t{700} << kBelowBucketBits | (hash & kBelowBucket)), 700};
    } else {
      key.bucket = BucketOf(key.key);
    }
    made.ids.push_back(key.key);
    made.buckets.push_back(static_cast<uint16_t>(key.bucket));
  }
  return made;
}

class RowsForTest {
 public:
  static constexpr uint32_t kNow = 2'000'000'000, kDay = 86400;

  RowsForTest(Launcher& launcher, const RowsOptions& options)
      : table(options.payload_floats, 6, static_cast<uint32_t>(std::bit_width(options.count / 8)) + 1,
              options.keys == KeysForTest::kWide),
        tables(launcher, {&table}),
        launcher_(launcher),
        random_(options.count) {
    const IdsForTest given = MakeIds(options.count, options.keys);
    Add(given);
    if (options.erase_every == 0) return;
    IdsForTest erased;
    for (size_t i = 0; i < given.ids.size(); i += options.erase_every) {
      erased.ids.push_back(given.ids[i]);
      erased.buckets.push_back(given.buckets[i]);
    }
    tables.Erase(PlanOf(erased));
  }

  PlanForTest PlanOf(const IdsForTest& given) {
    return MakeDevicePlan(launcher_, given.ids, std::vector<int64_t>{0, static_cast<int64_t>(given.ids.size())},
                          given.buckets);
  }

  // Inserts ids; their rows are filled with what is different in each.
  void Add(const IdsForTest& given) {
    const PlanForTest plan = PlanOf(given);
    const Shared<uint32_t> rows = tables.FindOrInsert(plan);
    for (size_t u = 0; u < rows.size(); ++u) Fill(rows[u]);
  }
  void Fill(uint32_t row) {
    constexpr uint32_t kEpochs[] = {0, 1, 5, 6, 7, kMaxRowEpoch};
    RowHeader& header = *table.view().HeaderAt(row);
    header.time = kNow - static_cast<uint32_t>(random_() % 12 * kDay) - static_cast<uint32_t>(random_() % 3) + 1;
    header.meta = MakeMeta(static_cast<uint32_t>(random_() % 128), kEpochs[random_() % 6]);
    for (uint32_t i = 0; i < table.view().stride; ++i) {
      table.view().PayloadAt(row)[i] = static_cast<float>(static_cast<int32_t>(random_()));
    }
  }

  uint32_t num_rows() const { return table.counters().next_row; }
  const RowHeader& HeaderAt(uint32_t row) const { return *table.view().HeaderAt(row); }
  std::vector<uint32_t> LiveRows() const {
    std::vector<uint32_t> rows;
    for (uint32_t row = 0; row < num_rows(); ++row) {
      if (IsLive(HeaderAt(row))) rows.push_back(row);
    }
    return rows;
  }

  TableForTest table;
  TablesForTest tables;

 private:
  Launcher& launcher_;
  std::mt19937_64 random_;
};

inline Shared<uint32_t> SetOfBuckets(const std::vector<uint32_t>& buckets) {
  Shared<uint32_t> words(kNumBuckets / 32);
  for (const uint32_t bucket : buckets) words[bucket / 32] |= 1u << bucket % 32;
  return words;
}

// Two launches, `count(counts)` and `list(places, items)`; returns the items of each bucket, sorted.
template <typename Count, typename List>
std::vector<std::vector<uint32_t>> ListByBucket(Count&& count, List&& list) {
  Shared<uint32_t> counts(kNumBuckets), starts(kNumBuckets + 1), fills(kNumBuckets);
  count(counts.data());
  for (int bucket = 0; bucket < kNumBuckets; ++bucket) starts[bucket + 1] = starts[bucket] + counts[bucket];
  Shared<uint32_t> items(starts.back() + 1, 12345);
  list(BucketPlaces{starts.data(), fills.data()}, items.data());
  EXPECT_EQ(items.back(), 12345u);
  EXPECT_EQ(fills, counts);
  std::vector<std::vector<uint32_t>> listed(kNumBuckets);
  for (int bucket = 0; bucket < kNumBuckets; ++bucket) {
    listed[bucket].assign(items.begin() + starts[bucket], items.begin() + starts[bucket + 1]);
    std::sort(listed[bucket].begin(), listed[bucket].end());
  }
  return listed;
}

inline RowSelection AllRows() { return {0, kMaxRowEpoch, 0, kNumBuckets, {nullptr}, false, {}}; }

inline std::vector<std::vector<uint32_t>> ListRows(RowsForTest& rows, const RowSelection& selection,
                                                   uint32_t num_rows) {
  const Tables tables = rows.tables.tables();
  return ListByBucket(
      [&](uint32_t* counts) {
        const CountRowsInBuckets kernel{tables, 0, num_rows, selection, counts};
        rows.tables.Launch(kernel.NumThreads(), kernel);
      },
      [&](const BucketPlaces& places, uint32_t* items) {
        const ListRowsInBuckets kernel{tables, 0, num_rows, selection, places, items};
        rows.tables.Launch(kernel.NumThreads(), kernel);
      });
}

// Memory for records, filled with what kernels have to overwrite.
class RecordsForTest {
 public:
  RecordsForTest(uint32_t payload_floats, size_t count)
      : layout_{4 * payload_floats, (16 + 4 * payload_floats + 7) / 8 * 8},
        bytes_(count * layout_.record_bytes + kGuard, std::byte{0xab}) {}

  Records view() { return {layout_, bytes_.data()}; }
  uint32_t lane_bits() const { return LaneBitsForRecord(layout_.record_bytes); }
  std::string At(uint64_t place) const {
    return {reinterpret_cast<const char*>(bytes_.data()) + place * layout_.record_bytes, layout_.record_bytes};
  }
  // Whether nothing was written from this record on.
  bool IsUntouchedFrom(uint64_t place) const {
    return std::all_of(bytes_.begin() + static_cast<ptrdiff_t>(place * layout_.record_bytes), bytes_.end(),
                       [](std::byte byte) { return byte == std::byte{0xab}; });
  }

  // The record that a row has by now.
  std::string Of(const TableView& table, uint32_t row) const {
    std::string record(layout_.record_bytes, '\0');
    std::memcpy(record.data(), table.HeaderAt(row), sizeof(RowHeader));
    std::memcpy(record.data() + sizeof(RowHeader), table.PayloadAt(row), layout_.payload_bytes);
    return record;
  }

 private:
  static constexpr size_t kGuard = 64;
  const RecordLayout layout_;
  Shared<std::byte> bytes_;
};

}  // namespace monolith::device
