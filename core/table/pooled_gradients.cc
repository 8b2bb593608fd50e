// The backward pass of PooledLayout: from the gradients of outputs to sums for the rows.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/prefetch.h"
#include "base/thread_pool.h"
#include "table/id_checks.h"
#include "table/pooled_slots.h"
#include "table/row_copy.h"

namespace monolith {
namespace {

constexpr int64_t kFloatsPerTask = 1 << 16;
// With fewer groups of slots than this there is not enough parallel work.
constexpr size_t kGroupsForThreads = 4;

[[noreturn]] void Refuse(const std::string& message) { throw Error(Code::kInvalidArgument, message); }

// The input positions of each distinct id, in input order. REQUIRES: every index is in [0, num_unique).
struct Grouped {
  Grouped(std::span<const int32_t> inverse, int64_t num_unique) : starts(num_unique + 1), order(inverse.size()) {
    std::fill_n(starts.data(), starts.size(), 0);
    for (const int32_t place : inverse) ++starts[place];
    int32_t total = 0;
    for (int64_t place = 0; place <= num_unique; ++place) total += std::exchange(starts[place], total);
    // Every start advances to the end of its own positions, which is the start of the next one's.
    for (size_t position = 0; position < inverse.size(); ++position) {
      order[starts[inverse[position]]++] = static_cast<int32_t>(position);
    }
    std::copy_backward(starts.data(), starts.data() + num_unique, starts.data() + num_unique + 1);
    starts[0] = 0;
  }

  Buffer<int32_t> starts;
  Buffer<int32_t> order;
};

// Adds rows of floats to others and detects sums that are not finite: times zero they give NaN, all others zero. A sum
// that is not finite stays so, whatever is added to it later.
class Adder {
 public:
  // sum += gradient * scale. kDim: the number of floats, or 0 if `dim` gives it.
  template <int kDim>
  void Add(float* sum, const float* gradient, float scale, int dim) {
    const int count = kDim == 0 ? dim : kDim;
    int at = 0;
    for (; at + kLanes <= count; at += kLanes) {
      Lanes total, given;
      std::memcpy(&total, sum + at, sizeof(total));
      std::memcpy(&given, gradient + at, sizeof(given));
      total += given * scale;
      zeros_[at / kLanes % kNumZeros] += total * 0.0f;
      std::memcpy(sum + at, &total, sizeof(total));
    }
    for (; at < count; ++at) {
      sum[at] += gradient[at] * scale;
      zeros_[0][at % kLanes] += sum[at] * 0.0f;
    }
  }
  bool all_finite() const {
    float lanes[kLanes * kNumZeros];
    std::memcpy(lanes, zeros_, sizeof(lanes));
    return AllFinite(lanes, kLanes * kNumZeros);
  }

 private:
  // One register of any processor: gcc keeps arrays of floats in memory instead, which takes twice as long.
  static constexpr int kLanes = 4;
  using Lanes [[gnu::vector_size(sizeof(float) * kLanes)]] = float;
  static constexpr int kNumZeros = 4;  // several, so that the additions do not depend on each other

  Lanes zeros_[kNumZeros] = {};
};

}  // namespace

// Slots that may have ids in common stay together: no two groups write to the same row.
std::vector<std::vector<int>> PooledLayout::GroupByOwner(const std::vector<PooledSlot>& slots) {
  std::vector<std::vector<int>> groups;
  std::vector<int> owners;
  for (int slot = 0; slot < static_cast<int>(slots.size()); ++slot) {
    const auto found = std::find(owners.begin(), owners.end(), slots[slot].owner);
    if (found == owners.end()) {
      owners.push_back(slots[slot].owner);
      groups.push_back({slot});
    } else {
      groups[found - owners.begin()].push_back(slot);
    }
  }
  return groups;
}

std::vector<SlotGradient> PooledLayout::GradientsOf(const SlotGradient& whole) const {
  CheckSize("a row of the gradient", static_cast<size_t>(whole.width), width_);
  if (whole.rows == nullptr) return std::vector<SlotGradient>(slots_.size());
  std::vector<SlotGradient> gradients;
  for (const PooledSlot& slot : slots_) {
    gradients.push_back({whole.rows + slot.column, slot.width(dims_[slot.table]), whole.stride});
  }
  return gradients;
}

void PooledLayout::CheckGradients(std::span<const int64_t> splits, std::span<const SlotGradient> gradients,
                                  std::span<const float> sums) const {
  CheckSize("gradients", gradients.size(), static_cast<int64_t>(slots_.size()));
  if (splits.empty() || (splits.size() - 1) % dims_.size() != 0)
    Refuse("splits are not those of a plan of these tables");
  CheckSplits("splits", splits, static_cast<size_t>(splits.back()));
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (gradients[s].rows != nullptr) {
      CheckSize("a row of a slot's gradient", static_cast<size_t>(gradients[s].width),
                slots_[s].width(dims_[slots_[s].table]));
    }
  }
  CheckSize("sums", sums.size(), NumSums(splits));
}

