#include "filter/probabilistic_filter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/hash.h"
#include "base/random.h"

namespace monolith {
namespace {

std::unique_ptr<FilterSlice> MakeSlice(bool equal_probability) {
  return MakeAdmissionFilter("probabilistic", Params({{"equal_probability", equal_probability ? 1.0 : 0.0}}))
      ->MakeSlice();
}

double AdmittedShare(bool equal_probability, uint32_t count, uint32_t threshold) {
  constexpr int kDraws = 200000;
  const std::unique_ptr<FilterSlice> slice = MakeSlice(equal_probability);
  int admitted = 0;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    admitted += slice->ShouldDrop(HashId(7), count, threshold, Combine(seed, 11)) ? 0 : 1;
  }
  return static_cast<double>(admitted) / kDraws;
}

constexpr double kMargin = 0.006;  // more than five standard deviations of a share of 200,000 draws

TEST(ProbabilisticFilterTest, AdmitsInProportionToTheCount) {
  EXPECT_NEAR(AdmittedShare(false, 1, 3), 1.0 / 3, kMargin);
  EXPECT_NEAR(AdmittedShare(false, 2, 3), 2.0 / 3, kMargin);
  EXPECT_NEAR(AdmittedShare(false, 1, 100), 0.01, kMargin / 4);
  EXPECT_NEAR(AdmittedShare(false, 1u << 30, 1u << 31), 0.5, kMargin);
}

TEST(ProbabilisticFilterTest, CountAtOrAboveTheThresholdIsCertain) {
  EXPECT_EQ(AdmittedShare(false, 3, 3), 1.0);
  EXPECT_EQ(AdmittedShare(false, UINT32_MAX, 1), 1.0);
  EXPECT_EQ(AdmittedShare(false, UINT32_MAX, UINT32_MAX), 1.0);
}

TEST(ProbabilisticFilterTest, EqualOccurrencesReachNinetyFivePercentAtTheThreshold) {
  EXPECT_NEAR(AdmittedShare(true, 10, 10), 0.95, kMargin);
  EXPECT_NEAR(AdmittedShare(true, 1, 1), 0.95, kMargin);
  EXPECT_NEAR(AdmittedShare(true, 1, 10), 1 - std::pow(0.05, 0.1), kMargin);
  EXPECT_NEAR(AdmittedShare(true, 4, 10), 1 - std::pow(0.05, 0.4), kMargin);
}

TEST(ProbabilisticFilterTest, DecisionIsAFunctionOfTheSeedAlone) {
  const std::unique_ptr<FilterSlice> one = MakeSlice(false);
  const std::unique_ptr<FilterSlice> other = one->Clone();
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    EXPECT_EQ(one->ShouldDrop(HashId(1), 1, 2, seed), other->ShouldDrop(HashId(2), 1, 2, seed));
  }
}

TEST(ProbabilisticFilterTest, DrawIsIndependentOfOtherDrawsOfTheSeed) {
  const std::unique_ptr<FilterSlice> slice = MakeSlice(false);
  double sum = 0;
  int admitted = 0;
  for (uint64_t seed = 0; seed < 100000; ++seed) {
    if (slice->ShouldDrop(HashId(1), 1, 10, Combine(seed, 5))) continue;
    sum += CounterRandom(Combine(seed, 5)).Uniform(1);  // what an initializer would draw
    ++admitted;
  }
  EXPECT_NEAR(sum / admitted, 0.5, 0.02);
}

TEST(ProbabilisticFilterTest, HasNoStateAndRefusesThatOfOthers) {
  const std::unique_ptr<FilterSlice> slice = MakeSlice(true);
  slice->ShouldDrop(HashId(1), 1, 2, 3);
  EXPECT_TRUE(slice->Save().empty());
  EXPECT_NO_THROW(slice->Load(""));
  EXPECT_THROW(slice->Load("x"), Error);
  slice->Clear();
  EXPECT_GT(slice->MemoryBytes(), 0u);
}

TEST(ProbabilisticFilterTest, AnyThresholdIsAccepted) {
  const auto filter = MakeAdmissionFilter("probabilistic", Params({{"equal_probability", 0.0}}));
  EXPECT_NO_THROW(filter->CheckThreshold(UINT32_MAX, "slot 1"));
}

TEST(ProbabilisticFilterTest, UnknownKindIsRefusedByName) {
  EXPECT_THROW(MakeAdmissionFilter("bloom", Params()), Error);
  EXPECT_THROW(MakeAdmissionFilter("probabilistic", Params()), Error);
}

}  // namespace
}  // namespace monolith
