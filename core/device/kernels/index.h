// The index of a table: finds rows, inserts and erases them, and grows.
//
// It has 16 segments, open hash tables of 64-bit words that are searched linearly:
//
//   63..........32 31............0
//   tag            row number         tag: the upper half of the row's hash, HashInBucket() of base/hash.h
//
// The tag's upper ten bits are the bucket, so tag and key, which is in the header, identify a row, whatever its key is
// (table/slot_keys.h). Segment and home of a hash are secret to the process (base/process_key.h): however ids are
// chosen, searches stay short and segments equally full. A segment doubles on its own, so that no call waits for more
// than a sixteenth of a table.
#pragma once

#include <cstdint>

#include "base/hash.h"
#include "device/kernels/process_hash.h"
#include "device/kernels/table_view.h"
#include "device/kernels/thread.h"

namespace monolith::device {

// No row has the numbers of these words.
inline constexpr uint64_t kFreeWord = ~uint64_t{0};
inline constexpr uint64_t kErasedWord = kFreeWord - 1;

inline constexpr uint64_t WordOf(uint64_t hash, uint32_t row) { return (hash >> 32) << 32 | row; }
inline constexpr uint32_t RowOfWord(uint64_t word) { return static_cast<uint32_t>(word); }
inline constexpr uint32_t BucketOfWord(uint64_t word) { return BucketOfHash(word); }

// Where the search for a hash begins.
struct IndexPlace {
  uint64_t* words;
  uint64_t mask;
  uint64_t home;

  uint64_t* At(uint64_t probe) const { return words + ((home + probe) & mask); }
};

inline IndexPlace PlaceOf(const TableView& table, uint64_t process_key, uint64_t hash) {
  const uint64_t bits = HashWithKey(hash, process_key);
  const auto segment = static_cast<uint32_t>(bits >> (64 - kSegmentBits));
  const uint32_t size_bits = table.segment_bits[segment];
  return {table.segments[segment], (uint64_t{1} << size_bits) - 1, (bits << kSegmentBits) >> (64 - size_bits)};
}

// Returns kNoRow if the key has none. Not while rows are inserted or erased.
inline uint32_t FindRow(const TableView& table, uint64_t process_key, uint32_t bucket, int64_t key) {
  const uint64_t hash = HashInBucket(bucket, key);
  const IndexPlace place = PlaceOf(table, process_key, hash);
  for (uint64_t probe = 0; probe <= place.mask; ++probe) {
    const uint64_t word = *place.At(probe);
    if (word == kFreeWord) break;
    if ((word ^ hash) >> 32 != 0 || word == kErasedWord) continue;
    if (table.HeaderAt(RowOfWord(word))->key == key) return RowOfWord(word);
  }
  return kNoRow;
}

// REQUIRES: the hash's row is not in the index, so that any place without a row will do. Returns false if there is
// none.
inline bool PutWord(const IndexPlace& place, uint64_t word) {
  for (uint64_t probe = 0; probe <= place.mask; ++probe) {
    uint64_t seen = Peek(place.At(probe));
    while (seen == kFreeWord || seen == kErasedWord) {
      const uint64_t before = atomicCAS(place.At(probe), seen, word);
      if (before == seen) return true;
      seen = before;
    }
  }
  return false;
}

// What is left to do is to give the row's number back. REQUIRES: the index has the row under this hash, and no other
// thread removes it.
inline void RemoveRow(const TableView& table, uint64_t process_key, uint64_t hash, uint32_t row) {
  const IndexPlace home = PlaceOf(table, process_key, hash);
  uint64_t probe = 0;
  while (Peek(home.At(probe)) != WordOf(hash, row)) ++probe;
  atomicExch(home.At(probe), kErasedWord);
  table.HeaderAt(row)->meta = kHoleMeta;
}

struct FindRows {
  DistinctIds ids;
  Tables tables;
  uint32_t* rows;  // [ids.count]

