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
      num_starts_(FilterSplitRule::NumStarts(split_capacity_)),
      splits_(split_num, FilterSplit(split_capacity_)) {}

bool SlidingHashFilterSlice::ShouldDrop(const Offer& offer) { return Add(offer.hash, offer.count) < offer.threshold; }

void SlidingHashFilterSlice::Forget(uint64_t hash) {
  const FilterSplit::Key key = KeyOf(hash);
  for (FilterSplit& split : splits_) split.Forget(key);
}

void SlidingHashFilterSlice::Clear() {
  for (FilterSplit& split : splits_) split.Clear();
  ring_ = {};
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
