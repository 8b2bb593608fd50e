#include "filter/sliding_hash_filter.h"

#include <algorithm>
#include <cmath>

#include "base/hash.h"

namespace monolith {

namespace {

constexpr double kLargestCapacity = 1e12;

uint32_t SplitCapacity(uint64_t capacity, uint32_t split_num) {
  MONOLITH_CHECK(capacity <= (uint64_t{1} << 31));
  MONOLITH_CHECK(split_num >= SlidingHashFilterSlice::kMinSplits && split_num <= SlidingHashFilterSlice::kMaxSplits);
  // The split after the head is kept free; the others together hold `capacity` ids.
  const uint64_t share = std::max(capacity, SlidingHashFilterSlice::kMinCapacity) / (split_num - 1);
  return static_cast<uint32_t>(std::max<uint64_t>(share, SlidingHashFilterSlice::kMinSplitCapacity));
}

uint64_t WholeNumber(const Params& params, const char* name, double smallest, double largest) {
  const double value = params.Get(name);
  if (value >= smallest && value <= largest && value == std::floor(value)) return static_cast<uint64_t>(value);
  throw Error(Code::kInvalidArgument, std::string("sliding_hash filter: ") + name + " must be an integer from " +
                                          std::to_string(static_cast<uint64_t>(smallest)) + " to " +
                                          std::to_string(static_cast<uint64_t>(largest)) + ", got " +
                                          std::to_string(value));
}

}  // namespace

SlidingHashFilterSlice::SlidingHashFilterSlice(uint64_t capacity, uint32_t split_num)
    : split_capacity_(SplitCapacity(capacity, split_num)),
      num_starts_(FilterSplit::NumStarts(split_capacity_)),
      splits_(split_num, FilterSplit(split_capacity_)) {}

bool SlidingHashFilterSlice::ShouldDrop(const Offer& offer) { return Add(offer.hash, offer.count) < offer.threshold; }

uint32_t SlidingHashFilterSlice::Add(uint64_t hash, uint32_t count) {
  const FilterSplit::Key key = FilterSplit::KeyOf(hash, num_starts_);
  const Forward forward = FindForward(key);
  if (forward.place.cell == FilterSplit::kNoCell) {
    ++failure_count_;
    return FilterSplit::kMaxCount;
  }
  FilterSplit& split = splits_[forward.split];
  if (forward.place.count > 0) {
    split.Write(forward.place.cell, key, count);
    return forward.place.count;
  }
  const uint32_t old = CountBehind(key);
  split.Write(forward.place.cell, key, old + std::min(count, FilterSplit::kMaxCount));
  if (splits_[head_].full()) MoveHead();
  return old;
}

void SlidingHashFilterSlice::Forget(uint64_t hash) {
  const FilterSplit::Key key = FilterSplit::KeyOf(hash, num_starts_);
  for (FilterSplit& split : splits_) split.Forget(key);
}

uint32_t SlidingHashFilterSlice::Count(uint64_t hash) const {
  const FilterSplit::Key key = FilterSplit::KeyOf(hash, num_starts_);
  const Forward forward = FindForward(key);
  if (forward.place.cell == FilterSplit::kNoCell) return FilterSplit::kMaxCount;
  return forward.place.count > 0 ? forward.place.count : CountBehind(key);
}

SlidingHashFilterSlice::Forward SlidingHashFilterSlice::FindForward(FilterSplit::Key key) const {
  uint32_t split = head_;
  for (uint32_t step = 0; step < kMaxForwardStep; ++step) {
    const FilterSplit::Place place = splits_[split].Find(key);
    if (place.cell != FilterSplit::kNoCell) return {split, place};
    split = split + 1 == split_num() ? 0 : split + 1;
  }
  return {head_, {FilterSplit::kNoCell, 0}};
}

uint32_t SlidingHashFilterSlice::CountBehind(FilterSplit::Key key) const {
  const uint64_t steps = std::min<uint64_t>(head_increment_, split_num() - kMaxForwardStep);
  uint32_t split = head_;
  for (uint64_t step = 0; step < steps; ++step) {
    split = split == 0 ? split_num() - 1 : split - 1;
    const uint32_t count = splits_[split].Find(key).count;
    if (count > 0) return count;
  }
  return 0;
}

void SlidingHashFilterSlice::MoveHead() {
  head_ = (head_ + 1) % split_num();
  ++head_increment_;
  splits_[(head_ + 1) % split_num()].Clear();
}

void SlidingHashFilterSlice::Clear() {
  for (FilterSplit& split : splits_) split.Clear();
  head_ = 0;
  head_increment_ = 0;
  failure_count_ = 0;
}

size_t SlidingHashFilterSlice::MemoryBytes() const {
  size_t bytes = sizeof(*this) + splits_.capacity() * sizeof(FilterSplit);
  for (const FilterSplit& split : splits_) bytes += split.MemoryBytes();
  return bytes;
}

uint64_t SlidingHashFilterSlice::num_elements() const {
  uint64_t sum = 0;
  for (const FilterSplit& split : splits_) sum += split.num_elements();
  return sum;
}

std::unique_ptr<FilterSlice> SlidingHashFilterSlice::Clone() const {
  return std::make_unique<SlidingHashFilterSlice>(*this);
}

SlidingHashFilter::SlidingHashFilter(const Params& params)
    : slice_capacity_(WholeNumber(params, "capacity", 1, kLargestCapacity) / kNumBuckets),
      split_num_(static_cast<uint32_t>(
          WholeNumber(params, "split_num", SlidingHashFilterSlice::kMinSplits, SlidingHashFilterSlice::kMaxSplits))) {}

std::unique_ptr<FilterSlice> SlidingHashFilter::MakeSlice() const {
  return std::make_unique<SlidingHashFilterSlice>(slice_capacity_, split_num_);
}

}  // namespace monolith
