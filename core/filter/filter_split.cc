#include "filter/filter_split.h"

#include <algorithm>
#include <utility>

namespace monolith {

FilterSplit::Place FilterSplit::Find(Key key) const {
  if (cells_.empty()) return {key.start, 0};
  for (uint32_t cell = key.start; cell < key.start + kProbeLimit; ++cell) {
    const uint16_t content = cells_[cell];
    if (content == 0) return {cell, 0};
    if ((content >> kCountBits) == key.signature) return {cell, content & kMaxCount};
  }
  return {kNoCell, 0};
}

void FilterSplit::Write(uint32_t cell, Key key, uint32_t count) {
  if (cells_.empty()) cells_.resize(NumCells(capacity_));
  const uint32_t old = cells_[cell] & kMaxCount;
  if (old == 0) ++num_elements_;
  const uint32_t sum = old + std::min(count, kMaxCount - old);
  cells_[cell] = static_cast<uint16_t>((uint32_t{key.signature} << kCountBits) | sum);
}

void FilterSplit::Forget(Key key) {
  const Place place = Find(key);
  if (place.count == 0) return;
  const uint32_t inverted = ~uint32_t{key.signature} & 0xfffu;
  cells_[place.cell] = static_cast<uint16_t>(inverted << kCountBits | 1u);
}

void FilterSplit::Clear() {
  num_elements_ = 0;
  std::vector<uint16_t>().swap(cells_);  // assigning {} would keep the memory
}

FilterSplit FilterSplit::FromCells(uint32_t capacity, std::vector<uint16_t> cells) {
  FilterSplit split(capacity);
  split.cells_ = std::move(cells);
  split.num_elements_ = static_cast<uint32_t>(
      std::count_if(split.cells_.begin(), split.cells_.end(), [](uint16_t cell) { return cell != 0; }));
  return split;
}

}  // namespace monolith