  void operator()() const {
    const uint64_t thread = ThreadNumber();
    if (thread >= ids.count) return;
    const auto place = static_cast<uint32_t>(thread);
    rows[place] = FindRow(tables.views[ids.TableAt(place)], tables.process_key, ids.BucketAt(place), ids.keys[place]);
  }
};

// As FindRows, for ids whose rows were found before: a row that still is the id's is not searched for. Rows that were
// found may have been erased since, and their numbers used again.
struct FindRowsAgain {
  DistinctIds ids;
  Tables tables;
  uint32_t* rows;  // [ids.count], in: as found before

  void operator()() const {
    const uint64_t thread = ThreadNumber();
    if (thread >= ids.count) return;
    const auto place = static_cast<uint32_t>(thread);
    const TableView& table = tables.views[ids.TableAt(place)];
    const uint32_t row = rows[place], bucket = ids.BucketAt(place);
    const int64_t key = ids.keys[place];
    if (row < table.counters->next_row) {
      const RowHeader& header = *table.HeaderAt(row);
      if (header.key == key && IsLive(header) && table.BucketOfRow(row) == bucket) return;
    }
    rows[place] = FindRow(table, tables.process_key, bucket, key);
  }
};

// is_missing[u]: 1 if distinct id u has no row, else 0.
struct FlagMissing {
  uint32_t count;
  const uint32_t* rows;
  int32_t* is_missing;

  void operator()() const {
    const uint64_t place = ThreadNumber();
    if (place < count) is_missing[place] = rows[place] == kNoRow;
  }
};

// New rows of each cell, in the order of tables, then buckets; for several tables.
struct CountNewInCells {
  uint32_t num_tables;
  const int64_t* splits;  // of the plan
  const int32_t* ranks;   // [distinct ids], inclusive sums of is_missing
  int32_t* counts;        // [num_tables * kNumBuckets]

  void operator()() const {
    const uint64_t thread = ThreadNumber();
    if (thread >= uint64_t{num_tables} * kNumBuckets) return;
    const uint64_t cell = thread % kNumBuckets * num_tables + thread / kNumBuckets;
    counts[thread] = RankBefore(splits[cell + 1]) - RankBefore(splits[cell]);
  }
  int32_t RankBefore(int64_t place) const { return place == 0 ? 0 : ranks[place - 1]; }
};

// How many of a table's new ids precede one in plan order.
struct NewRanks {
  const int32_t* ranks;   // [distinct ids], inclusive sums of is_missing
  const int64_t* splits;  // of the plan; for several tables, like the next
  const int32_t* sums;    // [num_tables * kNumBuckets], inclusive sums of CountNewInCells for each table

  bool IsNew(uint32_t place) const { return ranks[place] != RankBefore(place); }
  uint32_t RankOf(const DistinctIds& ids, uint32_t place) const {
    if (ids.num_tables == 1) return static_cast<uint32_t>(ranks[place] - 1);
    const uint64_t bucket = ids.BucketAt(place), table = ids.TableAt(place);
    const int32_t in_cell = ranks[place] - 1 - RankBefore(splits[ids.cells[place]]);
    return static_cast<uint32_t>(in_cell + (bucket == 0 ? 0 : sums[table * kNumBuckets + bucket - 1]));
  }
  // REQUIRES: ids.count != 0.
  uint32_t NumNew(const DistinctIds& ids, uint32_t table) const {
    if (ids.num_tables == 1) return static_cast<uint32_t>(ranks[ids.count - 1]);
    return static_cast<uint32_t>(sums[uint64_t{table} * kNumBuckets + kNumBuckets - 1]);
  }

 private:
  int32_t RankBefore(int64_t place) const { return place == 0 ? 0 : ranks[place - 1]; }
};

// Gives every id without a row a new one: first the numbers of erased rows, then fresh ones, in plan order. The header
// is that of a row that was never updated; the payload is not written. Does nothing if the update was refused.
struct InsertRows {
  DistinctIds ids;
  Tables tables;
  NewRanks ranks;
  const uint32_t* refused;
  uint32_t epoch;
  uint32_t* rows;  // [ids.count]

