#include "filter/probabilistic_filter.h"

#include "base/elementary.h"
#include "base/hash.h"
#include "base/random.h"

namespace monolith {

namespace {

constexpr double kMissedAfterThreshold = 0.05;
// Far from the counters of other users: if the word were shared with an initializer, admission would depend on the
// initial weights of an id.
constexpr uint64_t kCounter = 0x61646d6974000000ull;

// P(draw * threshold < count * 2^32) is count / threshold to within 2^-32; neither product exceeds 64 bits.
bool AdmitsInProportion(uint64_t word, uint32_t count, uint32_t threshold) {
  const uint64_t draw = word >> 32;
  return draw * threshold < (uint64_t{count} << 32);
}

bool AdmitsEveryOccurrenceAlike(uint64_t word, uint32_t count, uint32_t threshold) {
  const double draw = static_cast<double>(word >> 11) * 0x1p-53;
  const double occurrences = static_cast<double>(count) / static_cast<double>(threshold);
  // 1 - 0.05^(count / threshold), without the cancellation of the direct formula.
  return draw < -Expm1(occurrences * Log(kMissedAfterThreshold));
}

}  // namespace

bool ProbabilisticFilterSlice::ShouldDrop(const Offer& offer) {
  const auto turn = offer.step == kNoStep ? offers_.Add(offer.hash) : static_cast<uint64_t>(offer.step);
  const uint64_t word = CounterRandom(Combine(offer.seed, turn)).Bits(kCounter);
  const bool admits = equal_probability_ ? AdmitsEveryOccurrenceAlike(word, offer.count, offer.threshold)
                                         : AdmitsInProportion(word, offer.count, offer.threshold);
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
