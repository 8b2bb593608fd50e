// Pooled lookups of many slots by kernels, with the bits of PooledLayout (table/pooled_slots.h): from the rows of a
// plan to one output row per example, and from the outputs' gradient back to the rows.
//
// All arrays are in device memory and belong to the caller, as does the order of the streams; calls launch kernels and
// do not wait for them. Constant and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/launcher.h"
#include "table/pooled_slots.h"

namespace monolith::device {

// The plan of a batch (table/plan.h) on the device. Keys are not used.
struct PooledPlan {
  uint32_t num_ids;
  DistinctIds ids;
  ValueLayout layout;      // of rows and gradients
  const int32_t* inverse;  // [num_ids]
  const int32_t* counts;   // [ids.count]
};

// The positions of each distinct id, in input order (table/plan.h), on the device.
struct PositionsOfIds {
  const int32_t* starts;  // [ids.count + 1]
  const int64_t* order;   // [num_ids]
};

// How many ids each example has in each slot.
struct SlotShape {
  int64_t num_examples;
  std::span<const int64_t> ids_per_example;  // by slot, of the host: the same for every example, or -1: by row splits
  std::span<const int64_t> sizes;            // by slot, of the host: ids of all examples
  const int64_t* row_splits;                 // [num_examples + 1] of each slot that has them, end to end; good ones
};

// One batch.
class SlotPooling {
 public:
  // The layout outlives this object. Throws kInvalidArgument when sizes disagree.
  SlotPooling(const PooledLayout& layout, std::shared_ptr<Launcher> launcher, const SlotShape& shape,
              const PooledPlan& plan);

  // Writes the outputs [examples * width], from the values of the plan's rows.
  void Pool(Stream stream, const float* values, float* outputs) const;

  // The memory that SumGradients() needs, on a boundary of 16 bytes.
  size_t scratch_bytes() const;
  // The backward pass: writes the gradient of each row to `sums`, from that of each slot.
  void SumGradients(Stream stream, const PositionsOfIds& positions, std::span<const SlotGradient> gradients,
                    std::byte* scratch, float* sums) const;
  const PooledLayout& layout() const { return layout_; }

 private:
  void Locate(const SlotShape& shape);
  // Calls launch(first, views) for each launch that is needed for all slots; `first` is the number of its first slot.
  template <typename Launch>
  void ForEachLaunch(const Launch& launch) const;
  template <int kWidth>
  void PoolBy(Stream stream, const float* values, float* outputs) const;
  template <int kWidth>
  void SumBy(Stream stream, const GradientSource& source, std::byte* scratch, float* sums) const;
  void FindSources(Stream stream, const int64_t* order, std::span<const SlotGradient> gradients, const float* base,
                   int64_t* sources, float* scales) const;

  const PooledLayout& layout_;
  const std::shared_ptr<Launcher> launcher_;
  const PooledPlan plan_;
  const uint32_t num_examples_;
  std::vector<SlotView> slots_;
  uint32_t max_dim_ = 0;
  bool has_packs_ = true;  // every dim and column is a multiple of four
  bool is_scaled_ = false;
};

}  // namespace monolith::device
