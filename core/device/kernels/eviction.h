// Which rows go, by expiry or by a table's cap, and erasing them; rows of each slot.
//
// Row caps: scores are counted by their upper halves, then those with one upper half by their lower halves, so that the
// caller finds the score of a rank (SelectThreshold in table/group_write.cc does the same on a processor).
#pragma once

#include <cstdint>

#include "device/kernels/expiry.h"
#include "device/kernels/index.h"
#include "device/kernels/records.h"
#include "device/kernels/table_view.h"
#include "device/kernels/turns.h"
#include "table/eviction_rule.h"

namespace monolith::device {

// Lists the expired rows of some buckets.
struct FlagExpired {
  Tables tables;
  uint32_t table;
  uint32_t num_rows;  // row numbers from 0 on
  BucketSet buckets;  // null: all
  Expiry expiry;
  OpenList rows;

  uint64_t NumThreads() const { return ThreadsFor<kTurnsOfLists>(num_rows); }
  void operator()() const {
    const TableView& view = tables.views[table];
    const uint32_t used_rows = view.UsedRows(num_rows);
    Turns found;
    for (uint32_t turn = 0; turn < kTurnsOfLists; ++turn) {
      const uint64_t row = ItemOfTurn<kTurnsOfLists>(turn);
      if (row < used_rows && IsToGo(view, static_cast<uint32_t>(row))) found.Add(turn);
    }
    rows.AddFound(found);
  }

 private:
  bool IsToGo(const TableView& view, uint32_t row) const {
    const RowHeader& header = *view.HeaderAt(row);
    if (!IsLive(header) || !expiry.HasExpired(header)) return false;
    return buckets.words == nullptr || buckets.Has(view.BucketOfRow(row));
  }
};

inline constexpr uint32_t kNumHalfScores = 1u << 16;
inline constexpr uint32_t kAllHalves = 0xffffffffu;

inline uint32_t ScoreOfRow(const RowHeader& row, bool by_frequency) {
  return by_frequency ? FrequencyScoreOf(row) : RecencyScoreOf(row);
}

// Counts the upper halves of all rows' scores, or the lower halves of those with a certain upper half.
struct CountScores {
  Tables tables;
  uint32_t table;
  uint32_t num_rows;
  bool by_frequency;
  uint32_t upper_half;  // kAllHalves: count upper halves
  uint32_t* counts;     // [kNumHalfScores], 0 at first

  uint64_t NumThreads() const { return ThreadsFor<kTurnsOfCounts>(num_rows); }
  void operator()() const {
    const TableView& view = tables.views[table];
    const uint32_t used_rows = view.UsedRows(num_rows);
    Tally tally(counts);
    for (uint32_t turn = 0; turn < kTurnsOfCounts; ++turn) {
      const uint64_t row = ItemOfTurn<kTurnsOfCounts>(turn);
      if (row >= used_rows) break;
      const RowHeader& header = *view.HeaderAt(static_cast<uint32_t>(row));
      if (!IsLive(header)) continue;
      const uint32_t score = ScoreOfRow(header, by_frequency), upper = score >> 16;
      if (upper_half == kAllHalves) {
        tally.Count(upper);
      } else if (upper == upper_half) {
        tally.Count(score % kNumHalfScores);
      }
    }
    tally.Flush();
  }
};

// Lists rows with a lower score, and `num_ties` of those with this score; which of them is unspecified.
struct ListBelowScore {
  Tables tables;
  uint32_t table;
  uint32_t num_rows;
  bool by_frequency;
  uint32_t score;
  uint32_t num_ties;
  uint32_t* ties_seen;  // 0 at first
  OpenList rows;

  uint64_t NumThreads() const { return ThreadsFor<kTurnsOfLists>(num_rows); }
  void operator()() const {
    const TableView& view = tables.views[table];
    const uint32_t used_rows = view.UsedRows(num_rows);
    Turns found, ties;
    for (uint32_t turn = 0; turn < kTurnsOfLists; ++turn) {
      const uint64_t row = ItemOfTurn<kTurnsOfLists>(turn);
      if (row >= used_rows) break;
      const RowHeader& header = *view.HeaderAt(static_cast<uint32_t>(row));
      if (!IsLive(header)) continue;
      const uint32_t own = ScoreOfRow(header, by_frequency);
      if (own < score) found.Add(turn);
      if (own == score) ties.Add(turn);
    }
    const uint32_t taken = TakeTies(ties.count());
    for (uint32_t turn = 0, left = taken; left != 0; ++turn) {
      if (!ties.Has(turn)) continue;
      found.Add(turn);
      --left;
    }
    rows.AddFound(found);
  }

 private:
  // Returns how many of this thread's ties are listed.
  uint32_t TakeTies(uint32_t count) const {
    if (count == 0 || Peek(ties_seen) >= num_ties) return 0;
    const uint32_t before = atomicAdd(ties_seen, count);
    if (before >= num_ties) return 0;
    return num_ties - before < count ? num_ties - before : count;
  }
};

// Erases rows of one table and writes the keys and buckets that they had. REQUIRES: the list's rows are live and
// differ.
struct EraseListed {
  Tables tables;
  RowList list;
  int64_t* keys;      // [list.most]
  uint16_t* buckets;  // [list.most]

  uint64_t NumThreads() const { return ThreadsFor<kTurnsOfLists>(list.most); }
  void operator()() const {
    const TableView& view = tables.views[list.table];
    Turns erased;
    for (uint32_t turn = 0; turn < kTurnsOfLists && PlaceOf(turn) < list.Count(); ++turn) {
      EraseOne(view, PlaceOf(turn));
      erased.Add(turn);
    }
    if (erased.count() == 0) return;
    uint32_t free = atomicAdd(&view.counters->num_free, erased.count());
    for (uint32_t turn = 0; turn < erased.count(); ++turn) view.free_rows[free++] = list.rows[PlaceOf(turn)];
  }

 private:
  static uint64_t PlaceOf(uint32_t turn) { return ItemOfTurn<kTurnsOfLists>(turn); }

  void EraseOne(const TableView& view, uint64_t place) const {
    const uint32_t row = list.rows[place], bucket = view.BucketOfRow(row);
    const int64_t key = view.HeaderAt(row)->key;
    RemoveRow(view, tables.process_key, HashInBucket(bucket, key), row);
    keys[place] = key;
    buckets[place] = static_cast<uint16_t>(bucket);
  }
};

// Counts the rows of each slot; those of unknown slots are counted last.
struct CountBySlot {
  Tables tables;
  uint32_t table;
  uint32_t num_rows;
  KeySlots slots;
  uint32_t* counts;  // [kNumSlots + 1], 0 at first

  uint64_t NumThreads() const { return ThreadsFor<kTurnsOfCounts>(num_rows); }
  void operator()() const {
    const TableView& view = tables.views[table];
    const uint32_t used_rows = view.UsedRows(num_rows);
    Tally tally(counts);
    for (uint32_t turn = 0; turn < kTurnsOfCounts; ++turn) {
      const uint64_t row = ItemOfTurn<kTurnsOfCounts>(turn);
      if (row >= used_rows) break;
      const RowHeader& header = *view.HeaderAt(static_cast<uint32_t>(row));
      if (IsLive(header)) tally.Count(slots.Of(header.key));
    }
    tally.Flush();
  }
};

}  // namespace monolith::device
