#include "serving/input_layout.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/thread_pool.h"
#include "table/row_copy.h"

namespace monolith {
namespace {

[[noreturn]] void Refuse(const std::string& message) { throw Error(Code::kInvalidArgument, message); }

std::vector<FeatureShape> ShapesOf(const std::vector<InputFeature>& features) {
  std::vector<FeatureShape> shapes;
  for (const InputFeature& feature : features) {
    if (feature.dim < 1 || feature.places < 0 || (feature.pooling == Pooling::kFirstN) != (feature.places > 0))
      Refuse("feature '" + feature.name + "': rows of dim >= 1 are expected, and places iff it is a sequence");
    shapes.push_back({feature.dim, feature.places});
  }
  return shapes;
}

// Returns the index of each feature's column among the distinct ones, in the order of their first use.
std::vector<size_t> ColumnsOf(const std::vector<InputFeature>& features) {
  std::vector<std::string_view> names;
  std::vector<size_t> places;
  for (const InputFeature& feature : features) {
    places.push_back(static_cast<size_t>(std::ranges::find(names, feature.column) - names.begin()));
    if (places.back() == names.size()) names.push_back(feature.column);
  }
  return places;
}

std::vector<Schema> SchemasOf(const std::vector<InputFeature>& features, const std::vector<size_t>& places,
                              const std::vector<ColumnSpec>& numbers) {
  std::vector<ColumnSpec> columns;
  for (size_t f = 0; f < features.size(); ++f) {
    if (places[f] == columns.size()) columns.push_back({features[f].column, ColumnKind::kAnyIds, 1, -1});
  }
  columns.insert(columns.end(), numbers.begin(), numbers.end());
  std::vector<Schema> schemas;
  for (const auto format : {SampleFormat::kInstance, SampleFormat::kExampleBatch, SampleFormat::kExample})
    schemas.emplace_back(format, columns);
  return schemas;
}

}  // namespace

InputLayout::InputLayout(std::vector<InputFeature> features, const std::vector<Output>& outputs,
                         const std::vector<ColumnSpec>& numbers, const LayoutLimits& limits)
    : features_(std::move(features)),
      limits_(limits),
      outputs_(PlaceOutputs(ShapesOf(features_), outputs)),
      columns_(ColumnsOf(features_)),
      num_numbers_(numbers.size()),
      schemas_(SchemasOf(features_, columns_, numbers)) {
  first_floats_.push_back(0);
  for (const OutputPlaces& output : outputs_) first_floats_.push_back(first_floats_.back() + output.width);
  PlaceFeatures();
}

void InputLayout::PlaceFeatures() {
  places_.resize(features_.size());
  std::vector<int> uses(features_.size());
  for (size_t o = 0; o < outputs_.size(); ++o) {
    for (const SlicePlace& place : outputs_[o].slices) {
      const auto f = static_cast<size_t>(place.slice.feature);
      const InputFeature& feature = features_[f];
      const bool is_sum = place.adds || (outputs_[o].slices.size() > 1 && outputs_[o].slices[1].adds);
      const bool is_whole =
          place.slice.dim() == feature.dim && (feature.places <= 1 || place.row_stride == feature.dim);
      places_[f].output = ++uses[f] == 1 && is_whole && !is_sum ? static_cast<int>(o) : -1;
      places_[f].slice = place;
    }
  }
  for (size_t f = 0; f < features_.size(); ++f) {
    if (places_[f].output >= 0) continue;
    places_[f].aside = aside_width_;
    aside_width_ += FeatureShape{features_[f].dim, features_[f].places}.width();
  }
}

const Schema& InputLayout::SchemaOf(SampleFormat format) const {
  const auto found = std::ranges::find_if(schemas_, [&](const Schema& schema) { return schema.format() == format; });
  if (found == schemas_.end()) Refuse("samples must be of an ExampleBatch, Examples or Instances");
  return *found;
}

void InputLayout::CheckGroups(std::span<const Group* const> groups) const {
  for (const InputFeature& feature : features_) {
    const auto group = static_cast<size_t>(feature.group);
    if (feature.group < 0 || group >= groups.size() || feature.table < 0 ||
        feature.table >= groups[group]->num_tables() || groups[group]->table(feature.table).spec.dim() != feature.dim)
      Refuse("feature '" + feature.name + "': its store has no table " + std::to_string(feature.table) +
             " with rows of " + std::to_string(feature.dim));
  }
}

void InputLayout::CheckColumns(std::span<const IdColumn> columns) const {
  if (columns.size() != features_.size()) {
    Refuse("expected the ids of " + std::to_string(features_.size()) + " features, got " +
           std::to_string(columns.size()));
  }
}

BatchCells InputLayout::CellsOf(const Schema& schema, std::span<const std::string_view> records) const {
  const auto most_cells = limits_.max_parsed_bytes / static_cast<int64_t>(sizeof(Cell));
  BatchCells cells = ReadBatchCells(schema, records, limits_.max_parsed_bytes, most_cells);
  for (size_t i = 0; i < cells.problems.size(); ++i) {
    if (!cells.problems[i].empty()) Refuse("record " + std::to_string(i) + ": " + cells.problems[i]);
  }
  return cells;
}

std::vector<FeatureKeys> InputLayout::KeysOfRecords(SampleFormat format,
                                                    std::span<const std::string_view> records) const {
  const AloneScope alone(true);
  const Schema& schema = SchemaOf(format);
  const BatchCells cells = CellsOf(schema, records);
  std::vector<FeatureKeys> keys;
  for (size_t f = 0; f < features_.size(); ++f) {
    FeatureIds ids;
    ids.TakeCells(features_[f], SourceCells(cells, schema.columns()[columns_[f]].source), cells.num_rows());
    keys.push_back(ids.Take());
  }
  return keys;
}

std::vector<FeatureKeys> InputLayout::KeysOfColumns(std::span<const IdColumn> columns) const {
  CheckColumns(columns);
  std::vector<FeatureKeys> keys;
  for (size_t f = 0; f < features_.size(); ++f) {
    FeatureIds ids;
    ids.TakeColumn(features_[f], columns[f]);
    keys.push_back(ids.Take());
  }
  return keys;
}

LaidOutInputs InputLayout::NewOutputs(int64_t num_examples) const {
  const int64_t width = std::max<int64_t>(1, first_floats_.back() + aside_width_);
  const int64_t most = limits_.max_output_bytes / static_cast<int64_t>(sizeof(float)) / width;
  if (num_examples > most) {
    throw Error(Code::kResourceExhausted,
                "a request of " + std::to_string(num_examples) + " examples, " + std::to_string(most) + " fill the " +
                    std::to_string(limits_.max_output_bytes) +
                    " bytes that outputs may have (max_output_bytes); request fewer examples");
  }
  LaidOutInputs inputs;
  inputs.num_examples = num_examples;
  inputs.outputs = Buffer<float>(static_cast<size_t>(num_examples * first_floats_.back()));
  return inputs;
}

LaidOutInputs InputLayout::FromRecords(SampleFormat format, std::span<const std::string_view> records,
                                       std::span<const Group* const> groups, int64_t step) const {
  const AloneScope alone(true);
  CheckGroups(groups);
  const Schema& schema = SchemaOf(format);
  const BatchCells cells = CellsOf(schema, records);
  const int64_t rows = cells.num_rows();
  LaidOutInputs inputs = NewOutputs(rows);
  const std::span<const Column> columns(schema.columns());
  LayOut(
      groups, step,
      [&](size_t f, FeatureIds* ids) {
        ids->TakeCells(features_[f], SourceCells(cells, columns[columns_[f]].source), rows);
      },
      &inputs);
  if (has_numbers()) inputs.numbers = FillBatch(columns.last(num_numbers_), cells);
  return inputs;
}

LaidOutInputs InputLayout::FromColumns(std::span<const IdColumn> columns, int64_t num_examples,
                                       std::span<const Group* const> groups, int64_t step) const {
  const AloneScope alone(true);
  CheckGroups(groups);
  CheckColumns(columns);
  LaidOutInputs inputs = NewOutputs(num_examples);
  LayOut(groups, step, [&](size_t f, FeatureIds* ids) { ids->TakeColumn(features_[f], columns[f]); }, &inputs);
  return inputs;
}

template <typename Take>
void InputLayout::LayOut(std::span<const Group* const> groups, int64_t step, const Take& take,
                         LaidOutInputs* inputs) const {
  const int64_t examples = inputs->num_examples;
  if (examples == 0) return;
  Buffer<float> aside(static_cast<size_t>(examples * aside_width_));
  std::vector<char> is_shared(features_.size());
  FeatureIds ids;
  FeaturePooler pooler(step);
  for (size_t f = 0; f < features_.size(); ++f) {
    const InputFeature& feature = features_[f];
    const PooledPlace& place = places_[f];
    take(f, &ids);
    const int64_t width = FeatureShape{feature.dim, feature.places}.width();
    PooledRows rows{aside.data() + place.aside * examples, width};
    if (place.output >= 0) {
      const int64_t first = first_floats_[static_cast<size_t>(place.output)] * examples;
      rows = {inputs->outputs.data() + first + place.slice.first, place.slice.example_stride};
    }
    inputs->num_found += pooler.Pool(*groups[static_cast<size_t>(feature.group)], feature, ids, rows);
    inputs->num_ids += ids.count();
    is_shared[f] = ids.rows() < examples;
    if (place.output >= 0 && is_shared[f]) Repeat(feature, rows, examples);
  }
  if (aside_width_ > 0) CutSlices(aside, is_shared, inputs);
}

void InputLayout::Repeat(const InputFeature& feature, PooledRows rows, int64_t num_examples) const {
  const auto width = static_cast<int>(FeatureShape{feature.dim, feature.places}.width());
  for (int64_t example = 1; example < num_examples; ++example)
    CopyFloats(rows.first + example * rows.stride, rows.first, width);
}

void InputLayout::CutSlices(const Buffer<float>& aside, const std::vector<char>& is_shared,
                            LaidOutInputs* inputs) const {
  const int64_t examples = inputs->num_examples;
  for (size_t o = 0; o < outputs_.size(); ++o) {
    float* output = inputs->outputs.data() + first_floats_[o] * examples;
    for (const SlicePlace& place : outputs_[o].slices) {
      const auto f = static_cast<size_t>(place.slice.feature);
      if (places_[f].output >= 0) continue;
      const FeatureShape shape{features_[f].dim, features_[f].places};
      const float* pooled = aside.data() + places_[f].aside * examples + place.slice.begin;
      const int64_t stride = is_shared[f] ? 0 : shape.width();
      const int dim = place.slice.dim();
      for (int64_t example = 0; example < examples; ++example) {
        float* to = output + place.first + example * place.example_stride;
        const float* from = pooled + example * stride;
        for (int64_t row = 0; row < shape.rows(); ++row, to += place.row_stride, from += shape.dim)
          place.adds ? AddFloats(to, from, dim) : CopyFloats(to, from, dim);
      }
    }
  }
}

}  // namespace monolith
