// The reorderings that send the ids of a batch to shards and gather their rows in one buffer of floats.
// Pure functions: they own nothing, keep nothing, and are thread-safe.
//
// Terms as in table/id_kernels.h. Invalid input throws Error(kInvalidArgument); nothing is written then.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "table/id_checks.h"

namespace monolith {

struct ShardedIds {
  std::vector<int64_t> ids;
  std::vector<int64_t> sizes;  // of each shard
};
// Distinct ids grouped by the shard of their first occurrence; the latest comes first inside a shard.
ShardedIds ReorderByShard(IdSpan ids, IdSpan shard_of_each, int64_t num_shards);

struct FusedReorder {
  std::vector<int64_t> ids;          // shard after shard, in a shard input after input, distinct inside an input
  std::vector<int64_t> shard_sizes;  // ids of each shard
  std::vector<int64_t> pair_sizes;   // ids of (shard, input), shard-major
  std::vector<int64_t> offsets;      // of each input id: index of its row's first float when rows follow `ids`
};
// `ids` holds the inputs end to end, input i with `lengths[i]` ids whose rows have `dims[i]` floats. The shard of an id
// is id mod num_shards; with `spare_first_shard` and more than 4 shards, shard 0 stays empty and the others share its
// ids.
FusedReorder ReorderFused(IdSpan ids, IdSpan lengths, int64_t num_shards, IdSpan dims, bool spare_first_shard);

struct UniqueKeys {
  std::vector<int64_t> keys;           // distinct inside a row
  std::vector<int64_t> row_splits;     // of keys
  std::vector<int64_t> offsets;        // float offsets at which a key's value belongs, key after key
  std::vector<int64_t> offset_splits;  // of offsets, a row for each of keys
  int64_t num_floats = 0;              // length of the buffer the offsets point into
};
// The values of the keys of row i have dims[i] floats and lie in a buffer in the order of `keys`.
UniqueKeys UniqueWithOffsets(IdSpan keys, IdSpan row_splits, IdSpan dims);

// Copies values, dims[i] floats for each position of row i, to all offsets of the key at that position of
// UniqueKeys::keys.
void FillByOffsets(IdSpan positions, IdSpan position_splits, std::span<const float> values, IdSpan offsets,
                   IdSpan offset_splits, IdSpan dims, std::span<float> buffer);

}  // namespace monolith
