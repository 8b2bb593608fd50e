// Pooled lookups of many slots on a device, with the bits of table/pooled_slots.cc: from the rows of a plan to one
// output row per example, and where the gradient of each occurrence is, for the kernels of device/kernels/sums.h.
//
// The slots are arguments of a launch, so that a step copies nothing to the device; with many slots there are several
// launches. device/slot_pooling.h makes them.
#pragma once

#include <cstdint>

#include "device/kernels/sums.h"
#include "device/kernels/table_view.h"
#include "device/kernels/thread.h"
#include "table/pooling.h"

namespace monolith::device {

// The ids of one slot in one batch.
struct SlotView {
  const int64_t* row_splits;  // [examples + 1]; null: every example has `per_example` ids
  uint32_t per_example;
  uint32_t first;  // in the ids of all slots
  uint32_t end;
  uint32_t dim;
  uint32_t places;  // n of "the first n"; 0: the rows of an example are pooled to one
  Pooling pooling;

  uint32_t Begin(uint32_t example) const {
    return first + (row_splits == nullptr ? example * per_example : static_cast<uint32_t>(row_splits[example]));
  }
  // The example of an id. REQUIRES: the slot has this id.
  uint32_t ExampleOf(uint32_t position, uint32_t num_examples) const {
    const uint32_t own = position - first;
    if (row_splits == nullptr) return per_example == 1 ? own : own / per_example;
    uint32_t example = 0, after = num_examples;  // the last example that begins at or before the id
    while (after - example > 1) {
      const uint32_t middle = example + (after - example) / 2;
      if (row_splits[middle] <= static_cast<int64_t>(own)) {
        example = middle;
      } else {
        after = middle;
      }
    }
    return example;
  }
};

inline constexpr uint32_t kSlotsOfLaunch = 64;

// Some neighbouring slots, in the order of their ids.
struct SlotViews {
  uint32_t count;
  uint32_t num_examples;
  SlotView at[kSlotsOfLaunch];

  // The last one for which begins_at(number) <= place.
  template <typename Place, typename BeginsAt>
  uint32_t Find(Place place, BeginsAt&& begins_at) const {
    uint32_t number = 0, after = count;
    while (after - number > 1) {
      const uint32_t middle = (number + after) / 2;
      if (begins_at(middle) <= place) {
        number = middle;
      } else {
        after = middle;
      }
    }
    return number;
  }
};

// Writes the outputs: an item is the output of one example, or one of its places. Lanes share an item.
template <int kWidth>
struct PoolSlots {
  SlotViews slots;
  uint64_t first_item[kSlotsOfLaunch];  // of each slot
  int64_t column[kSlotsOfLaunch];       // of its output in the row of an example
  uint64_t num_items;
  uint32_t lane_bits;
  ValueLayout layout;
  const int32_t* inverse;
  const float* values;
  int64_t width;  // floats of the outputs of one example
  float* outputs;

  void operator()() const {
    const Lane lane = LaneOf(lane_bits);
    if (lane.item >= num_items) return;
    const uint32_t number = slots.Find(lane.item, [this](uint32_t slot) { return first_item[slot]; });
    const SlotView& slot = slots.at[number];
    const auto item = static_cast<uint32_t>(lane.item - first_item[number]);
    const uint32_t example = slot.places == 0 ? item : item / slot.places;
    const uint32_t place = slot.places == 0 ? 0 : item % slot.places;
    uint32_t begin = slot.Begin(example), end = slot.Begin(example + 1);
    if (slot.places != 0) {  // the row of this place alone
      begin = end - begin > place ? begin + place : end;
      end = begin < end ? begin + 1 : end;
    }
    float* const to = outputs + static_cast<int64_t>(example) * width + column[number] + uint64_t{place} * slot.dim;
    const bool is_scaled = IsScaled(slot.pooling) && end - begin > 1;
    const float scale = is_scaled ? PooledScale(slot.pooling, end - begin) : 1.0f;
    for (uint32_t at = kWidth * lane.number; at < slot.dim; at += kWidth << lane_bits) {
      Pack<kWidth> sum = begin == end ? Pack<kWidth>{} : Sum(begin, end, at);
      if (is_scaled) {
        for (int i = 0; i < kWidth; ++i) sum.at[i] = sum.at[i] * scale;
      }
      StorePack(sum, to + at);
    }
  }

 private:
  const float* RowAt(uint32_t position) const {
    return values + layout.OffsetAt(static_cast<uint32_t>(inverse[position]));
  }
  // The addresses of four, then the four, are read before the first of them is added: their latencies overlap.
  Pack<kWidth> Sum(uint32_t begin, uint32_t end, uint32_t at) const {
    constexpr uint32_t kAhead = 4;
    Pack<kWidth> sum = LoadPack<kWidth>(RowAt(begin) + at);
    uint32_t next = begin + 1;
    for (; next + kAhead <= end; next += kAhead) {
      uint32_t places[kAhead];
      Pack<kWidth> given[kAhead];
      for (uint32_t i = 0; i < kAhead; ++i) places[i] = static_cast<uint32_t>(inverse[next + i]);
      for (uint32_t i = 0; i < kAhead; ++i) given[i] = LoadPack<kWidth>(values + layout.OffsetAt(places[i]) + at);
      for (uint32_t i = 0; i < kAhead; ++i) AddPack(given[i], sum);
    }
    for (; next < end; ++next) AddPack(LoadPack<kWidth>(RowAt(next) + at), sum);
    return sum;
  }
};

// Finds the gradient of each occurrence, in plan order, and its factor: what GradientSource takes.
struct FindGradientSources {
  SlotViews slots;
  int64_t gradients[kSlotsOfLaunch];  // of each slot: where that of the first example begins; kNoGradient: zeros
  int64_t strides[kSlotsOfLaunch];    // floats from one example to the next
  uint32_t num_ids;
  const int64_t* order;  // [num_ids], as in a plan
  int64_t* sources;      // [num_ids]
  float* scales;         // [num_ids]; null if no slot has factors

  void operator()() const {
    const uint64_t occurrence = ThreadNumber();
    if (occurrence >= num_ids) return;
    const auto position = static_cast<uint32_t>(order[occurrence]);
    if (position < slots.at[0].first || position >= slots.at[slots.count - 1].end) return;
    const uint32_t number = slots.Find(position, [this](uint32_t slot) { return slots.at[slot].first; });
    const SlotView& slot = slots.at[number];
    const uint32_t example = slot.ExampleOf(position, slots.num_examples);
    const uint32_t begin = slot.Begin(example), place = slot.places == 0 ? 0 : position - begin;
    const bool has_gradient = gradients[number] != kNoGradient && (slot.places == 0 || place < slot.places);
    sources[occurrence] = has_gradient ? gradients[number] + static_cast<int64_t>(example) * strides[number] +
                                             static_cast<int64_t>(uint64_t{place} * slot.dim)
                                       : kNoGradient;
    if (scales != nullptr) scales[occurrence] = PooledScale(slot.pooling, slot.Begin(example + 1) - begin);
  }
};

}  // namespace monolith::device
