// Images: the records that rows had at an open cut, kept before the first change of a row whose bucket was not read.
//
// Every launch that changes or erases rows is preceded by PickImages and KeepImages. Their rows have a later epoch
// afterwards, or none, so that no row is kept twice. A pool of images has room for a certain number of them; its caller
// takes another one before it can be full. Images of a range of buckets are listed as rows are
// (device/kernels/history.h), with the same selection.
#pragma once

#include <cstdint>

#include "device/kernels/history.h"
#include "device/kernels/records.h"
#include "device/kernels/turns.h"

namespace monolith::device {

inline constexpr uint32_t kNoImage = 0xffffffffu;

// Images of one table.
struct ImagePool {
  uint32_t most;      // images that there is room for
  uint32_t* used;     // 0 at first; more than `most` if images were lost
  Records records;    // [most]
  uint16_t* buckets;  // [most]

  uint32_t Count() const { return *used > most ? most : *used; }
};

// Gives a place in the pool to each row that the cut needs and that is about to change. Of a refused update no row is.
struct PickImages {
  Tables tables;
  RowList changing;         // may have kNoRow
  const uint32_t* refused;  // as for InsertRows; null: never
  uint32_t cut_epoch;
  BucketSet read_buckets;
  const ImagePool* pools;  // of each table
  uint32_t* images;        // [changing.most], or kNoImage

  uint64_t NumThreads() const { return ThreadsFor<kTurnsOfLists>(changing.most); }
  void operator()() const {
    Turns needed;
    for (uint32_t turn = 0; turn < kTurnsOfLists && PlaceOf(turn) < changing.most; ++turn) {
      images[PlaceOf(turn)] = kNoImage;
      if (IsNeeded(static_cast<uint32_t>(PlaceOf(turn)))) needed.Add(turn);
    }
    // One addition to the pool's counter for all rows of the same table.
    Turns done;
    for (uint32_t turn = 0; done.count() != needed.count(); ++turn) {
      if (!needed.Has(turn) || done.Has(turn)) continue;
      const uint32_t table = TableOf(turn);
      Turns own;
      for (uint32_t other = turn; other < kTurnsOfLists; ++other) {
        if (!needed.Has(other) || TableOf(other) != table) continue;
        own.Add(other);
        done.Add(other);
      }
      TakePlaces(pools[table], own);
    }
  }

 private:
  static uint64_t PlaceOf(uint32_t turn) { return ItemOfTurn<kTurnsOfLists>(turn); }
  uint32_t TableOf(uint32_t turn) const { return changing.TableAt(static_cast<uint32_t>(PlaceOf(turn))); }

  bool IsNeeded(uint32_t place) const {
    if (place >= changing.Count() || (refused != nullptr && *refused != 0)) return false;
    const uint32_t row = changing.rows[place];
    if (row == kNoRow) return false;
    const TableView& view = tables.views[changing.TableAt(place)];
    const RowHeader& header = *view.HeaderAt(row);
    return IsLive(header) && EpochOf(header) <= cut_epoch && !read_buckets.Has(view.BucketOfRow(row));
  }

  void TakePlaces(const ImagePool& pool, const Turns& turns) const {
    uint64_t image = atomicAdd(pool.used, turns.count());
    for (uint32_t turn = 0; turn < kTurnsOfLists; ++turn) {
      if (!turns.Has(turn)) continue;
      if (image < pool.most) images[PlaceOf(turn)] = static_cast<uint32_t>(image);
      ++image;
    }
  }
};

// Copies the rows that have been given places.
struct KeepImages {
  Tables tables;
  RowList changing;
  const ImagePool* pools;
  const uint32_t* images;  // by PickImages
  uint32_t lane_bits;

  uint64_t NumThreads() const { return uint64_t{changing.most} << lane_bits; }
  void operator()() const {
    const Lane lane = LaneOf(lane_bits);
    if (lane.item >= changing.most || images[lane.item] == kNoImage) return;
    const auto place = static_cast<uint32_t>(lane.item);
    const uint32_t table = changing.TableAt(place), row = changing.rows[place], image = images[place];
    const TableView& view = tables.views[table];
    pools[table].records.Take(image, view, row, lane, lane_bits);
    if (lane.number == 0) pools[table].buckets[image] = static_cast<uint16_t>(view.BucketOfRow(row));
  }
};

struct CountImagesInBuckets {
  ImagePool pool;
  RowSelection selection;
  uint32_t* counts;  // [kNumBuckets]; counts are added

  uint64_t NumThreads() const { return pool.most; }
  void operator()() const {
    const uint64_t image = ThreadNumber();
    if (image >= pool.Count() || !selection.HasBucket(pool.buckets[image])) return;
    if (selection.HasRow(*pool.records.HeaderAt(image))) atomicAdd(counts + pool.buckets[image], 1u);
  }
};

// REQUIRES: no image was added since they were counted.
struct ListImagesInBuckets {
  ImagePool pool;
  RowSelection selection;
  BucketPlaces places;
  uint32_t* images;  // as many as were counted

  uint64_t NumThreads() const { return pool.most; }
  void operator()() const {
    const uint64_t image = ThreadNumber();
    if (image >= pool.Count() || !selection.HasBucket(pool.buckets[image])) return;
    if (selection.HasRow(*pool.records.HeaderAt(image))) {
      images[places.Next(pool.buckets[image])] = static_cast<uint32_t>(image);
    }
  }
};

// Copies images in the order of a list.
struct PackImages {
  Records pool;  // ImagePool::records
  uint32_t count;
  const uint32_t* images;
  Records records;  // [count], of the same layout
  uint32_t lane_bits;

  uint64_t NumThreads() const { return uint64_t{count} << lane_bits; }
  void operator()() const {
    const Lane lane = LaneOf(lane_bits);
    if (lane.item < count) records.TakeRecord(lane.item, pool, images[lane.item], lane, lane_bits);
  }
};

// Renumbers images along with rows (ShiftEpochs).
struct ShiftImageEpochs {
  ImagePool pool;
  EpochShift shift;

  uint64_t NumThreads() const { return pool.most; }
  void operator()() const {
    const uint64_t image = ThreadNumber();
    if (image < pool.Count()) ShiftEpochOf(*pool.records.HeaderAt(image), shift);
  }
};

}  // namespace monolith::device
