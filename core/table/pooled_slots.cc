#include "table/pooled_slots.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/prefetch.h"
#include "base/thread_pool.h"
#include "table/id_checks.h"
#include "table/row_copy.h"

namespace monolith {
namespace {

constexpr int64_t kExamplesPerTask = 256;

[[noreturn]] void Refuse(const std::string& message) { throw Error(Code::kInvalidArgument, message); }

void CheckPlaces(std::span<const int32_t> inverse, int64_t num_unique) {
  uint32_t highest = 0;  // a negative place is a very high one; without a branch the loop runs in vectors
  for (const int32_t place : inverse) highest = std::max(highest, static_cast<uint32_t>(place));
  if (!inverse.empty() && highest >= num_unique) {
    Refuse("inverse points to " + std::to_string(static_cast<int32_t>(highest)) + ", outside of the plan");
  }
}

// The input positions of each distinct id, in input order.
struct Grouped {
  Grouped(std::span<const int32_t> inverse, int64_t num_unique) : starts(num_unique + 1), order(inverse.size()) {
    CheckPlaces(inverse, num_unique);
    std::fill_n(starts.data(), starts.size(), 0);
    for (const int32_t place : inverse) ++starts[place];
    int32_t total = 0;
    for (int64_t place = 0; place <= num_unique; ++place) total += std::exchange(starts[place], total);
    // Every start moves to the end of its own positions, which is the start of the next one's.
    for (size_t position = 0; position < inverse.size(); ++position) {
      order[starts[inverse[position]]++] = static_cast<int32_t>(position);
    }
    std::copy_backward(starts.data(), starts.data() + num_unique, starts.data() + num_unique + 1);
    starts[0] = 0;
  }

