// The lookups of many slots at once: from the rows of a plan to one output row per example, and from its gradient back
// to the rows.
//
// A slot's ids belong to one table; the ids of all slots lie end to end, in the order of their tables. The ids of an
// example are summed, averaged, divided by the root of their number, or the first n of them stand side by side; where
// there is none, zeros. Sums go in the order of the ids, so results do not depend on the number of threads. A layout is
// constant; any thread may use it. Arrays belong to the caller.
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
  int64_t places;   // n of "the first n"; 0 = all rows of an example become one
  Pooling pooling;  // of the sum of all rows, where places is 0
  int owner;        // slots with different ones never have an id of a table in common

  int64_t width(int dim) const { return dim * (places == 0 ? 1 : places); }
};

// How many ids each example has in each slot.
struct PooledShape {
  int64_t num_examples;
  std::span<const int64_t> ids_per_example;  // by slot: the same for every example, or -1: by row splits
  std::span<const int64_t> row_splits;       // [num_examples + 1] of each slot that has them, end to end
};

// The gradient of one slot's outputs: `rows` = null stands for zeros.
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
  size_t num_slots() const { return slots_.size(); }

  // Throws kInvalidArgument when sizes disagree. `splits` and `inverse` are the plan's; values [V], outputs [examples *
  // width].
  void Pool(const PooledShape& shape, std::span<const int64_t> splits, std::span<const int32_t> inverse,
            std::span<const float> values, std::span<float> outputs) const;
  // That of each slot, from the gradient of all outputs. Throws kInvalidArgument when it has another width.
  std::vector<SlotGradient> GradientsOf(const SlotGradient& whole) const;
  // The other way: sums [V] of what the gradients ask of each row. `starts` and `order` of the plan may be left out
  // (empty): then they are made from `inverse`. Returns false iff a gradient or a sum is NaN or infinite.
  bool SumGradients(const PooledShape& shape, const Occurrences& plan, std::span<const SlotGradient> gradients,
                    std::span<float> sums) const;

 private:
  // The ids of one slot in one batch.
  struct SlotIds {
    int64_t first;              // in the flat ids
    int64_t last;               // of the flat ids of all slots: rows are asked for ahead of use up to it
    int64_t per_example;        // or -1
    const int64_t* row_splits;  // or null
    int64_t Begin(int64_t example) const {
      return first + (row_splits == nullptr ? example * per_example : row_splits[example]);
    }
  };

  std::vector<SlotIds> Locate(const PooledShape& shape, size_t num_ids) const;
  // Where the row of each distinct id begins in the values; empty when there is one table, whose rows lie side by side.
  Buffer<int64_t> RowOffsets(std::span<const int64_t> splits) const;
  // Floats of all rows of a plan.
  int64_t NumSums(std::span<const int64_t> splits) const;
  // The output of one example and slot. row_of(position) is the row of an id.
  template <typename RowOf>
  void PoolExample(const PooledSlot& slot, const SlotIds& ids, int64_t example, RowOf&& row_of, float* output) const;
  // The outputs of one slot for the examples [begin, end); `output` is that of the first.
  template <typename RowOf>
  void PoolSlot(const PooledSlot& slot, const SlotIds& ids, int64_t begin, int64_t end, RowOf&& row_of,
                float* output) const;
  // The same where every example has one id. kDim: floats of a row, or 0 where they are counted at run time.
  template <int kDim, typename RowOf>
  void CopyRows(const PooledSlot& slot, const SlotIds& ids, int64_t begin, int64_t end, RowOf&& row_of,
                float* output) const;
  template <typename RowOf>
  void PoolAll(std::span<const SlotIds> ids, int64_t num_examples, RowOf&& row_of, float* outputs) const;

  static std::vector<std::vector<int>> GroupByOwner(const std::vector<PooledSlot>& slots);
  void CheckGradients(std::span<const int64_t> splits, std::span<const SlotGradient> gradients,
                      std::span<const float> sums) const;
  // Sums by adding the gradients of one slot after the other. sum_of(position) is where those of an id go.
  template <typename SumOf>
  bool AddAll(std::span<const SlotIds> ids, int64_t num_examples, std::span<const SlotGradient> gradients,
              SumOf sum_of) const;
  template <int kDim, typename SumOf>
  bool AddSlot(const PooledSlot& slot, const SlotIds& ids, int64_t num_examples, const SlotGradient& gradient,
               SumOf sum_of) const;
  template <int kDim, typename SumOf, typename AnyAdder>
  void AddExample(const PooledSlot& slot, const SlotIds& ids, int64_t example, const float* gradient, SumOf sum_of,
                  AnyAdder& adder) const;
  // Sums one row after the other: any number of threads can share the work of a single slot.
  bool SumByRow(std::span<const SlotIds> ids, int64_t num_examples, const Occurrences& plan,
                std::span<const SlotGradient> gradients, std::span<float> sums) const;
  // Where the gradient of each id of a slot is, and what it is multiplied with.
  void FindSources(const PooledSlot& slot, const SlotIds& ids, int64_t num_examples, const SlotGradient& gradient,
                   const float* zeros, const float** sources) const;
  void FindScales(const PooledSlot& slot, const SlotIds& ids, int64_t num_examples, float* scales) const;

  const std::vector<PooledSlot> slots_;
  const std::vector<int> dims_;
  const int64_t width_;
  const std::vector<std::vector<int>> groups_;  // slots by owner
};

}  // namespace monolith
