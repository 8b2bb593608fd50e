// Pooled lookups of many slots in one call: from the rows of a plan to one output row per example, and from the
// outputs' gradient back to the rows.
//
// A slot's ids belong to one table; the ids of all slots lie end to end, in the order of their tables. The rows of an
// example are summed, averaged, divided by the square root of their number, or the first n of them are concatenated;
// zeros if the example has no ids. Sums follow the order of the ids, so results do not depend on the number of threads.
// A layout is constant and thread-safe. Arrays belong to the caller.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/buffer.h"
#include "table/gradient_sums.h"
#include "table/pooling.h"

namespace monolith {

struct PooledSlot {
  int table;
  int64_t column;   // of its first float in an output row
  int64_t places;   // n of "the first n"; 0 = the rows of an example are pooled to one
  Pooling pooling;  // of all rows, if places is 0
  int owner;        // slots with different owners never have an id of a table in common

  int64_t width(int dim) const { return dim * (places == 0 ? 1 : places); }
};

// How many ids each example has in each slot.
struct PooledShape {
  int64_t num_examples;
  std::span<const int64_t> ids_per_example;  // by slot: the same for every example, or -1: given by row splits
  std::span<const int64_t> row_splits;       // [num_examples + 1] of each slot that has them, end to end
};

// The gradient of one slot's outputs; null `rows` stands for zeros.
struct SlotGradient {
  const float* rows = nullptr;
  int64_t width = 0;   // floats of a row
  int64_t stride = 0;  // floats from one example to the next
};

class PooledLayout {
 public:
  // Throws kInvalidArgument for a table that does not exist, or a column outside the row.
  PooledLayout(std::vector<PooledSlot> slots, std::vector<int> dims, int64_t width);

  int64_t width() const { return width_; }
  std::span<const PooledSlot> slots() const { return slots_; }
  std::span<const int> dims() const { return dims_; }

  // Writes the outputs. Throws kInvalidArgument when sizes disagree. `splits` and `inverse` are the plan's; values [V],
  // outputs [examples * width].
  void Pool(const PooledShape& shape, std::span<const int64_t> splits, std::span<const int32_t> inverse,
            std::span<const float> values, std::span<float> outputs) const;
  // Returns the gradient of each slot, from the gradient of all outputs. Throws kInvalidArgument when it has another
  // width.
  std::vector<SlotGradient> GradientsOf(const SlotGradient& whole) const;
  // The backward pass: writes to sums [V] the gradient of each row. `starts` and `order` of the plan may be empty; then
  // they are computed from `inverse`. Returns false iff a gradient or a sum is NaN or infinite.
  bool SumGradients(const PooledShape& shape, const Occurrences& plan, std::span<const SlotGradient> gradients,
                    std::span<float> sums) const;

 private:
  // The ids of one slot in one batch.
  struct SlotIds {
    int64_t first;              // in the flat ids
    int64_t last;               // last id of the flat ids of all slots: limit of the prefetch
    int64_t per_example;        // or -1
    const int64_t* row_splits;  // or null
    int64_t Begin(int64_t example) const {
      return first + (row_splits == nullptr ? example * per_example : row_splits[example]);
    }
  };

  std::vector<SlotIds> Locate(const PooledShape& shape, size_t num_ids) const;
  // Offset of the row of each distinct id in the values; empty when there is one table, whose rows are contiguous.
  Buffer<int64_t> RowOffsets(std::span<const int64_t> splits) const;
  // Number of floats of all rows of a plan.
  int64_t NumSums(std::span<const int64_t> splits) const;
  // Writes the output of one example and slot. row_of(position) is the row of an id.
  template <typename RowOf>
  void PoolExample(const PooledSlot& slot, const SlotIds& ids, int64_t example, RowOf&& row_of, float* output) const;
  // Writes the outputs of one slot for the examples [begin, end); `output` is that of the first.
  template <typename RowOf>
  void PoolSlot(const PooledSlot& slot, const SlotIds& ids, int64_t begin, int64_t end, RowOf&& row_of,
                float* output) const;
  // As above, where every example has one id. kDim: floats of a row, or 0 if known at run time only.
  template <int kDim, typename RowOf>
  void CopyRows(const PooledSlot& slot, const SlotIds& ids, int64_t begin, int64_t end, RowOf&& row_of,
                float* output) const;
  template <typename RowOf>
  void PoolAll(std::span<const SlotIds> ids, int64_t num_examples, RowOf&& row_of, float* outputs) const;

  static std::vector<std::vector<int>> GroupByOwner(const std::vector<PooledSlot>& slots);
  void CheckGradients(std::span<const int64_t> splits, std::span<const SlotGradient> gradients,
                      std::span<const float> sums) const;
  // Sums by adding the gradients of one slot after the other. sum_of(position) is the destination of an id.
  template <typename SumOf>
  bool AddAll(std::span<const SlotIds> ids, int64_t num_examples, std::span<const SlotGradient> gradients,
              SumOf sum_of) const;
  template <int kDim, typename SumOf>
  bool AddSlot(const PooledSlot& slot, const SlotIds& ids, int64_t num_examples, const SlotGradient& gradient,
               SumOf sum_of) const;
  template <int kDim, typename SumOf, typename AnyAdder>
  void AddExample(const PooledSlot& slot, const SlotIds& ids, int64_t example, const float* gradient, SumOf sum_of,
                  AnyAdder& adder) const;
  // Sums one row after the other, so that any number of threads can share the work of a single slot.
  bool SumByRow(std::span<const SlotIds> ids, int64_t num_examples, const Occurrences& plan,
                std::span<const SlotGradient> gradients, std::span<float> sums) const;
  // Finds the gradient of each id of a slot, and its factor.
  void FindSources(const PooledSlot& slot, const SlotIds& ids, int64_t num_examples, const SlotGradient& gradient,
                   const float* zeros, const float** sources) const;
  void FindScales(const PooledSlot& slot, const SlotIds& ids, int64_t num_examples, float* scales) const;

  const std::vector<PooledSlot> slots_;
  const std::vector<int> dims_;
  const int64_t width_;
  const std::vector<std::vector<int>> groups_;  // slots by owner
};

}  // namespace monolith
