#include "filter/probabilistic_filter.h"

namespace monolith {

bool ProbabilisticFilterSlice::ShouldDrop(const Offer& offer) {
  const auto turn = offer.step == kNoStep ? offers_.Add(offer.hash) : static_cast<uint64_t>(offer.step);
  const bool admits = rule_.Admits(offer.seed, turn, offer.count, offer.threshold);
  if (admits) offers_.Forget(offer.hash);
  return !admits;
}

std::unique_ptr<FilterSlice> ProbabilisticFilterSlice::Clone() const {
  return std::make_unique<ProbabilisticFilterSlice>(*this);
}

std::unique_ptr<FilterSlice> ProbabilisticFilter::MakeSlice() const {
  return std::make_unique<ProbabilisticFilterSlice>(equal_probability_);
}

}  // namespace monolith
