// Which rows changed when: listing them by bucket, and the renumbering of their epochs.
//
// A listing is two launches over all headers. The first counts rows by bucket; from exclusive sums of its counts, which
// its caller makes, the second writes the rows of each bucket end to end, in any order.
#pragma once

#include <cstdint>

#include "device/kernels/expiry.h"
#include "device/kernels/table_view.h"
#include "device/kernels/thread.h"
#include "table/epoch_shift.h"

namespace monolith::device {

// What a listing has: live rows of these epochs and buckets.
struct RowSelection {
  uint32_t first_epoch;
  uint32_t last_epoch;  // inclusive
  uint32_t first_bucket;
  uint32_t end_bucket;  // exclusive
  BucketSet skip_buckets;
  bool drops_expired;
  Expiry expiry;  // if drops_expired

  bool HasBucket(uint32_t bucket) const {
    return bucket >= first_bucket && bucket < end_bucket && !skip_buckets.Has(bucket);
  }
  bool HasEpoch(uint32_t epoch) const { return epoch >= first_epoch && epoch <= last_epoch; }
  bool HasRow(const RowHeader& row) const {
    return IsLive(row) && HasEpoch(EpochOf(row)) && !(drops_expired && expiry.HasExpired(row));
  }
};

// Places of the items of each bucket in a list.
struct BucketPlaces {
  const uint32_t* starts;  // [kNumBuckets], exclusive sums of the counts
  uint32_t* fills;         // [kNumBuckets], 0 at first

  uint32_t Next(uint32_t bucket) const { return starts[bucket] + atomicAdd(fills + bucket, 1u); }
};

struct CountRowsInBuckets {
  Tables tables;
  uint32_t table;
  uint32_t num_rows;  // row numbers from 0 on
  RowSelection selection;
  uint32_t* counts;  // [kNumBuckets]; counts are added

  uint64_t NumThreads() const { return num_rows; }
  void operator()() const {
    const TableView& view = tables.views[table];
    const uint64_t thread = ThreadNumber();
    if (thread >= view.UsedRows(num_rows)) return;
    const auto row = static_cast<uint32_t>(thread);
    if (!selection.HasRow(*view.HeaderAt(row))) return;
    const uint32_t bucket = view.BucketOfRow(row);
    if (selection.HasBucket(bucket)) atomicAdd(counts + bucket, 1u);
  }
};

// REQUIRES: no row has changed since the rows were counted.
struct ListRowsInBuckets {
  Tables tables;
  uint32_t table;
  uint32_t num_rows;
  RowSelection selection;
  BucketPlaces places;
  uint32_t* rows;  // as many as were counted

  uint64_t NumThreads() const { return num_rows; }
  void operator()() const {
    const TableView& view = tables.views[table];
    const uint64_t thread = ThreadNumber();
    if (thread >= view.UsedRows(num_rows)) return;
    const auto row = static_cast<uint32_t>(thread);
    if (!selection.HasRow(*view.HeaderAt(row))) return;
    const uint32_t bucket = view.BucketOfRow(row);
    if (selection.HasBucket(bucket)) rows[places.Next(bucket)] = row;
  }
};

inline void ShiftEpochOf(RowHeader& row, const EpochShift& shift) {
  if (IsLive(row)) row.meta = MakeMeta(FrequencyOf(row), shift.Of(EpochOf(row)));
}

struct ShiftEpochs {
  Tables tables;
  uint32_t table;
  uint32_t num_rows;
  EpochShift shift;

  uint64_t NumThreads() const { return num_rows; }
  void operator()() const {
    const TableView& view = tables.views[table];
    const uint64_t row = ThreadNumber();
    if (row < view.UsedRows(num_rows)) ShiftEpochOf(*view.HeaderAt(static_cast<uint32_t>(row)), shift);
  }
};

}  // namespace monolith::device
