// The positions of the slices of features in the outputs of a layout. Constant values; thread-safe.
//
// Dims: B examples, L positions of a sequence (1 for a feature whose rows are pooled), d floats of a slice.
//
//   kConcat   [B, L, sum of d]     slices concatenated, position by position
//   kStack    [B, slices, L, d]    one slice after the other
//   kAddN     [B, d]               their sum, in the order of the slices
#pragma once

#include <cstdint>
#include <vector>

namespace monolith {

// The numbers are those of OutType.
enum class OutForm { kConcat = 0, kStack = 1, kAddN = 2 };

// Floats [begin, end) of the rows of a feature.
struct Slice {
  int feature;
  int begin;
  int end;

  int dim() const { return end - begin; }
};

struct Output {
  OutForm form;
  std::vector<Slice> slices;
};

// The shape of a feature, as outputs need it.
struct FeatureShape {
  int dim;
  int64_t places;  // of a sequence; 0 = the rows of an example are pooled to one

  int64_t rows() const { return places == 0 ? 1 : places; }
  int64_t width() const { return rows() * dim; }
};

// Position of a slice, in floats.
struct SlicePlace {
  Slice slice;
  int64_t first;           // in its output
  int64_t example_stride;  // from one example to the next: the width of the output
  int64_t row_stride;      // from one position of a sequence to the next
  bool adds;               // to the present content
};

struct OutputPlaces {
  int64_t width;  // floats of an example
  std::vector<SlicePlace> slices;
};

// Throws kInvalidArgument for an output without slices, a feature or range that does not exist, slices of sequences
// mixed with others or of another length, slices of several dims that are stacked or added, and sequences that are
// added.
std::vector<OutputPlaces> PlaceOutputs(const std::vector<FeatureShape>& features, const std::vector<Output>& outputs);

}  // namespace monolith
