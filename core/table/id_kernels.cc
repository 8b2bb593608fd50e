#include "table/id_kernels.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/hash.h"
#include "table/first_seen.h"

namespace monolith {

using std::to_string;

std::vector<int64_t> OffsetsOf(IdSpan sizes) {
  std::vector<int64_t> offsets(sizes.size() + 1, 0);
  for (size_t i = 0; i < sizes.size(); ++i) offsets[i + 1] = offsets[i] + sizes[i];
  return offsets;
}

Grouping GroupUnchecked(IdSpan group_of_each, size_t num_groups) {
  Grouping grouping{std::vector<int64_t>(group_of_each.size()), std::vector<int64_t>(num_groups)};
  for (const int64_t group : group_of_each) ++grouping.sizes[static_cast<size_t>(group)];
  std::vector<int64_t> next = OffsetsOf(grouping.sizes);
  for (size_t i = 0; i < group_of_each.size(); ++i) {
    const int64_t place = next[static_cast<size_t>(group_of_each[i])]++;
    grouping.positions[static_cast<size_t>(place)] = static_cast<int64_t>(i);
  }
  return grouping;
}

UniqueIds Unique(IdSpan ids) {
  CheckCount(ids.size());
  UniqueIds unique;
  unique.inverse.resize(ids.size());
  FirstSeen seen;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t number = seen.NumberOf(ids[i]);
    if (number == unique.counts.size()) unique.counts.push_back(0);
    ++unique.counts[number];
    unique.inverse[i] = static_cast<int32_t>(number);
  }
  unique.ids = std::move(seen.ids());
  return unique;
}

std::vector<int64_t> RowIds(IdSpan row_splits) {
  const std::vector<int64_t> own(row_splits.begin(), row_splits.end());  // the caller may write to them
  CheckRowSplits(own, "");
  CheckCount(static_cast<uint64_t>(own.back()));
  std::vector<int64_t> rows(static_cast<size_t>(own.back()));
  for (size_t row = 0; row + 1 < own.size(); ++row) {
    std::fill(rows.begin() + own[row], rows.begin() + own[row + 1], static_cast<int64_t>(row));
  }
  return rows;
}

Grouping GroupByIndex(IdSpan group_of_each, int64_t num_groups) {
  CheckGroups(num_groups, "number of groups");
  const std::vector<int64_t> own(group_of_each.begin(), group_of_each.end());  // the caller may write to them
  CheckIndices(own, num_groups);
  return GroupUnchecked(own, static_cast<size_t>(num_groups));
}

PartitionedIds Partition(IdSpan ids, int64_t num_partitions, PartitionRule rule) {
  CheckGroups(num_partitions, "num_partitions");
  if (rule == PartitionRule::kBucket && num_partitions > kNumBuckets) {
    RefuseIds("num_partitions must be at most " + to_string(kNumBuckets) + " by the bucket rule, got " +
              to_string(num_partitions));
  }
  std::vector<int64_t> owners(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    owners[i] = rule == PartitionRule::kMod ? FloorMod(ids[i], num_partitions)
                                            : int64_t{BucketOf(ids[i])} * num_partitions / kNumBuckets;
  }
  Grouping grouping = GroupUnchecked(owners, static_cast<size_t>(num_partitions));
  PartitionedIds parts{std::move(owners), std::move(grouping.sizes), std::move(grouping.positions)};
  for (size_t k = 0; k < ids.size(); ++k) parts.ids[k] = ids[static_cast<size_t>(parts.positions[k])];
  return parts;
}

RaggedSplit SplitRagged(IdSpan part_of_each, IdSpan values, IdSpan row_splits, int64_t num_parts) {
  if (part_of_each.size() != values.size()) {
    RefuseIds("Ragged tensor values size must match indices size. Got " + to_string(values.size()) + " v.s. " +
              to_string(part_of_each.size()));
  }
  CheckRagged(row_splits, values.size());
  Grouping grouping = GroupByIndex(part_of_each, num_parts);
  RaggedSplit split{std::vector<int64_t>(values.size()), {}, std::move(grouping.positions), std::move(grouping.sizes)};
  for (size_t k = 0; k < values.size(); ++k) split.values[k] = values[static_cast<size_t>(split.positions[k])];
  split.row_splits.resize(static_cast<size_t>(num_parts) * row_splits.size());
  // Positions ascend inside a part, so one pass along the input's row splits counts the values of every row.
  auto position = split.positions.begin();
  auto out = split.row_splits.begin();
  for (const int64_t size : split.sizes) {
    const auto begin = position;
    const auto end = begin + size;
    for (const int64_t row_end : row_splits) {
      while (position != end && *position < row_end) ++position;
      *out++ = position - begin;
    }
  }
  return split;
}

std::vector<int64_t> NormalizeMergedSplit(IdSpan row_splits, IdSpan sizes) {
  std::vector<int64_t> merged = {0};
  size_t begin = 0;
  for (const int64_t size : sizes) {
    if (size < 1 || static_cast<size_t>(size) > row_splits.size() - begin) {
      RefuseIds("sizes must be > 0 and sum up to the length of row_split " + to_string(row_splits.size()) + ", got " +
                to_string(size) + " with " + to_string(row_splits.size() - begin) + " left");
    }
    const IdSpan part = row_splits.subspan(begin, static_cast<size_t>(size));
    CheckRowSplits(part, "row_split: ");
    const int64_t shift = merged.back();
    if (part.back() > std::numeric_limits<int64_t>::max() - shift) {
      RefuseIds("row_split: the merged rows must hold fewer than 2^63 values, got " + to_string(shift) + " and " +
                to_string(part.back()) + " more");
    }
    for (const int64_t split : part.subspan(1)) merged.push_back(split + shift);
    begin += part.size();
  }
  if (begin != row_splits.size()) {
    RefuseIds("sizes must sum up to the length of row_split " + to_string(row_splits.size()) + ", got " +
              to_string(begin));
  }
  return merged;
}

std::vector<int64_t> FindIds(IdSpan ids, IdSpan wanted) {
  CheckCount(ids.size());
  FirstSeen seen;
  std::vector<int64_t> places;  // indices of the distinct ids
  for (size_t i = 0; i < ids.size(); ++i) {
    if (seen.NumberOf(ids[i]) == places.size()) places.push_back(static_cast<int64_t>(i));
  }
  std::vector<int64_t> found;
  found.reserve(wanted.size());
  for (const int64_t id : wanted) {
    const uint32_t number = seen.Find(id);
    if (number == FirstSeen::kAbsent) RefuseIds("Unable to map id " + to_string(id));
    found.push_back(places[number]);
  }
  return found;
}

}  // namespace monolith