bool PooledLayout::SumGradients(const PooledShape& shape, const Occurrences& plan,
                                std::span<const SlotGradient> gradients, std::span<float> sums) const {
  CheckGradients(plan.splits, gradients, sums);
  const std::vector<SlotIds> located = Locate(shape, plan.inverse.size());
  CheckPlaces(plan.inverse, plan.splits.back());
  if (plan.inverse.empty()) return true;
  if (groups_.size() < kGroupsForThreads) return SumByRow(located, shape.num_examples, plan, gradients, sums);
  const int64_t tasks = (static_cast<int64_t>(sums.size()) + kFloatsPerTask - 1) / kFloatsPerTask;
  ParallelFor(static_cast<int>(tasks), [&](int task) {
    const int64_t begin = task * kFloatsPerTask;
    ZeroFloats(sums.data() + begin, static_cast<int>(std::min<int64_t>(kFloatsPerTask, sums.size() - begin)));
  });
  const Buffer<int64_t> offsets = RowOffsets(plan.splits);
  const int32_t* place_of = plan.inverse.data();
  float* first = sums.data();
  if (offsets.size() == 0) {
    return AddAll(located, shape.num_examples, gradients,
                  [=, dim = int64_t{dims_[0]}](int64_t i) { return first + place_of[i] * dim; });
  }
  const int64_t* offset_of = offsets.data();
  return AddAll(located, shape.num_examples, gradients, [=](int64_t i) { return first + offset_of[place_of[i]]; });
}

template <typename SumOf>
bool PooledLayout::AddAll(std::span<const SlotIds> ids, int64_t num_examples, std::span<const SlotGradient> gradients,
                          SumOf sum_of) const {
  std::atomic<bool> finite{true};
  ParallelFor(static_cast<int>(groups_.size()), [&](int group) {
    for (const int s : groups_[group]) {
      if (gradients[s].rows == nullptr) continue;
      const auto add = [&](auto dim) {
        return AddSlot<dim.value>(slots_[s], ids[s], num_examples, gradients[s], sum_of);
      };
      const int dim = dims_[slots_[s].table];
      const bool good = dim == 8    ? add(std::integral_constant<int, 8>())
                        : dim == 16 ? add(std::integral_constant<int, 16>())
                        : dim == 32 ? add(std::integral_constant<int, 32>())
                                    : add(std::integral_constant<int, 0>());
      if (!good) finite.store(false, std::memory_order_relaxed);
    }
  });
  return finite;
}

template <int kDim, typename SumOf>
bool PooledLayout::AddSlot(const PooledSlot& slot, const SlotIds& ids, int64_t num_examples,
                           const SlotGradient& gradient, SumOf sum_of) const {
  constexpr int64_t kAhead = 16;  // examples between the prefetch of memory and the addition
  const int dim = kDim == 0 ? dims_[slot.table] : kDim;
  const int64_t stride = gradient.stride, first = ids.first;
  Adder adder;
  const float* row = gradient.rows;
  for (int64_t example = 0; example < num_examples; ++example, row += stride) {
    if (example + kAhead < num_examples) {
      const float* ahead = row + kAhead * stride;
      PrefetchLines(ahead, sizeof(float) * dim);
      Prefetch(ahead + dim - 1);  // rows of gradients may begin anywhere in a line
    }
    if (ids.per_example != 1) {
      AddExample<kDim>(slot, ids, example, row, sum_of, adder);
      continue;
    }
    PrefetchLines(sum_of(std::min(first + example + kAhead, ids.last)), sizeof(float) * dim);
    adder.Add<kDim>(sum_of(first + example), row, 1.0f, dim);
  }
  return adder.all_finite();
}

