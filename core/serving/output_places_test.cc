#include "serving/output_places.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace monolith {
namespace {

// A pooled feature of 5 floats, and sequences of 4 and of 2 positions.
const std::vector<FeatureShape> kFeatures = {{5, 0}, {5, 4}, {5, 2}};

TEST(OutputPlaces, SlicesOfSequencesLieSideBySidePlaceByPlace) {
  const auto places = PlaceOutputs(kFeatures, {{OutForm::kConcat, {{1, 0, 2}, {1, 2, 5}}}});
  EXPECT_EQ(places[0].width, 4 * 5);
  EXPECT_EQ(places[0].slices[1].first, 2);
  EXPECT_EQ(places[0].slices[1].row_stride, 5);
  EXPECT_EQ(places[0].slices[1].example_stride, 20);
}

TEST(OutputPlaces, StackedSequencesComeOneAfterTheOther) {
  const auto places = PlaceOutputs(kFeatures, {{OutForm::kStack, {{1, 0, 2}, {1, 3, 5}}}});
  EXPECT_EQ(places[0].width, 2 * 4 * 2);
  EXPECT_EQ(places[0].slices[1].first, 4 * 2);
  EXPECT_EQ(places[0].slices[1].row_stride, 2);
}

TEST(OutputPlaces, SlicesThatAreAddedShareOnePlace) {
  const auto places = PlaceOutputs(kFeatures, {{OutForm::kAddN, {{0, 0, 2}, {0, 3, 5}, {0, 1, 3}}}});
  EXPECT_EQ(places[0].width, 2);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(places[0].slices[i].first, 0);
    EXPECT_EQ(places[0].slices[i].adds, i > 0);
  }
}

TEST(OutputPlaces, RefusesWhatCannotBeLaidOut) {
  const std::vector<Output> bad = {
      {OutForm::kConcat, {}},
      {OutForm::kConcat, {{3, 0, 1}}},
      {OutForm::kConcat, {{-1, 0, 1}}},
      {OutForm::kConcat, {{0, 0, 6}}},
      {OutForm::kConcat, {{0, -1, 2}}},
      {OutForm::kConcat, {{0, 2, 2}}},
      {OutForm::kConcat, {{0, 0, 2}, {1, 0, 2}}},
      {OutForm::kConcat, {{1, 0, 2}, {2, 0, 2}}},
      {OutForm::kStack, {{0, 0, 2}, {0, 0, 3}}},
      {OutForm::kAddN, {{0, 0, 2}, {0, 0, 3}}},
      {OutForm::kAddN, {{1, 0, 2}, {1, 0, 2}}},
  };
  for (const Output& output : bad) EXPECT_THROW(PlaceOutputs(kFeatures, {output}), Error);
}

}  // namespace
}  // namespace monolith
