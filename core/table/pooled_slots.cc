#include "table/pooled_slots.h"

#include <algorithm>
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
constexpr int64_t kAhead = 16;  // ids between asking for a row and using it

[[noreturn]] void Refuse(const std::string& message) { throw Error(Code::kInvalidArgument, message); }

// The input positions of each distinct id, in input order.
struct Grouped {
  Grouped(std::span<const int32_t> inverse, int64_t num_unique) : starts(num_unique + 1), order(inverse.size()) {
    std::fill_n(starts.data(), starts.size(), 0);
    for (const int32_t place : inverse) {
      if (place < 0 || place >= num_unique) Refuse("inverse points to " + std::to_string(place) + ", outside of the plan");
      ++starts[place];
    }
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
void PooledLayout::PoolSlot(const PooledSlot& slot, const SlotIds& ids, int64_t begin, int64_t end, RowOf&& row_of,
                            float* outputs) const {
  const int dim = dims_[slot.table];
  const int64_t last = ids.Begin(end);
  for (int64_t example = begin; example < end; ++example) {
    float* output = outputs + example * width_ + slot.column;
    const int64_t from = ids.Begin(example), to = ids.Begin(example + 1);
    for (int64_t i = from; i < to; ++i) Prefetch(row_of(std::min(i + kAhead, last - 1)));
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
}

void PooledLayout::Pool(const PooledShape& shape, std::span<const int64_t> splits, std::span<const int32_t> inverse,
                        std::span<const float> values, std::span<float> outputs) const {
  const std::vector<SlotIds> located = Locate(shape, inverse.size());
  const Buffer<int64_t> offsets = RowOffsets(splits);
  const int64_t num_unique = splits.back();
  CheckSize("values", values.size(), offsets.size() == 0 ? num_unique * dims_[0] : offsets[num_unique]);
  CheckSize("outputs", outputs.size(), shape.num_examples * width_);
  for (const int32_t place : inverse) {
    if (place < 0 || place >= num_unique) Refuse("inverse points to " + std::to_string(place) + ", outside of the plan");
  }
  const int64_t tasks = (shape.num_examples + kExamplesPerTask - 1) / kExamplesPerTask;
  ParallelFor(static_cast<int>(tasks), [&](int task) {
    const int64_t begin = task * kExamplesPerTask, end = std::min(begin + kExamplesPerTask, shape.num_examples);
    const float* first = values.data();
    for (size_t s = 0; s < slots_.size(); ++s) {
      if (offsets.size() == 0) {
        const auto row_of = [&, dim = dims_[0]](int64_t i) { return first + static_cast<int64_t>(inverse[i]) * dim; };
        PoolSlot(slots_[s], located[s], begin, end, row_of, outputs.data());
      } else {
        PoolSlot(slots_[s], located[s], begin, end, [&](int64_t i) { return first + offsets[inverse[i]]; }, outputs.data());
      }
    }
  });
}

void PooledLayout::SumGradients(const PooledShape& shape, std::span<const int64_t> splits, std::span<const int32_t> inverse,
                                std::span<const SlotGradient> gradients, std::span<float> sums) const {
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
    const PooledSlot& slot = slots_[s];
    const SlotGradient& gradient = gradients[s];
    const int dim = dims_[slot.table];
    for (int64_t example = 0; example < shape.num_examples; ++example) {
      const int64_t from = located[s].Begin(example), to = located[s].Begin(example + 1);
      const float* row = gradient.rows == nullptr ? nullptr : gradient.rows + example * gradient.stride;
      for (int64_t i = from; i < to; ++i) {
        const bool reaches = row != nullptr && (slot.places == 0 || i - from < slot.places);
        sources[i] = reaches ? row + (slot.places == 0 ? 0 : (i - from) * dim) : zeros.data();
        if (scaled) scales[i] = slot.is_mean ? 1.0f / static_cast<float>(to - from) : 1.0f;
      }
    }
  });
  const Grouped grouped(inverse, splits.back());
  const std::vector<int64_t> no_table_splits(dims_.size() + 1, 0);  // positions are found by `sources` alone
  const Occurrences occurrences{no_table_splits,
                                splits,
                                {grouped.starts.data(), grouped.starts.size()},
                                {grouped.order.data(), grouped.order.size()},
                                inverse};
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