template <int kDim, typename SumOf, typename AnyAdder>
void PooledLayout::AddExample(const PooledSlot& slot, const SlotIds& ids, int64_t example, const float* gradient,
                              SumOf sum_of, AnyAdder& adder) const {
  const int dim = dims_[slot.table];
  const int64_t from = ids.Begin(example), to = ids.Begin(example + 1);
  if (slot.places > 0) {
    const int64_t taken = std::min(to - from, slot.places);
    for (int64_t i = 0; i < taken; ++i) adder.template Add<kDim>(sum_of(from + i), gradient + i * dim, 1.0f, dim);
    return;
  }
  const float scale = PooledScale(slot.pooling, to - from);
  for (int64_t i = from; i < to; ++i) adder.template Add<kDim>(sum_of(i), gradient, scale, dim);
}

void PooledLayout::FindSources(const PooledSlot& slot, const SlotIds& ids, int64_t num_examples,
                               const SlotGradient& gradient, const float* zeros, const float** sources) const {
  const int dim = dims_[slot.table];
  if (gradient.rows == nullptr)
    return (void)std::fill(sources + ids.Begin(0), sources + ids.Begin(num_examples), zeros);
  for (int64_t example = 0; example < num_examples; ++example) {
    const int64_t from = ids.Begin(example), to = ids.Begin(example + 1);
    const float* row = gradient.rows + example * gradient.stride;
    for (int64_t i = from; i < to; ++i) {
      const int64_t place = slot.places == 0 ? 0 : i - from;
      sources[i] = place < std::max<int64_t>(slot.places, 1) ? row + place * dim : zeros;
    }
  }
}

void PooledLayout::FindScales(const PooledSlot& slot, const SlotIds& ids, int64_t num_examples, float* scales) const {
  for (int64_t example = 0; example < num_examples; ++example) {
    const int64_t from = ids.Begin(example), to = ids.Begin(example + 1);
    std::fill(scales + from, scales + to, PooledScale(slot.pooling, to - from));
  }
}

bool PooledLayout::SumByRow(std::span<const SlotIds> ids, int64_t num_examples, const Occurrences& plan,
                            std::span<const SlotGradient> gradients, std::span<float> sums) const {
  const std::vector<float> zeros(*std::max_element(dims_.begin(), dims_.end()), 0.0f);
  const bool scaled =
      std::any_of(slots_.begin(), slots_.end(), [](const PooledSlot& slot) { return IsScaled(slot.pooling); });
  Buffer<const float*> sources(plan.inverse.size());
  Buffer<float> scales(scaled ? plan.inverse.size() : 0);
  ParallelFor(static_cast<int>(slots_.size()), [&](int s) {
    FindSources(slots_[s], ids[s], num_examples, gradients[s], zeros.data(), sources.data());
    if (scaled) FindScales(slots_[s], ids[s], num_examples, scales.data());
  });
  std::optional<Grouped> grouped;
  Occurrences occurrences = plan;
  if (plan.order.empty()) {
    grouped.emplace(plan.inverse, plan.splits.back());
    occurrences.starts = {grouped->starts.data(), grouped->starts.size()};
    occurrences.order = {grouped->order.data(), grouped->order.size()};
  }
  CheckSize("starts", occurrences.starts.size(), plan.splits.back() + 1);
  CheckSize("order", occurrences.order.size(), static_cast<int64_t>(plan.inverse.size()));
  const std::vector<int64_t> no_table_splits(dims_.size() + 1, 0);  // positions are found by `sources` alone
  occurrences.table_splits = no_table_splits;
  GradientLayout layout;
  layout.sources = {sources.data(), sources.size()};
  layout.scales = {scales.data(), scales.size()};
  return GradientSums(occurrences, dims_, layout, sums).all_finite();
}

int64_t PooledLayout::NumSums(std::span<const int64_t> splits) const {
  int64_t floats = 0;
  for (size_t cell = 0; cell + 1 < splits.size(); ++cell) {
    floats += (splits[cell + 1] - splits[cell]) * dims_[cell % dims_.size()];
  }
  return floats;
}

}  // namespace monolith
