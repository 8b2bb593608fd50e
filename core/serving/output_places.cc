#include "serving/output_places.h"

#include <string>

#include "base/error.h"

namespace monolith {
namespace {

[[noreturn]] void Refuse(size_t output, const std::string& what) {
  throw Error(Code::kInvalidArgument, "output " + std::to_string(output) + ": " + what);
}

void CheckSlice(const std::vector<FeatureShape>& features, const Slice& slice, size_t output) {
  if (slice.feature < 0 || slice.feature >= static_cast<int>(features.size())) {
    Refuse(output,
           "a slice is of feature " + std::to_string(slice.feature) + ", there are " + std::to_string(features.size()));
  }
  const int dim = features[static_cast<size_t>(slice.feature)].dim;
  if (slice.begin < 0 || slice.begin >= slice.end || slice.end > dim) {
    Refuse(output, "a slice is [" + std::to_string(slice.begin) + ", " + std::to_string(slice.end) + ") of rows of " +
                       std::to_string(dim));
  }
}

void CheckOutput(const std::vector<FeatureShape>& features, const Output& output, size_t number) {
  if (output.slices.empty()) Refuse(number, "it has no slices");
  for (const Slice& slice : output.slices) CheckSlice(features, slice, number);
  const Slice& first = output.slices[0];
  const int64_t places = features[static_cast<size_t>(first.feature)].places;
  if (output.form == OutForm::kAddN && places > 0) Refuse(number, "sequences cannot be added");
  for (const Slice& slice : output.slices) {
    if (features[static_cast<size_t>(slice.feature)].places != places)
      Refuse(number, "its slices must be of sequences of one length, or none of them");
    if (output.form != OutForm::kConcat && slice.dim() != first.dim()) Refuse(number, "its slices must have one dim");
  }
}

}  // namespace

std::vector<OutputPlaces> PlaceOutputs(const std::vector<FeatureShape>& features, const std::vector<Output>& outputs) {
  std::vector<OutputPlaces> placed;
  for (const Output& output : outputs) {
    CheckOutput(features, output, placed.size());
    const int64_t rows = features[static_cast<size_t>(output.slices[0].feature)].rows();
    int64_t dims = 0;
    for (const Slice& slice : output.slices) dims += slice.dim();
    OutputPlaces places{output.form == OutForm::kAddN ? output.slices[0].dim() : rows * dims, {}};
    int64_t first = 0;
    for (const Slice& slice : output.slices) {
      const int64_t row_stride = output.form == OutForm::kConcat ? dims : slice.dim();
      const bool is_sum = output.form == OutForm::kAddN;
      places.slices.push_back({slice, first, places.width, row_stride, is_sum && !places.slices.empty()});
      if (!is_sum) first += output.form == OutForm::kStack ? rows * slice.dim() : slice.dim();
    }
    placed.push_back(std::move(places));
  }
  return placed;
}

}  // namespace monolith
