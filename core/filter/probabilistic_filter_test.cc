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
    admitted += slice->ShouldDrop({HashId(7), count, threshold, seed, 11}) ? 0 : 1;
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

TEST(ProbabilisticFilterTest, DecisionIsAFunctionOfSeedAndStep) {
  const std::unique_ptr<FilterSlice> one = MakeSlice(false);
  const std::unique_ptr<FilterSlice> other = one->Clone();
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    EXPECT_EQ(one->ShouldDrop({HashId(1), 1, 2, seed, 3}), other->ShouldDrop({HashId(2), 1, 2, seed, 3}));
  }
}

TEST(ProbabilisticFilterTest, DrawIsIndependentOfOtherDrawsOfTheSeed) {
  const std::unique_ptr<FilterSlice> slice = MakeSlice(false);
  double sum = 0;
  int admitted = 0;
  for (uint64_t seed = 0; seed < 100000; ++seed) {
    if (slice->ShouldDrop({HashId(1), 1, 10, seed, 5})) continue;
    sum += CounterRandom(Combine(seed, 5)).Uniform(1);  // what an initializer would draw
    ++admitted;
  }
  EXPECT_NEAR(sum / admitted, 0.5, 0.02);
}

TEST(ProbabilisticFilterTest, HasNoStateWhereStepsAreGivenAndRefusesThatOfOthers) {
  const std::unique_ptr<FilterSlice> slice = MakeSlice(true);
  for (int64_t step = 0; step < 9; ++step) slice->ShouldDrop({HashId(1), 1, 1000, 3, step});
  EXPECT_TRUE(slice->Save().empty());
  EXPECT_NO_THROW(slice->Load(""));
  EXPECT_THROW(slice->Load("x"), Error);
  slice->Clear();
  EXPECT_GT(slice->MemoryBytes(), 0u);
}

// Returns the number of offers until the id is admitted.
int OffersUntilIn(FilterSlice& slice, uint64_t id, uint32_t threshold) {
  int offers = 1;
  while (slice.ShouldDrop({HashId(static_cast<int64_t>(id)), 1, threshold, Combine(id, 77)})) ++offers;
  return offers;
}

TEST(ProbabilisticFilterTest, WithoutAStepEveryOfferIsAnotherDraw) {
  constexpr int kIds = 20000;
  constexpr uint32_t kThreshold = 8;
  const std::unique_ptr<FilterSlice> slice = MakeSlice(false);
  double offers = 0;
  for (uint64_t id = 0; id < kIds; ++id) offers += OffersUntilIn(*slice, id, kThreshold);
  EXPECT_NEAR(offers / kIds, kThreshold, 0.3);  // geometric: five standard deviations
  EXPECT_TRUE(slice->Save().empty());           // all are admitted, and have no counts
}

TEST(ProbabilisticFilterTest, TheFirstOfferWithoutAStepIsThatOfStepZero) {
  const std::unique_ptr<FilterSlice> one = MakeSlice(false), other = MakeSlice(false);
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    EXPECT_EQ(one->ShouldDrop({seed, 1, 2, seed}), other->ShouldDrop({seed, 1, 2, seed, 0}));
  }
}

TEST(ProbabilisticFilterTest, OffersAreSavedClonedAndGoOnWhereTheyStood) {
  const std::unique_ptr<FilterSlice> slice = MakeSlice(false), untouched = MakeSlice(false), loaded = MakeSlice(false);
  for (int offer = 0; offer < 5; ++offer) {
    for (uint64_t id = 0; id < 300; ++id) slice->ShouldDrop({id, 1, 40, id});
  }
  const std::unique_ptr<FilterSlice> copy = slice->Clone();
  loaded->Load(slice->Save());
  EXPECT_EQ(loaded->Save(), slice->Save());
  EXPECT_GT(loaded->MemoryBytes(), untouched->MemoryBytes());
  bool differs = false;
  for (uint64_t id = 0; id < 300; ++id) {
    const Offer offer{id, 1, 3, id};
    const bool dropped = slice->ShouldDrop(offer);
    EXPECT_EQ(copy->ShouldDrop(offer), dropped);
    EXPECT_EQ(loaded->ShouldDrop(offer), dropped);
    differs |= untouched->ShouldDrop(offer) != dropped;
  }
  EXPECT_TRUE(differs);
  loaded->Clear();
  EXPECT_TRUE(loaded->Save().empty());
}

TEST(ProbabilisticFilterTest, DamagedOffersAreRefusedAndLeaveTheSliceAsItWas) {
  const std::unique_ptr<FilterSlice> slice = MakeSlice(false);
  for (uint64_t id = 0; id < 3; ++id) slice->ShouldDrop({id, 1, 1u << 31, id});
  const std::string good = slice->Save();
  ASSERT_EQ(good.size(), 16u + 3 * 16 + 8);
  EXPECT_EQ(good.substr(0, 8), std::string("MSOC\1\0\0\0", 8)) << "saved files have this magic and version";
  for (size_t at = 0; at + 4 < good.size(); ++at) {  // the last four bytes are padding
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    EXPECT_THROW(slice->Load(bad), Error) << at;
  }
  for (size_t size = 1; size < good.size(); ++size) {
    try {
      slice->Load(good.substr(0, size));
      ADD_FAILURE() << size << " bytes were accepted";
    } catch (const Error& error) {  // bytes without room for header and checksum are not recognised as this kind
      EXPECT_EQ(error.code(), size < 24 ? Code::kInvalidArgument : Code::kDataLoss) << size;
    }
  }
  EXPECT_EQ(slice->Save(), good);
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
