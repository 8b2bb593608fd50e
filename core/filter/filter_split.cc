#include "filter/filter_split.h"

#include <algorithm>
#include <utility>

namespace monolith {

void FilterSplit::Write(uint32_t cell, Key key, uint32_t count) {
  if (cells_.empty()) cells_.resize(FilterSplitRule::NumCells(capacity_));
  if (FilterSplitRule::Write(cells_.data(), cell, key, count)) ++num_elements_;
}

void FilterSplit::Forget(Key key) { FilterSplitRule::Forget(cells_.empty() ? nullptr : cells_.data(), key); }

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
