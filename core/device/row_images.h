// The images of rows that changed since a cut was opened, in device memory until their bucket is read.
//
// Owned by a DeviceGroup, which calls one member at a time and launches everything in one stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device_memory.h"
#include "device/launcher.h"
#include "table/epoch_shift.h"
#include "table/group.h"

namespace monolith::device {

// A record on the device is one of the group of the same table.
RecordLayout RecordLayoutOf(const TableSpec& spec);

class RowImages {
 public:
  RowImages(Launcher& launcher, Stream stream, const Group& group);

  // A cut begins at the end of this epoch.
  void Open(uint32_t cut_epoch);
  void Close();
  // Images of rows in these buckets are no longer needed.
  void MarkRead(uint32_t begin, uint32_t end);

  // Both must precede every change of rows, and between them nothing may fail: what was kept has to change.
  // `rows_of_tables` has, for each table, how many of its rows may change at most.
  void MakeRoom(std::span<const uint32_t> rows_of_tables);
  // REQUIRES: there is room, and scratch memory for a number of each place of the list.
  void Keep(Scratch& scratch, const Tables& tables, const RowList& changing, const uint32_t* refused);
  void ShiftEpochs(const EpochShift& shift);

  // The images of one table; its count of places in use is not above num_used().
  const ImagePool& pool(uint32_t table) const { return pools_[table].view; }
  uint32_t num_used(uint32_t table) const { return pools_[table].num_used; }

 private:
  struct Pool {
    ImagePool view{};
    uint32_t num_used = 0;
    DeviceArray<std::byte> records;
    DeviceArray<uint16_t> buckets;
  };

  void Grow(Pool& pool, uint32_t most);

  Launcher& launcher_;
  const Stream stream_;
  bool is_open_ = false;
  uint32_t cut_epoch_ = 0;
  std::vector<uint32_t> read_buckets_;  // a bit for each bucket
  std::vector<Pool> pools_;
  bool are_views_changed_ = true;
  DeviceArray<uint32_t> used_;  // of each table
  DeviceArray<uint32_t> device_read_buckets_;
  DeviceArray<ImagePool> views_;
};

}  // namespace monolith::device