  Buffer<int32_t> starts;
  Buffer<int32_t> order;
};

}  // namespace

PooledLayout::PooledLayout(std::vector<PooledSlot> slots, std::vector<int> dims, int64_t width)
    : slots_(std::move(slots)), dims_(std::move(dims)), width_(width) {
  for (const PooledSlot& slot : slots_) {
    if (slot.table < 0 || slot.table >= static_cast<int>(dims_.size())) {
      Refuse("a slot's table is " + std::to_string(slot.table) + ", there are " + std::to_string(dims_.size()));
    }
    if (slot.places < 0 || slot.column < 0 || slot.column + slot.width(dims_[slot.table]) > width_) {
      Refuse("a slot's column " + std::to_string(slot.column) + " does not fit rows of " + std::to_string(width_));
    }
  }
}

std::vector<PooledLayout::SlotIds> PooledLayout::Locate(const PooledShape& shape, size_t num_ids) const {
  CheckSize("ids_per_example", shape.ids_per_example.size(), static_cast<int64_t>(slots_.size()));
  const int64_t num_splits = shape.num_examples + 1;
  std::vector<SlotIds> located;
  size_t splits_used = 0;
  int64_t first = 0;
  for (const int64_t per_example : shape.ids_per_example) {
    SlotIds ids{first, per_example, nullptr};
    if (per_example < 0) {
      if (splits_used + num_splits > shape.row_splits.size()) Refuse("row_splits are missing");
      const auto own = shape.row_splits.subspan(splits_used, num_splits);
      CheckRowSplits(own, "");
      ids.row_splits = own.data();
      splits_used += num_splits;
    }
    located.push_back(ids);
    first = ids.Begin(shape.num_examples);
  }
  CheckSize("row_splits", shape.row_splits.size(), static_cast<int64_t>(splits_used));
  CheckSize("ids", num_ids, first);
  return located;
}

Buffer<int64_t> PooledLayout::RowOffsets(std::span<const int64_t> splits) const {
  if (splits.empty() || (splits.size() - 1) % dims_.size() != 0) Refuse("splits are not those of a plan of these tables");
  CheckSplits("splits", splits, static_cast<size_t>(splits.back()));
  if (dims_.size() == 1) return {};
  Buffer<int64_t> offsets(splits.back() + 1);
  int64_t offset = 0;
  for (size_t cell = 0; cell + 1 < splits.size(); ++cell) {
    for (int64_t place = splits[cell]; place < splits[cell + 1]; ++place) {
      offsets[place] = offset;
      offset += dims_[cell % dims_.size()];
    }
  }
  offsets[splits.back()] = offset;
  return offsets;
}

template <typename RowOf>
void PooledLayout::PoolExample(const PooledSlot& slot, const SlotIds& ids, int64_t example, RowOf&& row_of, float* output) const {
  const int dim = dims_[slot.table];
  const int64_t from = ids.Begin(example), to = ids.Begin(example + 1);
  if (slot.places > 0) {
    const int64_t taken = std::min(to - from, slot.places);
    for (int64_t i = 0; i < taken; ++i) CopyFloats(output + i * dim, row_of(from + i), dim);
    ZeroFloats(output + taken * dim, static_cast<int>((slot.places - taken) * dim));
  } else if (from == to) {
    ZeroFloats(output, dim);
  } else {
    CopyFloats(output, row_of(from), dim);
    for (int64_t i = from + 1; i < to; ++i) AddFloats(output, row_of(i), dim);
    if (slot.is_mean && to - from > 1) ScaleFloats(output, 1.0f / static_cast<float>(to - from), dim);
  }
}

template <int kDim, typename RowOf>
void PooledLayout::PoolExamples(std::span<const SlotIds> ids, int64_t begin, int64_t end, RowOf&& row_of, float* outputs) const {
  for (int64_t example = begin; example < end; ++example) {
    float* output = outputs + example * width_;
    for (size_t s = 0; s < slots_.size(); ++s) {
      const SlotIds& own = ids[s];
      if (own.per_example == 1) {
        if (example + 1 < end) Prefetch(row_of(own.first + example + 1));
        if (slots_[s].places <= 1) {
          float* to = output + slots_[s].column;
          const float* row = row_of(own.first + example);
          if constexpr (kDim != 0) {
            CopyPiece<kDim>(to, row);
          } else {
            CopyFloats(to, row, dims_[slots_[s].table]);
          }
          continue;
        }
      }
      PoolExample(slots_[s], own, example, row_of, output + slots_[s].column);
    }
  }
}

template <typename RowOf>
void PooledLayout::PoolAll(std::span<const SlotIds> ids, int64_t num_examples, RowOf&& row_of, float* outputs) const {
  const bool same = std::all_of(dims_.begin(), dims_.end(), [this](int dim) { return dim == dims_[0]; });
  const int dim = same ? dims_[0] : 0;
  const int64_t tasks = (num_examples + kExamplesPerTask - 1) / kExamplesPerTask;
  ParallelFor(static_cast<int>(tasks), [&](int task) {
    const int64_t begin = task * kExamplesPerTask, end = std::min(begin + kExamplesPerTask, num_examples);
    if (dim == 8) return PoolExamples<8>(ids, begin, end, row_of, outputs);
    if (dim == 16) return PoolExamples<16>(ids, begin, end, row_of, outputs);
    if (dim == 32) return PoolExamples<32>(ids, begin, end, row_of, outputs);
    PoolExamples<0>(ids, begin, end, row_of, outputs);
  });
}

void PooledLayout::Pool(const PooledShape& shape, std::span<const int64_t> splits, std::span<const int32_t> inverse,
                        std::span<const float> values, std::span<float> outputs) const {
  const std::vector<SlotIds> located = Locate(shape, inverse.size());
  const Buffer<int64_t> offsets = RowOffsets(splits);
  const int64_t num_unique = splits.back();
  CheckSize("values", values.size(), offsets.size() == 0 ? num_unique * dims_[0] : offsets[num_unique]);
  CheckSize("outputs", outputs.size(), shape.num_examples * width_);
  CheckPlaces(inverse, num_unique);
  const float* first = values.data();
  const int32_t* place_of = inverse.data();
  if (offsets.size() == 0) {
    PoolAll(located, shape.num_examples, [=, dim = int64_t{dims_[0]}](int64_t i) { return first + place_of[i] * dim; }, outputs.data());
  } else {
    const int64_t* offset_of = offsets.data();
    PoolAll(located, shape.num_examples, [=](int64_t i) { return first + offset_of[place_of[i]]; }, outputs.data());
  }
}

void PooledLayout::FindSources(const PooledSlot& slot, const SlotIds& ids, int64_t num_examples, const SlotGradient& gradient,
                               const float* zeros, const float** sources) const {
  const int dim = dims_[slot.table];
  if (gradient.rows == nullptr) return (void)std::fill(sources + ids.Begin(0), sources + ids.Begin(num_examples), zeros);
  if (ids.per_example == 1) {  // the usual slot, without a look at its example's other ids
    for (int64_t example = 0; example < num_examples; ++example) {
      sources[ids.first + example] = gradient.rows + example * gradient.stride;
    }
    return;
  }
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
    std::fill(scales + from, scales + to, slot.is_mean ? 1.0f / static_cast<float>(to - from) : 1.0f);
  }
}

