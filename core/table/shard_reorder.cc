#include "table/shard_reorder.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "table/first_seen.h"
#include "table/id_kernels.h"

namespace monolith {
namespace {

using std::to_string;

// Row `row` of a ragged batch.
IdSpan RowOf(IdSpan values, IdSpan splits, size_t row) {
  return values.subspan(static_cast<size_t>(splits[row]), static_cast<size_t>(splits[row + 1] - splits[row]));
}

// The second half of ReorderFused: orders the distinct ids by their (shard, input) pair and assigns offsets to their
// rows.
FusedReorder LayOut(IdSpan distinct, IdSpan pairs, IdSpan inverse, int64_t num_shards, IdSpan dims) {
  const size_t num_inputs = dims.size();
  Grouping grouping = GroupUnchecked(pairs, static_cast<size_t>(num_shards) * num_inputs);
  FusedReorder fused;
  std::vector<int64_t> offset_of_distinct(distinct.size());
  int64_t offset = 0;
  for (const int64_t number : grouping.positions) {
    const auto at = static_cast<size_t>(number);
    fused.ids.push_back(distinct[at]);
    offset_of_distinct[at] = offset;
    offset += dims[static_cast<size_t>(pairs[at]) % num_inputs];
  }
  for (const int64_t number : inverse) fused.offsets.push_back(offset_of_distinct[static_cast<size_t>(number)]);
  fused.shard_sizes.resize(static_cast<size_t>(num_shards));
  fused.pair_sizes = std::move(grouping.sizes);
  for (size_t pair = 0; pair < fused.pair_sizes.size(); ++pair) {
    fused.shard_sizes[pair / num_inputs] += fused.pair_sizes[pair];
  }
  return fused;
}

// Checks everything that FillByOffsets relies on, before the first write.
void CheckFill(IdSpan positions, IdSpan position_splits, size_t num_values, IdSpan offsets, IdSpan offset_splits,
               IdSpan dims, size_t num_floats) {
  CheckDims(dims);
  CheckRagged(position_splits, positions.size());
  CheckRagged(offset_splits, offsets.size());
  if (position_splits.size() - 1 != dims.size()) {
    RefuseIds("pos must have a row for each of the " + to_string(dims.size()) + " dims, got " +
              to_string(position_splits.size() - 1));
  }
  const size_t num_keys = offset_splits.size() - 1;
  uint64_t expected = 0;
  for (size_t row = 0; row < dims.size(); ++row) {
    for (const int64_t key : RowOf(positions, position_splits, row)) {
      if (key < 0 || static_cast<uint64_t>(key) >= num_keys) {
        RefuseIds("pos is bigger than offset size. " + to_string(key) + " v.s. " + to_string(num_keys));
      }
      for (const int64_t offset : RowOf(offsets, offset_splits, static_cast<size_t>(key))) {
        if (offset < 0 || offset > static_cast<int64_t>(num_floats) - dims[row]) {
          RefuseIds("an offset must leave room for " + to_string(dims[row]) + " floats in a buffer of " +
                    to_string(num_floats) + ", got " + to_string(offset));
        }
      }
      expected += static_cast<uint64_t>(dims[row]);
    }
  }
  if (expected != num_values) {
    RefuseIds("Value size doesn't match expected size. Expected " + to_string(expected) + " floats, got " +
              to_string(num_values));
  }
}

}  // namespace

ShardedIds ReorderByShard(IdSpan ids, IdSpan shard_of_each, int64_t num_shards) {
  CheckCount(ids.size());
  if (ids.size() != shard_of_each.size()) {
    RefuseIds("ids and shard_ids must be of one length, got " + to_string(ids.size()) + " and " +
              to_string(shard_of_each.size()));
  }
  CheckGroups(num_shards, "number of shards");
  CheckIndices(shard_of_each, num_shards);
  FirstSeen seen;
  std::vector<int64_t> shards;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (seen.NumberOf(ids[i]) == shards.size()) shards.push_back(shard_of_each[i]);
  }
  Grouping grouping = GroupUnchecked(shards, static_cast<size_t>(num_shards));
  auto begin = grouping.positions.begin();
  for (const int64_t size : grouping.sizes) {
    std::reverse(begin, begin + size);
    begin += size;
  }
  ShardedIds sharded;
  for (const int64_t number : grouping.positions) sharded.ids.push_back(seen.ids()[static_cast<size_t>(number)]);
  sharded.sizes = std::move(grouping.sizes);
  return sharded;
}