  void operator()() const {
    const uint64_t thread = ThreadNumber();
    if (thread >= ids.count || *refused != 0) return;
    const auto place = static_cast<uint32_t>(thread);
    if (!ranks.IsNew(place)) return;
    const TableView& table = tables.views[ids.TableAt(place)];
    const uint32_t rank = ranks.RankOf(ids, place), num_free = table.counters->num_free;
    const uint32_t row =
        rank < num_free ? table.free_rows[num_free - 1 - rank] : table.counters->next_row + (rank - num_free);
    const int64_t key = ids.keys[place];
    const uint64_t hash = HashInBucket(ids.BucketAt(place), key);
    const bool has_place = PutWord(PlaceOf(table, tables.process_key, hash), WordOf(hash, row));
    *table.HeaderAt(row) = {key, 0, has_place ? MakeMeta(0, epoch) : kHoleMeta};
    table.SetBucketOfRow(row, ids.BucketAt(place));
    rows[place] = has_place ? row : kNoRow;
    if (!has_place) atomicAdd(&table.counters->num_lost, 1u);
  }
};

// Counts what InsertRows has used: one thread for each table, in a launch of its own.
struct CountInserted {
  DistinctIds ids;
  Tables tables;
  NewRanks ranks;
  const uint32_t* refused;

  void operator()() const {
    const uint64_t table = ThreadNumber();
    if (table >= ids.num_tables || ids.count == 0 || *refused != 0) return;
    TableCounters& counters = *tables.views[table].counters;
    const uint32_t num_new = ranks.NumNew(ids, static_cast<uint32_t>(table));
    const uint32_t num_reused = num_new < counters.num_free ? num_new : counters.num_free;
    counters.num_free -= num_reused;
    counters.next_row += num_new - num_reused;
  }
};

// Erases the rows of some ids; their numbers are used again. Ids without a row are ignored.
struct EraseRows {
  DistinctIds ids;
  Tables tables;
  const uint32_t* rows;  // [ids.count], as found

  void operator()() const {
    const uint64_t thread = ThreadNumber();
    if (thread >= ids.count) return;
    const auto place = static_cast<uint32_t>(thread);
    const uint32_t row = rows[place];
    if (row == kNoRow) return;
    const TableView& table = tables.views[ids.TableAt(place)];
    RemoveRow(table, tables.process_key, HashInBucket(ids.BucketAt(place), ids.keys[place]), row);
    table.free_rows[atomicAdd(&table.counters->num_free, 1u)] = row;
  }
};

// Moves the rows of one segment to the memory that the table has for it by now, which is filled with kFreeWord and has
// room for them. A thread for each of the old words.
struct RehashSegment {
  Tables tables;
  uint32_t table;
  const uint64_t* words;  // the segment as it was
  uint64_t num_words;

  void operator()() const {
    const uint64_t thread = ThreadNumber();
    if (thread >= num_words) return;
    const uint64_t word = words[thread];
    if (word == kFreeWord || word == kErasedWord) return;
    const TableView& view = tables.views[table];
    const int64_t key = view.HeaderAt(RowOfWord(word))->key;
    PutWord(PlaceOf(view, tables.process_key, HashInBucket(BucketOfWord(word), key)), word);
  }
};

// Adds up the places of a segment that rows have and had: how full it is. Every thread counts some of the words.
struct CountWords {
  const uint64_t* words;
  uint64_t num_words;
  uint32_t* num_live;    // 0 at first
  uint32_t* num_erased;  // 0 at first

  void operator()() const {
    uint32_t live = 0, erased = 0;
    for (uint64_t i = ThreadNumber(); i < num_words; i += uint64_t{gridDim.x} * blockDim.x) {
      erased += words[i] == kErasedWord;
      live += words[i] != kErasedWord && words[i] != kFreeWord;
    }
    if (live != 0) atomicAdd(num_live, live);
    if (erased != 0) atomicAdd(num_erased, erased);
  }
};

}  // namespace monolith::device