void PooledLayout::SumGradients(const PooledShape& shape, const Occurrences& plan, std::span<const SlotGradient> gradients,
                                std::span<float> sums) const {
  const std::span<const int64_t> splits = plan.splits;
  const std::span<const int32_t> inverse = plan.inverse;
  const std::vector<SlotIds> located = Locate(shape, inverse.size());
  CheckSize("gradients", gradients.size(), static_cast<int64_t>(slots_.size()));
  if (splits.empty() || (splits.size() - 1) % dims_.size() != 0) Refuse("splits are not those of a plan of these tables");
  CheckSplits("splits", splits, static_cast<size_t>(splits.back()));
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (gradients[s].rows != nullptr) {
      CheckSize("a row of a slot's gradient", static_cast<size_t>(gradients[s].width), slots_[s].width(dims_[slots_[s].table]));
    }
  }
  const std::vector<float> zeros(*std::max_element(dims_.begin(), dims_.end()), 0.0f);
  const bool scaled = std::any_of(slots_.begin(), slots_.end(), [](const PooledSlot& slot) { return slot.is_mean; });
  Buffer<const float*> sources(inverse.size());
  Buffer<float> scales(scaled ? inverse.size() : 0);
  ParallelFor(static_cast<int>(slots_.size()), [&](int s) {
    FindSources(slots_[s], located[s], shape.num_examples, gradients[s], zeros.data(), sources.data());
    if (scaled) FindScales(slots_[s], located[s], shape.num_examples, scales.data());
  });
  std::optional<Grouped> grouped;
  Occurrences occurrences = plan;
  if (plan.order.empty()) {
    grouped.emplace(inverse, splits.back());
    occurrences.starts = {grouped->starts.data(), grouped->starts.size()};
    occurrences.order = {grouped->order.data(), grouped->order.size()};
  }
  CheckSize("starts", occurrences.starts.size(), splits.back() + 1);
  CheckSize("order", occurrences.order.size(), static_cast<int64_t>(inverse.size()));
  const std::vector<int64_t> no_table_splits(dims_.size() + 1, 0);  // positions are found by `sources` alone
  occurrences.table_splits = no_table_splits;
  GradientLayout layout;
  layout.sources = {sources.data(), sources.size()};
  layout.scales = {scales.data(), scales.size()};
  CheckSize("sums", sums.size(), NumSums(splits));
  if (!inverse.empty()) GradientSums(occurrences, dims_, layout, sums);
}

int64_t PooledLayout::NumSums(std::span<const int64_t> splits) const {
  int64_t floats = 0;
  for (size_t cell = 0; cell + 1 < splits.size(); ++cell) {
    floats += (splits[cell + 1] - splits[cell]) * dims_[cell % dims_.size()];
  }
  return floats;
}

}  // namespace monolith
