// Converts encoded samples, or columns of ids, to the inputs of a model, in one call: ids become keys, their rows are
// looked up and pooled, and slices of them are written to the outputs; columns of numbers are included.
//
// Constant after construction; thread-safe, also concurrently with writers of the groups: a row is read as it was
// before or after a change, never in between. A call runs in the calling thread only. Groups and arrays belong to the
// caller.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "data/batch_parser.h"
#include "data/schema.h"
#include "memory/buffer.h"
#include "serving/feature_ids.h"
#include "serving/feature_pooling.h"
#include "serving/output_places.h"
#include "table/group.h"

namespace monolith {

struct LayoutLimits {
  int64_t max_parsed_bytes = int64_t{1} << 27;  // as ParseOptions
  int64_t max_output_bytes = int64_t{1} << 30;  // of all outputs together
};

struct LaidOutInputs {
  int64_t num_examples = 0;
  int64_t num_ids = 0;    // number looked up; those of a list that all examples share count once
  int64_t num_found = 0;  // of them
  Buffer<float> outputs;  // end to end, each [examples, width]
  ParsedBatch numbers;    // the columns of numbers, of samples
};

class InputLayout {
 public:
  // `numbers` are columns of any kind but kAnyIds. Throws kInvalidArgument as PlaceOutputs() and Schema() do.
  InputLayout(std::vector<InputFeature> features, const std::vector<Output>& outputs,
              const std::vector<ColumnSpec>& numbers, const LayoutLimits& limits);

  bool has_numbers() const { return num_numbers_ > 0; }

  // Throws kInvalidArgument for bytes that are no such samples, or ids that a feature does not accept;
  // kResourceExhausted for inputs that are too large; kInvalidArgument for groups that do not have the tables. `step`
  // is for tables that quantise in training, as in Group::Lookup().
  LaidOutInputs FromRecords(SampleFormat format, std::span<const std::string_view> records,
                            std::span<const Group* const> groups, int64_t step) const;
  // A column for each feature. REQUIRES: each has num_examples rows or one.
  LaidOutInputs FromColumns(std::span<const IdColumn> columns, int64_t num_examples,
                            std::span<const Group* const> groups, int64_t step) const;

  // Returns the keys that these calls look up, of every feature.
  std::vector<FeatureKeys> KeysOfRecords(SampleFormat format, std::span<const std::string_view> records) const;
  std::vector<FeatureKeys> KeysOfColumns(std::span<const IdColumn> columns) const;

 private:
  const Schema& SchemaOf(SampleFormat format) const;
  void CheckGroups(std::span<const Group* const> groups) const;
  void CheckColumns(std::span<const IdColumn> columns) const;
  // Returns the cells of the records. Throws unless all are good.
  BatchCells CellsOf(const Schema& schema, std::span<const std::string_view> records) const;
  LaidOutInputs NewOutputs(int64_t num_examples) const;
  // Looks up and writes every feature; take(feature number, ids) fills its ids.
  template <typename Take>
  void LayOut(std::span<const Group* const> groups, int64_t step, const Take& take, LaidOutInputs* inputs) const;

  // Destination of the pooled rows of a feature: the output, if one slice uses the complete rows, or a temporary buffer
  // from which slices are copied.
  struct PooledPlace {
    int output = -1;  // -1: the temporary buffer
    SlicePlace slice{};
    int64_t aside = 0;  // offset in floats within an example of the temporary buffer
  };
  void PlaceFeatures();
  // Copies one pooled row to all examples.
  void Repeat(const InputFeature& feature, PooledRows rows, int64_t num_examples) const;
  // Copies or adds the slices from the temporary buffer; `is_shared` marks the features that have one row for all
  // examples.
  void CutSlices(const Buffer<float>& aside, const std::vector<char>& is_shared, LaidOutInputs* inputs) const;

  const std::vector<InputFeature> features_;
  const LayoutLimits limits_;
  const std::vector<OutputPlaces> outputs_;
  std::vector<int64_t> first_floats_;  // of each output, for one example; then the end
  int64_t aside_width_ = 0;            // floats of an example in the temporary buffer
  std::vector<PooledPlace> places_;
  const std::vector<size_t> columns_;  // of each feature, in the schemas
  const size_t num_numbers_;           // the last columns of the schemas
  const std::vector<Schema> schemas_;  // kInstance, kExampleBatch, kExample
};

}  // namespace monolith
