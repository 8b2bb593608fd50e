#include "table/id_checks.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace monolith {

using std::to_string;

void RefuseIds(const std::string& message) { throw Error(Code::kInvalidArgument, message); }

void CheckCount(uint64_t count) {
  if (count > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
    RefuseIds("at most 2147483647 ids fit one call, got " + to_string(count) + "; split the batch");
  }
}

void CheckGroups(int64_t count, const char* name) {
  if (count < 1 || count > kMaxGroups) {
    RefuseIds(std::string(name) + " must be in 1.." + to_string(kMaxGroups) + ", got " + to_string(count));
  }
}

void CheckIndices(IdSpan indices, int64_t limit) {
  for (const int64_t index : indices) {
    if (index < 0 || index >= limit) {
      RefuseIds("indices must be in 0.." + to_string(limit - 1) + ", got " + to_string(index));
    }
  }
}

void CheckRowSplits(IdSpan splits, const std::string& subject) {
  if (splits.empty()) RefuseIds(subject + "row_splits must hold at least one number, got none");
  if (splits[0] != 0) RefuseIds(subject + "row_splits must start with 0, got " + to_string(splits[0]));
  for (size_t i = 1; i < splits.size(); ++i) {
    if (splits[i] < splits[i - 1]) {
      RefuseIds(subject + "row_splits must never decrease, got " + to_string(splits[i]) + " after " +
                to_string(splits[i - 1]) + " at " + to_string(i));
    }
  }
}

void CheckRagged(IdSpan splits, size_t num_values) {
  const std::string subject = "The input ragged tensor is invalid. ";
  CheckRowSplits(splits, subject);
  if (splits.back() != static_cast<int64_t>(num_values)) {
    RefuseIds(subject + "row_splits must end with the number of values " + to_string(num_values) + ", got " +
              to_string(splits.back()));
  }
}

void CheckDims(IdSpan dims) {
  for (const int64_t dim : dims) {
    if (dim < 1 || dim > std::numeric_limits<int32_t>::max()) {
      RefuseIds("dims must be in 1..2147483647, got " + to_string(dim));
    }
  }
}

void CheckSize(const char* what, size_t got, int64_t expected) {
  if (static_cast<int64_t>(got) != expected) {
    RefuseIds(std::string(what) + " must have " + to_string(expected) + " elements, got " + to_string(got));
  }
}

void CheckSplits(const char* what, IdSpan splits, size_t num_ids) {
  if (splits.empty() || splits.front() != 0 || splits.back() != static_cast<int64_t>(num_ids) ||
      !std::is_sorted(splits.begin(), splits.end())) {
    RefuseIds(std::string(what) + " must begin with 0, not decrease and end with the number of ids (" +
              to_string(num_ids) + ")");
  }
}

void CheckPlaces(std::span<const int32_t> inverse, int64_t num_unique) {
  uint32_t highest = 0;  // a negative index becomes a very high one; without a branch the loop is vectorised
  for (const int32_t place : inverse) highest = std::max(highest, static_cast<uint32_t>(place));
  if (!inverse.empty() && highest >= num_unique) {
    RefuseIds("inverse points to " + std::to_string(static_cast<int32_t>(highest)) + ", outside of the plan");
  }
}

void CheckLengths(IdSpan lengths, size_t total) {
  uint64_t sum = 0;
  for (const int64_t length : lengths) {
    if (length < 0 || static_cast<uint64_t>(length) > total - sum) {
      RefuseIds("lengths must be >= 0 and sum up to " + to_string(total) + " ids, got " + to_string(length) + " with " +
                to_string(total - sum) + " left");
    }
    sum += static_cast<uint64_t>(length);
  }
  if (sum != total) RefuseIds("lengths must sum up to " + to_string(total) + " ids, got " + to_string(sum));
}

}  // namespace monolith
