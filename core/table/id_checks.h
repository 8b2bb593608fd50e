// Checks of the input of calls that take batches, made before anything is changed. Each throws Error(kInvalidArgument)
// that names the subject, the expected value and the value received. Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace monolith {

using IdSpan = std::span<const int64_t>;

// A larger number of partitions, shards or parts is treated as a mistake.
inline constexpr int64_t kMaxGroups = 1 << 20;

[[noreturn]] void RefuseIds(const std::string& message);

// Requires at most 2^31 - 1 ids: positions in a batch are int32 elsewhere.
void CheckCount(uint64_t count);
// Requires a number of groups in 1..kMaxGroups.
void CheckGroups(int64_t count, const char* name);
// Requires every index in 0..limit-1.
void CheckIndices(IdSpan indices, int64_t limit);
// Requires at least one number, from 0 on, never decreasing. The message begins with `subject`.
void CheckRowSplits(IdSpan splits, const std::string& subject);
// Requires row splits that end with this number of values.
void CheckRagged(IdSpan splits, size_t num_values);
// Requires numbers of floats of a row, each in 1..2^31-1.
void CheckDims(IdSpan dims);
// Requires an array of a call to have this number of elements.
void CheckSize(const char* what, size_t got, int64_t expected);
// Requires splits from 0 to the number of ids, never decreasing.
void CheckSplits(const char* what, IdSpan splits, size_t num_ids);
// Requires indices of the distinct ids of a plan.
void CheckPlaces(std::span<const int32_t> inverse, int64_t num_unique);
// Requires lengths of inputs that lie end to end in `total` ids.
void CheckLengths(IdSpan lengths, size_t total);

}  // namespace monolith
