#include "table/gradient_sums.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "base/largest_first.h"
#include "base/prefetch.h"
#include "base/thread_pool.h"
#include "table/id_checks.h"
#include "table/row_copy.h"

namespace monolith {
namespace {

constexpr int kBucketsPerTask = 16;
constexpr int64_t kIdsPerTask = 4096;  // below this, waking another thread costs more than it saves

[[noreturn]] void Refuse(const std::string& message) { throw Error(Code::kInvalidArgument, message); }

}  // namespace

Occurrences OccurrencesOf(const Plan& plan) {
  return {plan.table_splits,
          {plan.splits.data(), plan.splits.size()},
          {plan.starts.data(), plan.starts.size()},
          {plan.order.data(), plan.order.size()},
          {plan.inverse.data(), plan.inverse.size()}};
}

GradientSums::GradientSums(const Occurrences& plan, std::vector<int> dims, const GradientLayout& layout,
                           std::span<float> out)
    : plan_(plan), dims_(std::move(dims)), single_dim_(dims_.size() == 1 ? dims_[0] : 0), layout_(layout) {
  int64_t values = 0;
  for (size_t t = 0; t < dims_.size(); ++t) {
    first_value_.push_back(values);
    values += (plan_.table_splits[t + 1] - plan_.table_splits[t]) * dims_[t];
  }
  first_value_.push_back(values);
  LayOutCells();
  CheckSizes();
  if (!out.empty()) CheckSize("sums", out.size(), num_sums_);
  target_ = out.data();
  if (layout_.per_unique && layout_.scale == 1.0f) {
    sums_ = layout_.values.data();
    if (!layout_.known_finite) CheckGiven();
  } else {
    SumAll();
  }
}

void GradientSums::LayOutCells() {
  if (dims_.size() == 1) {
    num_sums_ = plan_.num_unique() * dims_[0];
    return;
  }
  const size_t cells = plan_.splits.size() - 1;
  first_sum_ = Buffer<int64_t>(cells);
  for (size_t cell = 0; cell < cells; ++cell) {
    first_sum_[cell] = num_sums_;
    num_sums_ += (plan_.splits[cell + 1] - plan_.splits[cell]) * dims_[cell % dims_.size()];
  }
}

void GradientSums::CheckSizes() const {
  const bool pooled = !layout_.rows.empty() || !layout_.scales.empty();
  if (pooled && layout_.sources.empty() && (layout_.per_unique || dims_.size() != 1))
    Refuse("pooled gradients are for one table, per input");
  for (const size_t size : {layout_.rows.size(), layout_.scales.size()}) {
    if (size != 0 && static_cast<int64_t>(size) != plan_.num_ids())
      Refuse("pooled gradients need a row and scale per id");
  }
  if (!layout_.sources.empty()) return CheckSize("sources", layout_.sources.size(), plan_.num_ids());
  const int64_t expected = layout_.per_unique ? num_sums_ : first_value_.back();
  const auto got = static_cast<int64_t>(layout_.values.size());
  if (layout_.rows.empty() && got != expected) {
    Refuse("gradients must have " + std::to_string(expected) + " elements, got " + std::to_string(got));
  }
  const int64_t num_rows = got / dims_[0];
  for (const int32_t row : layout_.rows) {
    if (row < 0 || row >= num_rows) Refuse("gradient row " + std::to_string(row) + " is out of range");
  }
}

void GradientSums::SumAll() {
  if (target_ == nullptr) {
    owned_ = Buffer<float>(num_sums_);
    target_ = owned_.data();
  }
  sums_ = target_;
  const int tasks = plan_.num_ids() < kIdsPerTask ? 1 : kNumBuckets / kBucketsPerTask;
  const size_t cells_per_task = (plan_.splits.size() - 1) / tasks;
  const auto begin_of = [&](int task) { return plan_.starts[plan_.splits[task * cells_per_task]]; };
  const std::vector<int> order = LargestFirst(tasks, [&](int task) { return begin_of(task + 1) - begin_of(task); });
  std::atomic<bool> finite{true};
  ParallelFor(tasks, [&](int turn) {
    const size_t begin = order[turn] * cells_per_task;
    if (!SumCells(begin, begin + cells_per_task)) finite.store(false, std::memory_order_relaxed);
  });
  all_finite_ = finite;
}

bool GradientSums::SumCells(size_t begin, size_t end) {
  if (layout_.per_unique) return CopyCells(begin, end);
  if (layout_.rows.empty() && layout_.sources.empty()) {
    return SumCellsOf(begin, end, [this](size_t cell) {
      const size_t table = cell % dims_.size();
      return InOrder{At(0, static_cast<int>(table)), dims_[table], plan_.order.data()};
    });
  }
  const Found found{FindGradients(begin, end), plan_.starts[plan_.splits[begin]]};
  return SumCellsOf(begin, end, [found](size_t) { return found; });
}

bool GradientSums::CopyCells(size_t begin, size_t end) {
  bool finite = true;
  for (size_t cell = begin; cell < end; ++cell) {
    float* sums = SumsOfCell(cell);
    std::copy_n(layout_.values.data() + (sums - target_), SizeOfCell(cell), sums);
    finite &= FinishCell(cell);
  }
  return finite;
}

bool GradientSums::FinishCell(size_t cell) {
  float* sums = SumsOfCell(cell);
  const int64_t size = SizeOfCell(cell);
  if (layout_.scale != 1.0f) ScaleFloats(sums, layout_.scale, static_cast<int>(size));
  return AllFinite(sums, size);
}

template <typename GradientsOf>
bool GradientSums::SumCellsOf(size_t begin, size_t end, GradientsOf&& gradients_of) {
  const int32_t last = plan_.starts[plan_.splits[end]] - 1;
  bool finite = true;
  for (size_t cell = begin; cell < end; ++cell) {
    const auto gradients = gradients_of(cell);
    const int dim = dims_[cell % dims_.size()];
    int at = 0;
    for (; at + 16 <= dim; at += 16) SumColumns<16>(cell, at, gradients, last);
    for (; at + 4 <= dim; at += 4) SumColumns<4>(cell, at, gradients, last);
    for (; at < dim; ++at) SumColumns<1>(cell, at, gradients, last);
    finite &= FinishCell(cell);
  }
  return finite;
}

// In a separate loop: finding an address takes a load with a random address, and many of these are in flight here.
const float* const* GradientSums::FindGradients(size_t begin, size_t end) const {
  thread_local std::vector<const float*> found;
  const int32_t first = plan_.starts[plan_.splits[begin]];
  found.resize(plan_.starts[plan_.splits[end]] - first);
  for (size_t cell = begin; cell < end; ++cell) {
    const int table = static_cast<int>(cell % dims_.size());
    const int32_t last = plan_.starts[plan_.splits[cell + 1]];
    for (int32_t k = plan_.starts[plan_.splits[cell]]; k < last; ++k) found[k - first] = At(plan_.order[k], table);
  }
  return found.data();
}

template <int kWidth, typename Gradients>
void GradientSums::SumColumns(size_t cell, int at, const Gradients gradients, int32_t last) {
  constexpr int32_t kAhead = 24;  // occurrences between the prefetch of a gradient and its addition
  const int64_t dim = dims_[cell % dims_.size()], begin = plan_.splits[cell], end = plan_.splits[cell + 1];
  const int32_t *starts = plan_.starts.data(), *order = plan_.order.data();
  const float* scales = layout_.scales.empty() ? nullptr : layout_.scales.data();
  float* sums = SumsOfCell(cell) + at;
  for (int64_t place = begin; place < end; ++place, sums += dim) {
    float piece[kWidth] = {};
    for (int32_t k = starts[place]; k < starts[place + 1]; ++k) {
      const float* ahead = gradients.Of(std::min(k + kAhead, last)) + at;
      PrefetchFar(ahead);
      PrefetchFar(ahead + kWidth - 1);  // a row of gradients may begin anywhere in a line
      const float* gradient = gradients.Of(k) + at;
      const float scale = scales == nullptr ? 1.0f : scales[order[k]];
      for (int lane = 0; lane < kWidth; ++lane) piece[lane] += gradient[lane] * scale;
    }
    std::memcpy(sums, piece, sizeof(piece));
  }
}

void GradientSums::CheckGiven() {
  constexpr int64_t kPerTask = 1 << 17;
  std::atomic<bool> finite{true};
  ParallelFor(static_cast<int>((num_sums_ + kPerTask - 1) / kPerTask), [&](int task) {
    const int64_t begin = task * kPerTask;
    if (!AllFinite(sums_ + begin, std::min(kPerTask, num_sums_ - begin)))
      finite.store(false, std::memory_order_relaxed);
  });
  all_finite_ = finite;
}

int64_t GradientSums::OffsetInCell(int64_t place, int table) const {
  const auto after = std::upper_bound(plan_.splits.data(), plan_.splits.data() + plan_.splits.size(), place);
  const size_t cell = (after - plan_.splits.data()) - 1;
  return first_sum_[cell] + (place - plan_.splits[cell]) * dims_[table];
}

bool GradientSums::IsFiniteAt(int64_t position, int table) const {
  const float* gradient = layout_.per_unique ? Of(plan_.inverse[position], table) : At(position, table);
  return AllFinite(gradient, dims_[table]);
}

bool GradientSums::IsSumFiniteAt(int64_t position, int table) const {
  return AllFinite(Of(plan_.inverse[position], table), dims_[table]);
}

}  // namespace monolith
