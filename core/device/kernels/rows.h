// Reads rows by their numbers, and through the quantisers of their compressors.
#pragma once

#include <cstdint>

#include "device/kernels/segment_view.h"
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

// Replaces the weights of some segments, which GatherRows has copied, by what training reads of them
// (TableSpec::ReadWeights). Lanes share a row.
struct RetrieveRows {
  DistinctIds ids;
  ValueLayout layout;
  SegmentList segments;
  uint32_t lane_bits;
  const uint32_t* rows;  // [ids.count]; zeros of ids without a row stay zeros
  int64_t step;
  float* values;

  void operator()() const {
    const Lane lane = LaneOf(lane_bits);
    if (lane.item >= ids.count) return;
    const auto place = static_cast<uint32_t>(lane.item);
    if (rows[place] == kNoRow) return;
    segments.ForEach(ids.TableAt(place), [&](const SegmentView& view) {
      float* const weights = values + layout.OffsetAt(place) + view.first_dim;
      const QuantiserRule& quantiser = view.quantiser;
      if (quantiser.kind == QuantiserRule::Kind::kOneBit) {
        Replace(weights, view.dim, lane.number, quantiser.one_bit.At(step));
      } else {
        Replace(weights, view.dim, lane.number, quantiser.fixed_r8);
      }
    });
  }

 private:
  template <typename Rule>
  void Replace(float* weights, uint32_t dim, uint32_t first, const Rule rule) const {
    for (uint32_t i = first; i < dim; i += 1u << lane_bits) weights[i] = rule.Retrieve(weights[i]);
  }
};

}  // namespace monolith::device
