#include "device/slot_pooling.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "table/id_checks.h"

namespace monolith::device {
namespace {

constexpr uint32_t kLeastHot = 64;  // occurrences of an id that a block adds
constexpr int64_t kMostItems = UINT32_MAX;

[[noreturn]] void Refuse(const std::string& message) { throw Error(Code::kInvalidArgument, message); }

bool HasPacks(const float* floats) { return reinterpret_cast<uintptr_t>(floats) % sizeof(Pack<4>) == 0; }

// Where SumGradients() keeps what it computes.
struct SumScratch {
  uint64_t sources_at() const { return 0; }
  uint64_t scales_at() const { return num_ids * sizeof(int64_t); }
  uint64_t hot_at() const { return scales_at() + num_ids * sizeof(float); }
  uint64_t num_hot_at() const { return hot_at() + (num_ids / kLeastHot + 1) * sizeof(uint32_t); }
  uint64_t refused_at() const { return num_hot_at() + sizeof(uint32_t); }
  uint64_t bytes() const { return refused_at() + sizeof(uint32_t); }

  uint64_t num_ids;  // of the batch
};

}  // namespace

SlotPooling::SlotPooling(const PooledLayout& layout, std::shared_ptr<Launcher> launcher, const SlotShape& shape,
                         const PooledPlan& plan)
    : layout_(layout),
      launcher_(std::move(launcher)),
      plan_(plan),
      num_examples_(static_cast<uint32_t>(shape.num_examples)) {
  if (shape.num_examples < 0 || shape.num_examples > INT32_MAX) Refuse("a batch has at most 2^31 - 1 examples");
  if (plan.ids.num_tables != layout.dims().size()) Refuse("the plan is not one of these tables");
  Locate(shape);
  for (const PooledSlot& slot : layout.slots()) {
    const int dim = layout.dims()[static_cast<size_t>(slot.table)];
    max_dim_ = std::max(max_dim_, static_cast<uint32_t>(dim));
    has_packs_ = has_packs_ && dim % 4 == 0 && slot.column % 4 == 0;
    is_scaled_ = is_scaled_ || IsScaled(slot.pooling);
    if (shape.num_examples * std::max<int64_t>(slot.places, 1) > kMostItems) Refuse("a slot has too many places");
  }
  // The rows of tables without a slot lie between those of others.
  has_packs_ = has_packs_ && layout.width() % 4 == 0 &&
               std::all_of(layout.dims().begin(), layout.dims().end(), [](int dim) { return dim % 4 == 0; });
}

void SlotPooling::Locate(const SlotShape& shape) {
  const std::span<const PooledSlot> slots = layout_.slots();
  CheckSize("ids_per_example", shape.ids_per_example.size(), static_cast<int64_t>(slots.size()));
  CheckSize("sizes", shape.sizes.size(), static_cast<int64_t>(slots.size()));
  const int64_t* row_splits = shape.row_splits;
  int64_t first = 0;
  for (size_t s = 0; s < slots.size(); ++s) {
    const int64_t per_example = shape.ids_per_example[s], end = first + shape.sizes[s];
    if (per_example >= 0) CheckSize("ids", static_cast<size_t>(shape.sizes[s]), shape.num_examples * per_example);
    if (per_example < 0 && row_splits == nullptr) Refuse("row_splits are missing");
    slots_.push_back({per_example < 0 ? row_splits : nullptr, static_cast<uint32_t>(std::max<int64_t>(per_example, 0)),
                      static_cast<uint32_t>(first), static_cast<uint32_t>(end),
                      static_cast<uint32_t>(layout_.dims()[static_cast<size_t>(slots[s].table)]),
                      static_cast<uint32_t>(slots[s].places), slots[s].pooling});
    if (per_example < 0) row_splits += shape.num_examples + 1;
    first = end;
  }
  CheckSize("ids", plan_.num_ids, first);
}

template <typename Launch>
void SlotPooling::ForEachLaunch(const Launch& launch) const {
  for (size_t first = 0; first < slots_.size(); first += kSlotsOfLaunch) {
    const size_t count = std::min<size_t>(slots_.size() - first, kSlotsOfLaunch);
    SlotViews views{static_cast<uint32_t>(count), num_examples_, {}};
    std::copy_n(slots_.begin() + static_cast<ptrdiff_t>(first), count, views.at);
    launch(first, views);
  }
}

void SlotPooling::Pool(Stream stream, const float* values, float* outputs) const {
  const bool has_packs = has_packs_ && HasPacks(values) && HasPacks(outputs);
  has_packs ? PoolBy<4>(stream, values, outputs) : PoolBy<1>(stream, values, outputs);
}

template <int kWidth>
void SlotPooling::PoolBy(Stream stream, const float* values, float* outputs) const {
  const uint32_t lane_bits = LaneBitsFor((max_dim_ + kWidth - 1) / kWidth);
  ForEachLaunch([&](size_t first, const SlotViews& views) {
    PoolSlots<kWidth> kernel{views,           {},     {}, 0, lane_bits, plan_.layout, plan_.inverse, values,
                             layout_.width(), outputs};
    for (uint32_t i = 0; i < views.count; ++i) {
      kernel.first_item[i] = kernel.num_items;
      kernel.column[i] = layout_.slots()[first + i].column;
      kernel.num_items += uint64_t{num_examples_} * std::max(views.at[i].places, 1u);
    }
    launcher_->Launch(kernel.num_items << lane_bits, kernel, stream);
  });
}

size_t SlotPooling::scratch_bytes() const { return SumScratch{plan_.num_ids}.bytes(); }

void SlotPooling::SumGradients(Stream stream, const PositionsOfIds& positions, std::span<const SlotGradient> gradients,
                               std::byte* scratch, float* sums) const {
  CheckSize("gradients", gradients.size(), static_cast<int64_t>(slots_.size()));
  if (plan_.num_ids == 0) return;
  const SumScratch places{plan_.num_ids};
  const float* base = nullptr;
  bool has_packs = has_packs_ && HasPacks(sums);
  for (const SlotGradient& gradient : gradients) {
    if (gradient.rows == nullptr) continue;
    base = base == nullptr ? gradient.rows : std::min(base, gradient.rows);
    has_packs = has_packs && HasPacks(gradient.rows) && gradient.stride % 4 == 0;
  }
  auto* const sources = reinterpret_cast<int64_t*>(scratch + places.sources_at());
  auto* const scales = is_scaled_ ? reinterpret_cast<float*>(scratch + places.scales_at()) : nullptr;
  FindSources(stream, positions.order, gradients, base, sources, scales);
  const GradientSource source{plan_.ids, plan_.layout, positions.starts, sources, scales, base};
  has_packs ? SumBy<4>(stream, source, scratch, sums) : SumBy<1>(stream, source, scratch, sums);
}

void SlotPooling::FindSources(Stream stream, const int64_t* order, std::span<const SlotGradient> gradients,
                              const float* base, int64_t* sources, float* scales) const {
  ForEachLaunch([&](size_t first, const SlotViews& views) {
    FindGradientSources kernel{views, {}, {}, plan_.num_ids, order, sources, scales};
    for (uint32_t i = 0; i < views.count; ++i) {
      const SlotGradient& gradient = gradients[first + i];
      kernel.gradients[i] = gradient.rows == nullptr ? kNoGradient : gradient.rows - base;
      kernel.strides[i] = gradient.stride;
    }
    launcher_->Launch(plan_.num_ids, kernel, stream);
  });
}

template <int kWidth>
void SlotPooling::SumBy(Stream stream, const GradientSource& source, std::byte* scratch, float* sums) const {
  const SumScratch places{plan_.num_ids};
  const auto word_at = [&](uint64_t at) { return reinterpret_cast<uint32_t*>(scratch + at); };
  uint32_t* const refused = word_at(places.refused_at());
  const uint32_t num_packs = (max_dim_ + kWidth - 1) / kWidth, lane_bits = LaneBitsFor(num_packs);
  if (plan_.num_ids >= kLeastHot) {
    uint32_t *const hot = word_at(places.hot_at()), *const num_hot = word_at(places.num_hot_at());
    const uint32_t num_pieces = (max_dim_ + SumHot<kWidth>::kPieceFloats - 1) / SumHot<kWidth>::kPieceFloats;
    launcher_->Fill(num_hot, 0, 1, stream);
    launcher_->Launch(plan_.ids.count, ListHot{plan_.ids.count, kLeastHot, plan_.counts, hot, num_hot}, stream);
    launcher_->LaunchBlocks(launcher_->num_concurrent_blocks(),
                            SumHot<kWidth>{source, hot, num_hot, num_pieces, sums, refused}, stream);
  }
  launcher_->Launch(uint64_t{plan_.ids.count} << lane_bits, SumFew<kWidth>{source, kLeastHot, lane_bits, sums, refused},
                    stream);
}

}  // namespace monolith::device
