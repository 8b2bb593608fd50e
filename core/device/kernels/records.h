// Rows as records, header and payload end to end: how they go to the host and come from it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/kernels/table_view.h"
#include "device/kernels/thread.h"

namespace monolith::device {

// A record is a header, a payload and zeros up to its size. The first of several is on a boundary of 16 bytes.
struct RecordLayout {
  uint32_t payload_bytes;  // a multiple of 4
  uint32_t record_bytes;   // a multiple of 8

  uint32_t PayloadFloats() const { return payload_bytes / sizeof(float); }
  uint32_t FloatsAfterHeader() const { return (record_bytes - sizeof(RowHeader)) / sizeof(float); }
  // Whether packs of four floats can be used.
  bool IsAligned() const { return record_bytes % 16 == 0; }
};

// For launches in which lanes share a record.
inline constexpr uint32_t LaneBitsForRecord(uint32_t record_bytes) { return LaneBitsFor((record_bytes + 15) / 16); }

// Row numbers: those of the distinct ids of a plan, or of rows of one table.
struct RowList {
  uint32_t most;         // places
  const uint32_t* rows;  // [most]
  const uint32_t* used;  // how many of the places are in use, or more than there are; null: all
  const int32_t* cells;  // of the plan; null: all rows are those of `table`
  uint32_t num_tables;   // of the plan
  uint32_t table;

  uint32_t Count() const { return used == nullptr || *used > most ? most : *used; }
  uint32_t TableAt(uint32_t place) const {
    return cells == nullptr ? table : static_cast<uint32_t>(cells[place]) % num_tables;
  }
};

inline RowList RowsOfIds(const DistinctIds& ids, const uint32_t* rows) {
  return {ids.count, rows, nullptr, ids.cells, ids.num_tables, 0};
}
inline RowList RowsOfTable(uint32_t table, const uint32_t* rows, uint32_t most, const uint32_t* used = nullptr) {
  return {most, rows, used, nullptr, 1, table};
}

// Copies `num_floats` floats and writes zeros after them, up to `room`: the part of one lane.
template <int kWidth>
inline void CopyPacks(const float* from, uint32_t num_floats, float* to, uint32_t room, const Lane& lane,
                      uint32_t lane_bits) {
  for (uint32_t at = kWidth * lane.number; at < room; at += kWidth << lane_bits) {
    Pack<kWidth> pack{};
    if (at < num_floats) pack = LoadPack<kWidth>(from + at);
    MONOLITH_UNROLL
    for (uint32_t i = 0; i < kWidth; ++i) {
      if (at + i >= num_floats) pack.at[i] = 0.0f;
    }
    StorePack(pack, to + at);
  }
}

inline void CopyFloats(const RecordLayout& layout, const float* from, uint32_t num_floats, float* to, uint32_t room,
                       const Lane& lane, uint32_t lane_bits) {
  if (layout.IsAligned()) {
    CopyPacks<4>(from, num_floats, to, room, lane, lane_bits);
  } else {
    CopyPacks<1>(from, num_floats, to, room, lane, lane_bits);
  }
}

// Records of one layout, end to end.
struct Records {
  RecordLayout layout;
  std::byte* bytes;

  RowHeader* HeaderAt(uint64_t place) const {
    return reinterpret_cast<RowHeader*>(bytes + place * layout.record_bytes);
  }
  float* PayloadAt(uint64_t place) const {
    return reinterpret_cast<float*>(bytes + place * layout.record_bytes + sizeof(RowHeader));
  }

  // Each is the part of one lane.
  void Take(uint64_t place, const TableView& table, uint32_t row, const Lane& lane, uint32_t lane_bits) const {
    if (lane.number == 0) *HeaderAt(place) = *table.HeaderAt(row);
    CopyFloats(layout, table.PayloadAt(row), layout.PayloadFloats(), PayloadAt(place), layout.FloatsAfterHeader(), lane,
               lane_bits);
  }
  void TakeRecord(uint64_t place, const Records& from, uint64_t other, const Lane& lane, uint32_t lane_bits) const {
    if (lane.number == 0) *HeaderAt(place) = *from.HeaderAt(other);
    const uint32_t num_floats = layout.FloatsAfterHeader();
    CopyFloats(layout, from.PayloadAt(other), num_floats, PayloadAt(place), num_floats, lane, lane_bits);
  }
  // All but the key, which the row has. Writes zeros to the rest of the payload.
  void Give(uint64_t place, const TableView& table, uint32_t row, const Lane& lane, uint32_t lane_bits) const {
    if (lane.number == 0) {
      RowHeader& header = *table.HeaderAt(row);
      header.time = HeaderAt(place)->time;
      header.meta = HeaderAt(place)->meta;
    }
    CopyFloats(layout, PayloadAt(place), layout.PayloadFloats(), table.PayloadAt(row), table.stride, lane, lane_bits);
  }
};

// Writes the records of rows in the order of a list. REQUIRES: the list has no kNoRow.
struct PackRecords {
  Tables tables;
  RowList list;
  Records records;  // [list.most]
  uint32_t lane_bits;

  uint64_t NumThreads() const { return uint64_t{list.most} << lane_bits; }
  void operator()() const {
    const Lane lane = LaneOf(lane_bits);
    if (lane.item >= list.Count()) return;
    const auto place = static_cast<uint32_t>(lane.item);
    records.Take(place, tables.views[list.TableAt(place)], list.rows[place], lane, lane_bits);
  }
};

// Overwrites rows, except for their keys, by records: time, frequency, epoch and payload are copied. Places of
// the list without a row are skipped.
struct StoreRecords {
  Tables tables;
  RowList list;
  Records records;
  // Of the plan of the records' ids: each row gets the last record of its id. Null: record u is that of place u.
  const int64_t* order;
  const int32_t* starts;
  uint32_t lane_bits;

  uint64_t NumThreads() const { return uint64_t{list.most} << lane_bits; }
  void operator()() const {
    const Lane lane = LaneOf(lane_bits);
    if (lane.item >= list.Count()) return;
    const auto place = static_cast<uint32_t>(lane.item);
    if (list.rows[place] == kNoRow) return;
    const uint64_t record = order == nullptr ? place : static_cast<uint64_t>(order[starts[place + 1] - 1]);
    records.Give(record, tables.views[list.TableAt(place)], list.rows[place], lane, lane_bits);
  }
};

}  // namespace monolith::device
