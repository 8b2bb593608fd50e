// Gradients of the distinct ids of a plan: those of all occurrences of an id, summed in input order, in float32.
//
// The result does not depend on the number of threads. It is stored in memory of this object, in memory passed by the
// caller, or, when it was summed already, in the caller's input. The arrays of the layout must outlive this object.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/buffer.h"
#include "table/plan.h"

namespace monolith {

// The input positions of each distinct id of a batch: the part of a plan that sums need (the fields are described in
// table/plan.h).
struct Occurrences {
  std::span<const int64_t> table_splits;
  std::span<const int64_t> splits;
  std::span<const int32_t> starts;
  std::span<const int32_t> order;
  std::span<const int32_t> inverse;

  int64_t num_ids() const { return static_cast<int64_t>(order.size()); }
  int64_t num_unique() const { return static_cast<int64_t>(starts.size()) - 1; }
};

Occurrences OccurrencesOf(const Plan& plan);

// Memory layout of the gradients of a call.
struct GradientLayout {
  std::span<const float> values = {};
  bool per_unique = false;                     // in plan order, summed already; otherwise one row per input position
  std::span<const int32_t> rows = {};          // input position i takes row rows[i] of `values`; empty = row i
  std::span<const float> scales = {};          // ... times scales[i]; empty = times 1
  float scale = 1.0f;                          // factor of every sum
  bool known_finite = false;                   // per_unique only: the caller checked that the sums are finite
  std::span<const float* const> sources = {};  // replaces values and rows: gradient of each input position
};

class GradientSums {
 public:
  // dims[t]: floats of a row of table t. Throws kInvalidArgument when the layout's sizes differ from the plan's. Sums
  // go to `out`, which then has the size of all rows, or to memory of this object when `out` is empty.
  GradientSums(const Occurrences& plan, std::vector<int> dims, const GradientLayout& layout, std::span<float> out = {});

  // The sum of plan.unique[place], which belongs to `table`; dims[table] floats.
  const float* Of(int64_t place, int table) const { return sums_ + OffsetOf(place, table); }
  // Offset of its floats among those of all unique ids.
  int64_t OffsetOf(int64_t place, int table) const {
    return single_dim_ != 0 ? place * single_dim_ : OffsetInCell(place, table);
  }
  // Number of floats of all unique ids.
  int64_t num_sums() const { return num_sums_; }
  // False iff a sum is NaN or infinite.
  bool all_finite() const { return all_finite_; }
  // The first input position whose own gradient is not finite and whose table satisfies `matters(table)`; -1 if there
  // is none.
  template <typename Matters>
  int64_t FirstNonFinite(Matters&& matters) const {
    return FirstPosition(matters, [this](int64_t position, int table) { return !IsFiniteAt(position, table); });
  }
  // The first such input position whose sum is not finite: finite gradients may add up to an infinite sum.
  template <typename Matters>
  int64_t FirstNonFiniteSum(Matters&& matters) const {
    return FirstPosition(matters, [this](int64_t position, int table) { return !IsSumFiniteAt(position, table); });
  }

 private:
  template <typename Matters, typename Found>
  int64_t FirstPosition(Matters&& matters, Found&& found) const {
    for (size_t t = 0; t < dims_.size(); ++t) {
      if (!matters(static_cast<int>(t))) continue;
      for (int64_t i = plan_.table_splits[t]; i < plan_.table_splits[t + 1]; ++i) {
        if (found(i, static_cast<int>(t))) return i;
      }
    }
    return -1;
  }
  void CheckSizes() const;
  void LayOutCells();
  void SumAll();
  // Computes the sums of the cells [begin, end); true iff all of them are finite.
  bool SumCells(size_t begin, size_t end);
  // Copies the sums of the cells [begin, end) that the caller passed; true iff all of them are finite.
  bool CopyCells(size_t begin, size_t end);
  // As SumCells(), with gradients_of(cell) returning the address of the gradient of each occurrence of the cell.
  template <typename GradientsOf>
  bool SumCellsOf(size_t begin, size_t end, GradientsOf&& gradients_of);
  // Sums floats [at, at + kWidth) of one cell. `last`: the last occurrence whose gradient may be prefetched.
  template <int kWidth, typename Gradients>
  void SumColumns(size_t cell, int at, Gradients gradients, int32_t last);
  // Scales the sums of one cell; true iff all of them are finite.
  bool FinishCell(size_t cell);
  float* SumsOfCell(size_t cell) {
    return target_ + (dims_.size() == 1 ? plan_.splits[cell] * dims_[0] : first_sum_[cell]);
  }
  int64_t SizeOfCell(size_t cell) const {
    return (plan_.splits[cell + 1] - plan_.splits[cell]) * dims_[cell % dims_.size()];
  }
  // Returns the gradient of every occurrence of these cells, in the order of summation; in thread-local memory.
  const float* const* FindGradients(size_t begin, size_t end) const;
  // Address of the gradient of occurrence order[k]: by its position, or by the list of addresses.
  struct InOrder {
    const float* first;
    int32_t dim;  // a product of two 64-bit numbers would take three times as long
    const int32_t* order;
    const float* Of(int32_t k) const { return first + int64_t{order[k]} * dim; }
  };
  struct Found {
    const float* const* gradients;
    int32_t first;
    const float* Of(int32_t k) const { return gradients[k - first]; }
  };
  void CheckGiven();
  int64_t OffsetInCell(int64_t place, int table) const;
  bool IsFiniteAt(int64_t position, int table) const;
  bool IsSumFiniteAt(int64_t position, int table) const;
  // Returns the gradient of an input position.
  const float* At(int64_t position, int table) const {
    if (!layout_.sources.empty()) return layout_.sources[position];
    const int64_t row = layout_.rows.empty() ? position - plan_.table_splits[table] : layout_.rows[position];
    return layout_.values.data() + first_value_[table] + row * dims_[table];
  }

  const Occurrences plan_;
  const std::vector<int> dims_;
  const int64_t single_dim_;  // of the only table; 0 when there are several
  const GradientLayout layout_;
  std::vector<int64_t> first_value_;  // of each table, for gradients per input position
  Buffer<int64_t> first_sum_;         // of each cell, unless there is only one table
  int64_t num_sums_ = 0;              // floats
  Buffer<float> owned_;
  float* target_ = nullptr;  // destination of the sums
  const float* sums_ = nullptr;
  bool all_finite_ = true;
};

}  // namespace monolith
