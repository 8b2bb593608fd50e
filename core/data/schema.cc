#include "data/schema.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"

namespace monolith {
namespace {

constexpr int64_t kLargestWidth = int64_t{1} << 20;
constexpr int64_t kNumSlotsV2 = int64_t{1} << 15;
constexpr std::string_view kSlotPrefix = "fc_slot_";

constexpr LineIdField kLineIdFields[] = {
    {"uid", 2, LineIdForm::kInt, true},
    {"req_time", 3, LineIdForm::kInt},
    {"item_id", 4, LineIdForm::kInt, true},
    {"actions", 6, LineIdForm::kInts},
    {"chnid", 19, LineIdForm::kInt},
    {"pre_actions", 23, LineIdForm::kInts},
    {"sample_rate", 27, LineIdForm::kFloat},
    {"special_strategies", 39, LineIdForm::kInts},
    {"device_type", 41, LineIdForm::kText},
    {"cid", 48, LineIdForm::kText},
    {"user_id", 49, LineIdForm::kText},
    {"is_draw", 87, LineIdForm::kInt},
    {"rank", 145, LineIdForm::kInt, false, true},
    {"data_source_name", 235, LineIdForm::kText},
};

constexpr CellKinds kFids = SetOf(CellKind::kFidV1) | SetOf(CellKind::kFidV2);
constexpr CellKinds kReals = SetOf(CellKind::kFloat) | SetOf(CellKind::kDouble);

CellKinds AcceptedBy(const ColumnSpec& spec, SampleFormat format) {
  switch (spec.kind) {
    case ColumnKind::kIds:
      // The sequences of an Instance are concatenated in the row of their feature, as in ByteDance Monolith.
      if (format == SampleFormat::kInstance) return kFids | SetOf(CellKind::kFidV2Lists);
      if (format != SampleFormat::kTfExample) return kFids;
      return SetOf(CellKind::kInt64) | (spec.slot >= 0 ? SetOf(CellKind::kFloat) : 0);
    case ColumnKind::kAnyIds:
      return kFids | SetOf(CellKind::kInt64) | (format == SampleFormat::kInstance ? SetOf(CellKind::kFidV2Lists) : 0);
    case ColumnKind::kInts:
    case ColumnKind::kDenseInts: return SetOf(CellKind::kInt64);
    case ColumnKind::kNestedIds: return SetOf(CellKind::kFidV1Lists) | SetOf(CellKind::kFidV2Lists);
    case ColumnKind::kFirstBytes: return SetOf(CellKind::kBytes);
    default: return kReals;
  }
}

void CheckSpec(const ColumnSpec& spec) {
  const std::string subject = "column '" + spec.name + "': ";
  if (spec.width < 1 || spec.width > kLargestWidth) {
    throw Error(Code::kInvalidArgument, subject + "width must be from 1 to " + std::to_string(kLargestWidth) +
                                            ", got " + std::to_string(spec.width));
  }
  if (spec.slot < -1 || spec.slot >= kNumSlotsV2) {
    throw Error(Code::kInvalidArgument, subject + "slot must be from 0 to " + std::to_string(kNumSlotsV2 - 1) +
                                            ", got " + std::to_string(spec.slot));
  }
}

}  // namespace

const char* NameOf(CellKind kind) {
  static constexpr const char* kNames[] = {"nothing",      "fid_v1_list",  "fid_v2_list", "float_list",
                                           "double_list",  "int64_list",   "int32 list",  "bytes_list",
                                           "fid_v1_lists", "fid_v2_lists", "float_lists", "double_lists",
                                           "int64_lists",  "bytes_lists",  "a number",    "a text"};
  return kNames[static_cast<uint32_t>(kind)];
}

const LineIdField* FindLineIdField(std::string_view name) {
  const auto* found = std::ranges::find_if(kLineIdFields, [&](const LineIdField& field) { return field.name == name; });
  return found == std::end(kLineIdFields) ? nullptr : found;
}

std::vector<std::string> LineIdFieldNames() {
  std::vector<std::string> names;
  for (const LineIdField& field : kLineIdFields) names.emplace_back(field.name);
  return names;
}

Schema::Schema(SampleFormat format, const std::vector<ColumnSpec>& columns) : format_(format) {
  slot_sources_.fill(-1);
  std::set<std::string_view> names;
  for (const ColumnSpec& spec : columns) {
    CheckSpec(spec);
    if (!names.insert(spec.name).second) {
      throw Error(Code::kInvalidArgument, "column '" + spec.name + "' is requested twice");
    }
    AddColumn(spec);
  }
}

int Schema::FindNamed(std::string_view name) const {
  const auto found = named_.find(std::string(name));
  return found == named_.end() ? -1 : found->second;
}

int Schema::AddSource(std::string name, CellKinds accepted) {
  sources_.push_back({std::move(name), accepted});
  return static_cast<int>(sources_.size()) - 1;
}

int Schema::AddNamed(const std::string& name, CellKinds accepted) {
  if (named_.contains(name)) {
    throw Error(Code::kInvalidArgument, "feature '" + name + "' is requested twice");
  }
  return named_[name] = AddSource(name, accepted);
}

void Schema::AddColumn(const ColumnSpec& spec) {
  Column column;
  column.spec = spec;
  const CellKinds accepted = AcceptedBy(spec, format_);
  if (spec.kind == ColumnKind::kLabel) {
    column.source = label_ = AddSource("label", accepted);
    column.named_source = AddNamed(format_ == SampleFormat::kTfExample ? spec.name : "__LABEL__",
                                   accepted | (format_ == SampleFormat::kTfExample ? SetOf(CellKind::kInt64) : 0));
  } else if (spec.kind == ColumnKind::kWeight) {
    column.source = weight_ = AddSource("instance_weight", accepted);
    column.named_source = AddNamed(format_ == SampleFormat::kTfExample ? spec.name : "instance_weight", accepted);
  } else if (spec.kind == ColumnKind::kLineId) {
    AddLineId(&column);
  } else {
    column.source = AddNamed(spec.name, accepted);
    uint32_t slot = 0;
    const std::string_view digits = std::string_view(spec.name).substr(std::min(spec.name.size(), kSlotPrefix.size()));
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), slot);
    const bool is_number = error == std::errc() && end == digits.data() + digits.size();
    if (format_ == SampleFormat::kInstance && spec.name.starts_with(kSlotPrefix) && is_number &&
        slot < slot_sources_.size()) {
      slot_sources_[slot] = column.source;
    }
  }
  columns_.push_back(std::move(column));
}

void Schema::AddLineId(Column* column) {
  const LineIdField* field = FindLineIdField(column->spec.name);
  if (field == nullptr) {
    std::string known;
    for (const std::string& name : LineIdFieldNames()) known += (known.empty() ? "" : ", ") + name;
    throw Error(Code::kInvalidArgument, "LineId has no field '" + column->spec.name + "'; known are " + known);
  }
  if (format_ == SampleFormat::kTfExample) {
    throw Error(Code::kInvalidArgument, "tf.train.Example has no LineId, and so no field '" + column->spec.name + "'");
  }
  column->line_field = field;
  column->source = AddSource(field->name, 0);
  line_sources_[field->number] = {column->source, field};
  if (line_id_feature_ < 0 && format_ != SampleFormat::kInstance) {
    line_id_feature_ = AddNamed("__LINE_ID__", SetOf(CellKind::kBytes));
  }
}

}  // namespace monolith
