// What an update does around its optimizer step: it checks the gradients before, and stamps the rows after.
#pragma once

#include <cstdint>

#include "device/kernels/index.h"
#include "device/kernels/segment_view.h"
#include "device/kernels/table_view.h"
#include "device/kernels/thread.h"

namespace monolith::device {

// Of the ids of an update (table/group.h, Applied).
struct UpdateCounts {
  uint32_t updated;
  uint32_t inserted;
  uint32_t filtered;
  uint32_t skipped;
};

inline constexpr uint32_t kNoPlace = 0xffffffffu;

// Multiplies the gradients of each id by a factor, and checks that they are finite: a table refuses the update, skips
// the id, or does nothing about it. Before ids are admitted or inserted. Lanes share an id.
struct CheckGradients {
  DistinctIds ids;
  ValueLayout layout;
  const TableTraits* traits;  // of the tables
  uint32_t lane_bits;
  const float* gradients;
  float scale;
  float* scaled;            // gets the products unless the factor is 1; may be the gradients themselves
  uint32_t* refused;        // set to 1
  uint32_t* first_refused;  // the least id for which it is; kNoPlace at first
  uint32_t* rows;           // [ids.count], as found; kNoRow for skipped ids
  int32_t* is_missing;      // [ids.count] of FlagMissing; 0 for skipped ids
  UpdateCounts* counts;

  void operator()() const {
    const Lane lane = LaneOf(lane_bits);
    if (lane.item >= ids.count) return;
    const auto place = static_cast<uint32_t>(lane.item);
    const uint32_t table = ids.TableAt(place), dim = layout.DimOf(table);
    const uint64_t offset = layout.OffsetAt(place);
    const float* const from = gradients + offset;
    float* const to = scale == 1.0f ? nullptr : scaled + offset;
    const auto places = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to);
    const bool has_packs = dim % 4 == 0 && places % 16 == 0;
    const bool is_finite = has_packs ? Scale<4>(from, to, dim, lane.number) : Scale<1>(from, to, dim, lane.number);
    if (!is_finite) Refuse(place, traits[table].nonfinite);
  }

 private:
  // Returns whether all products are finite.
  template <int kWidth>
  bool Scale(const float* from, float* to, uint32_t dim, uint32_t first_pack) const {
    bool is_finite = true;
    for (uint32_t at = kWidth * first_pack; at < dim; at += kWidth << lane_bits) {
      Pack<kWidth> pack = LoadPack<kWidth>(from + at);
      MONOLITH_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        if (to != nullptr) pack.at[i] = pack.at[i] * scale;
        is_finite = is_finite && IsFinite(pack.at[i]);
      }
      if (to != nullptr) StorePack(pack, to + at);
    }
    return is_finite;
  }

  void Refuse(uint32_t place, NonFinite policy) const {
    if (policy == NonFinite::kRaise) {
      atomicExch(refused, 1u);
      atomicMin(first_refused, place);
    }
    // Several lanes may come here: the first one counts the id, which has a row or is missing.
    if (policy == NonFinite::kSkip && (atomicExch(rows + place, kNoRow) != kNoRow || atomicExch(is_missing + place, 0)))
      atomicAdd(&counts->skipped, 1u);
  }
};

// The newest time of the occurrences of each id.
struct NewestTimesOfIds {
  uint32_t num_ids;        // of the batch
  const uint32_t* times;   // [num_ids]
  const int32_t* inverse;  // of the plan
  uint32_t* newest;        // [distinct ids], 0 at first

  void operator()() const {
    const uint64_t position = ThreadNumber();
    if (position < num_ids) atomicMax(newest + inverse[position], times[position]);
  }
};

// Sets the headers of the rows of an update, and counts them. Any number of threads will do, each for some of the ids:
// with many, the counters would be what they wait for (BlocksForCounting of device/segment_rules.h).
struct StampRows {
  DistinctIds ids;
  Tables tables;
  NewRanks ranks;
  const uint32_t* rows;   // [ids.count]; kNoRow: not updated
  const uint32_t* times;  // [ids.count]; null: `time` for all
  uint32_t time;
  uint32_t epoch;
  const uint32_t* refused;
  UpdateCounts* counts;

  void operator()() const {
    if (*refused != 0) return;
    uint32_t updated = 0, inserted = 0;
    for (uint64_t i = ThreadNumber(); i < ids.count; i += uint64_t{gridDim.x} * blockDim.x) {
      const auto place = static_cast<uint32_t>(i);
      if (rows[place] == kNoRow) continue;
      RowHeader& header = *tables.views[ids.TableAt(place)].HeaderAt(rows[place]);
      const uint32_t frequency = FrequencyOf(header) + 1;
      header.time = times == nullptr ? time : times[place];
      header.meta = MakeMeta(frequency < kMaxFrequency ? frequency : kMaxFrequency, epoch);
      ++updated;
      inserted += ranks.IsNew(place);
    }
    if (updated != 0) atomicAdd(&counts->updated, updated);
    if (inserted != 0) atomicAdd(&counts->inserted, inserted);
  }
};

}  // namespace monolith::device