FusedReorder ReorderFused(IdSpan ids, IdSpan lengths, int64_t num_shards, IdSpan dims, bool spare_first_shard) {
  CheckCount(ids.size());
  CheckGroups(num_shards, "number of shards");
  CheckDims(dims);
  CheckLengths(lengths, ids.size());
  if (dims.size() != lengths.size()) {
    RefuseIds("dims must have a number for each of the " + to_string(lengths.size()) + " inputs, got " +
              to_string(dims.size()));
  }
  const int64_t first_shard = spare_first_shard && num_shards > 4 ? 1 : 0;
  const auto num_inputs = static_cast<int64_t>(lengths.size());
  std::vector<int64_t> distinct;
  std::vector<int64_t> pairs;    // shard * num_inputs + input of each distinct id
  std::vector<int64_t> inverse;  // input position -> distinct
  inverse.reserve(ids.size());
  for (int64_t input = 0; input < num_inputs; ++input) {
    const size_t base = distinct.size();
    FirstSeen seen;
    for (const int64_t id : ids.subspan(inverse.size(), static_cast<size_t>(lengths[static_cast<size_t>(input)]))) {
      inverse.push_back(static_cast<int64_t>(base + seen.NumberOf(id)));
    }
    for (const int64_t id : seen.ids()) {
      pairs.push_back((FloorMod(id, num_shards - first_shard) + first_shard) * num_inputs + input);
    }
    distinct.insert(distinct.end(), seen.ids().begin(), seen.ids().end());
  }
  return LayOut(distinct, pairs, inverse, num_shards, dims);
}

UniqueKeys UniqueWithOffsets(IdSpan keys, IdSpan row_splits, IdSpan dims) {
  CheckCount(keys.size());
  CheckDims(dims);
  CheckRagged(row_splits, keys.size());
  if (row_splits.size() - 1 != dims.size()) {
    RefuseIds("RaggedKey should have " + to_string(dims.size()) + " but got " + to_string(row_splits.size() - 1));
  }
  UniqueKeys unique;
  unique.row_splits.push_back(0);
  std::vector<int64_t> key_of_each;  // occurrence -> index in unique.keys
  std::vector<int64_t> offset_of_each;
  for (size_t row = 0; row < dims.size(); ++row) {
    const auto base = static_cast<int64_t>(unique.keys.size());
    FirstSeen seen;
    for (const int64_t key : RowOf(keys, row_splits, row)) {
      key_of_each.push_back(base + seen.NumberOf(key));
      offset_of_each.push_back(unique.num_floats);
      unique.num_floats += dims[row];
    }
    unique.keys.insert(unique.keys.end(), seen.ids().begin(), seen.ids().end());
    unique.row_splits.push_back(static_cast<int64_t>(unique.keys.size()));
  }
  const Grouping occurrences = GroupUnchecked(key_of_each, unique.keys.size());
  unique.offset_splits = OffsetsOf(occurrences.sizes);
  for (const int64_t i : occurrences.positions) unique.offsets.push_back(offset_of_each[static_cast<size_t>(i)]);
  return unique;
}

void FillByOffsets(IdSpan positions, IdSpan position_splits, std::span<const float> values, IdSpan offsets,
                   IdSpan offset_splits, IdSpan dims, std::span<float> buffer) {
  // The caller may write to them concurrently: copies ensure that the checked values are used.
  const auto own = [](IdSpan span) { return std::vector<int64_t>(span.begin(), span.end()); };
  const std::vector<int64_t> keys = own(positions), key_splits = own(position_splits), places = own(offsets),
                             place_splits = own(offset_splits), widths = own(dims);
  CheckFill(keys, key_splits, values.size(), places, place_splits, widths, buffer.size());
  const float* value = values.data();
  for (size_t row = 0; row < widths.size(); ++row) {
    const auto width = static_cast<size_t>(widths[row]);
    for (const int64_t key : RowOf(keys, key_splits, row)) {
      for (const int64_t place : RowOf(places, place_splits, static_cast<size_t>(key))) {
        std::memcpy(buffer.data() + place, value, width * sizeof(float));
      }
      value += width;
    }
  }
}

}  // namespace monolith
