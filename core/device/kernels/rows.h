// Reads rows by their numbers.
#pragma once

#include <cstdint>

#include "device/kernels/table_view.h"
#include "device/kernels/thread.h"

namespace monolith::device {

// Copies the weights of each row to the place of its values; an id without a row gets zeros. Lanes share a row.
template <int kWidth>
struct GatherRows {
  DistinctIds ids;
  Tables tables;
  ValueLayout layout;
  uint32_t lane_bits;
  const uint32_t* rows;  // [ids.count]
  float* values;

  void operator()() const {
    const Lane lane = LaneOf(lane_bits);
    if (lane.item >= ids.count) return;
    const auto place = static_cast<uint32_t>(lane.item);
    const uint32_t table = ids.TableAt(place), row = rows[place];
    const uint32_t num_packs = layout.DimOf(table) / kWidth;
    const float* from = row == kNoRow ? nullptr : tables.views[table].PayloadAt(row);
    float* to = values + layout.OffsetAt(place);
    for (uint32_t pack = lane.number; pack < num_packs; pack += 1u << lane_bits) {
      StorePack(row == kNoRow ? Pack<kWidth>{} : LoadPack<kWidth>(from + kWidth * pack), to + kWidth * pack);
    }
  }
};

}  // namespace monolith::device
