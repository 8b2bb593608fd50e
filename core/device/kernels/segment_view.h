// The segments of rows as kernels see them: what device/segment_rules.h makes of the tables' specs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compressor/quantiser_rule.h"
#include "device/kernels/table_view.h"
#include "initializer/initializer_rule.h"
#include "table/eviction_rule.h"
#include "table/nonfinite.h"
#include "table/row_seed.h"
#include "table/slot_keys.h"

namespace monolith::device {

inline constexpr int kRuleBytes = 32;  // of the largest rule of an optimizer

struct SegmentView {
  uint32_t dim;
  uint32_t first_dim;     // floats from the start of the payload
  uint32_t state_offset;  // bytes from the start of the payload
  uint32_t number;        // among the segments of its table
  uint32_t rate;          // its number among the learning rates
  bool is_adjusted;       // its rule gets another gradient than the one given: that of AdjustGradients
  float delay_compensation_lambda;
  InitializerRule initializer;
  QuantiserRule quantiser;
  alignas(8) std::byte rule[kRuleBytes];
};

// What updates need of a table.
struct TableTraits {
  uint64_t seed;
  uint32_t first_wide_slot;  // in RowSeeds::wide_slots
  uint32_t num_wide_slots;
  uint32_t payload_floats;
  NonFinite nonfinite;
};

// Seeds of rows, as TableSpec::RowSeed() makes them.
struct RowSeeds {
  const TableTraits* tables;
  const int32_t* wide_slots;  // of all tables, end to end

  uint64_t Of(uint32_t table, int64_t key) const {
    const TableTraits& traits = tables[table];
    if (traits.num_wide_slots == 0 || !IsWideKey(key)) return RowSeedOf(traits.seed, key);
    const uint32_t slot = SlotOfKey(key, wide_slots + traits.first_wide_slot, traits.num_wide_slots);
    return RowSeedOfWide(traits.seed, key, slot);
  }
};

// Some segments of each table: those that a kernel is for.
struct SegmentList {
  const SegmentView* segments;  // of all tables
  const uint32_t* starts;       // table t has numbers[starts[t]] to numbers[starts[t + 1] - 1]
  const uint32_t* numbers;      // in `segments`

  bool HasAny(uint32_t table) const { return starts[table] != starts[table + 1]; }
  template <typename Visit>
  void ForEach(uint32_t table, Visit&& visit) const {
    for (uint32_t i = starts[table]; i < starts[table + 1]; ++i) visit(segments[numbers[i]]);
  }
};

}  // namespace monolith::device
