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
// Slot by slot, so that a loop handles one slot only; few examples at a time, so that the neighbouring outputs of the
// slots are still in the cache. The rows of the next block are prefetched while one is copied.
constexpr int64_t kExamplesPerBlock = 32;

[[noreturn]] void Refuse(const std::string& message) { throw Error(Code::kInvalidArgument, message); }

}  // namespace

PooledLayout::PooledLayout(std::vector<PooledSlot> slots, std::vector<int> dims, int64_t width)
    : slots_(std::move(slots)), dims_(std::move(dims)), width_(width), groups_(GroupByOwner(slots_)) {
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
    SlotIds ids{first, static_cast<int64_t>(num_ids) - 1, per_example, nullptr};
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
  if (splits.empty() || (splits.size() - 1) % dims_.size() != 0)
    Refuse("splits are not those of a plan of these tables");
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
void PooledLayout::PoolExample(const PooledSlot& slot, const SlotIds& ids, int64_t example, RowOf&& row_of,
                               float* output) const {
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
    if (IsScaled(slot.pooling) && to - from > 1) ScaleFloats(output, PooledScale(slot.pooling, to - from), dim);
  }
}

template <int kDim, typename RowOf>
void PooledLayout::CopyRows(const PooledSlot& slot, const SlotIds& ids, int64_t begin, int64_t end, RowOf&& row_of,
                            float* output) const {
  const int dim = kDim == 0 ? dims_[slot.table] : kDim;
  for (int64_t example = begin; example < end; ++example, output += width_) {
    PrefetchLines(row_of(std::min(ids.first + example + kExamplesPerBlock, ids.last)), sizeof(float) * dim);
    const float* row = row_of(ids.first + example);
    if constexpr (kDim == 0) {
      CopyFloats(output, row, dim);
    } else {
      CopyPiece<kDim>(output, row);
    }
  }
}

template <typename RowOf>
void PooledLayout::PoolSlot(const PooledSlot& slot, const SlotIds& ids, int64_t begin, int64_t end, RowOf&& row_of,
                            float* output) const {
  if (ids.per_example != 1 || slot.places > 1) {
    for (int64_t example = begin; example < end; ++example, output += width_) {
      PoolExample(slot, ids, example, row_of, output);
    }
    return;
  }
  switch (dims_[slot.table]) {
    case 8: return CopyRows<8>(slot, ids, begin, end, row_of, output);
    case 16: return CopyRows<16>(slot, ids, begin, end, row_of, output);
    case 32: return CopyRows<32>(slot, ids, begin, end, row_of, output);
    default: return CopyRows<0>(slot, ids, begin, end, row_of, output);
  }
}

template <typename RowOf>
void PooledLayout::PoolAll(std::span<const SlotIds> ids, int64_t num_examples, RowOf&& row_of, float* outputs) const {
  const int64_t tasks = (num_examples + kExamplesPerTask - 1) / kExamplesPerTask;
  ParallelFor(static_cast<int>(tasks), [&](int task) {
    const int64_t task_end = std::min((task + 1) * kExamplesPerTask, num_examples);
    for (int64_t begin = task * kExamplesPerTask; begin < task_end; begin += kExamplesPerBlock) {
      const int64_t end = std::min(begin + kExamplesPerBlock, task_end);
      float* output = outputs + begin * width_;
      for (size_t s = 0; s < slots_.size(); ++s) {
        PoolSlot(slots_[s], ids[s], begin, end, row_of, output + slots_[s].column);
      }
    }
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
    PoolAll(
        located, shape.num_examples, [=, dim = int64_t{dims_[0]}](int64_t i) { return first + place_of[i] * dim; },
        outputs.data());
  } else {
    const int64_t* offset_of = offsets.data();
    PoolAll(located, shape.num_examples, [=](int64_t i) { return first + offset_of[place_of[i]]; }, outputs.data());
  }
}

}  // namespace monolith
