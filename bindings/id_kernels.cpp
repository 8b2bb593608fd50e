// Kernels over batches of ids. Each takes int64 arrays and returns a tuple of arrays in the order of the core's struct.
#include "table/id_kernels.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "memory/buffer.h"
#include "table/shard_reorder.h"
#include "table/slot_ids.h"
#include "table/slot_keys.h"
#include "table/time_bound.h"
#include "vector_array.h"

namespace nb = nanobind;

namespace monolith {
namespace {

using BucketArray = nb::ndarray<const uint16_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatBuffer = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename... T>
std::tuple<VectorArray<T>...> ArraysOf(std::vector<T>&&... values) {
  return {ArrayOf(std::move(values))...};
}

void BindTimes(nb::module_& m) {
  m.attr("MAX_TIME_STEP") = kMaxTimeStep;
  // Returns None if no time is far ahead.
  m.def(
      "bound_times",
      [](const IdArray& times, int64_t clock) -> std::optional<std::tuple<VectorArray<int64_t>, int64_t>> {
        std::optional<BoundedTimes> bounded = WithoutGil([&] { return BoundTimes(SpanOf(times), clock); });
        if (!bounded) return std::nullopt;
        return std::tuple(ArrayOf(std::move(bounded->times)), bounded->num_ahead);
      },
      nb::arg("times").noconvert(), nb::arg("clock"));
}

void BindGrouping(nb::module_& m) {
  m.def(
      "unique",
      [](const IdArray& ids) {
        UniqueIds unique = WithoutGil([&] { return Unique(SpanOf(ids)); });
        return ArraysOf(std::move(unique.ids), std::move(unique.inverse), std::move(unique.counts));
      },
      nb::arg("ids").noconvert());
  m.def(
      "row_ids",
      [](const IdArray& row_splits) { return ArrayOf(WithoutGil([&] { return RowIds(SpanOf(row_splits)); })); },
      nb::arg("row_splits").noconvert());
  m.def(
      "group_by_index",
      [](const IdArray& indices, int64_t num_groups) {
        Grouping grouping = WithoutGil([&] { return GroupByIndex(SpanOf(indices), num_groups); });
        return ArraysOf(std::move(grouping.positions), std::move(grouping.sizes));
      },
      nb::arg("indices").noconvert(), nb::arg("num_groups"));
  m.def(
      "partition",
      [](const IdArray& ids, int64_t num_partitions, bool by_bucket) {
        const PartitionRule rule = by_bucket ? PartitionRule::kBucket : PartitionRule::kMod;
        PartitionedIds parts = WithoutGil([&] { return Partition(SpanOf(ids), num_partitions, rule); });
        return ArraysOf(std::move(parts.ids), std::move(parts.sizes), std::move(parts.positions));
      },
      nb::arg("ids").noconvert(), nb::arg("num_partitions"), nb::arg("by_bucket"));
  m.def(
      "find_ids",
      [](const IdArray& ids, const IdArray& wanted) {
        return ArrayOf(WithoutGil([&] { return FindIds(SpanOf(ids), SpanOf(wanted)); }));
      },
      nb::arg("ids").noconvert(), nb::arg("wanted").noconvert());
}

void BindRagged(nb::module_& m) {
  m.def(
      "split_ragged",
      [](const IdArray& indices, const IdArray& values, const IdArray& row_splits, int64_t num_parts) {
        RaggedSplit split =
            WithoutGil([&] { return SplitRagged(SpanOf(indices), SpanOf(values), SpanOf(row_splits), num_parts); });
        return ArraysOf(std::move(split.values), std::move(split.row_splits), std::move(split.positions),
                        std::move(split.sizes));
      },
      nb::arg("indices").noconvert(), nb::arg("values").noconvert(), nb::arg("row_splits").noconvert(),
      nb::arg("num_parts"));
  m.def(
      "normalize_merged_split",
      [](const IdArray& row_split, const IdArray& sizes) {
        return ArrayOf(WithoutGil([&] { return NormalizeMergedSplit(SpanOf(row_split), SpanOf(sizes)); }));
      },
      nb::arg("row_split").noconvert(), nb::arg("sizes").noconvert());
}

void BindReorder(nb::module_& m) {
  m.def(
      "reorder_by_shard",
      [](const IdArray& ids, const IdArray& shard_ids, int64_t num_shards) {
        ShardedIds sharded = WithoutGil([&] { return ReorderByShard(SpanOf(ids), SpanOf(shard_ids), num_shards); });
        return ArraysOf(std::move(sharded.ids), std::move(sharded.sizes));
      },
      nb::arg("ids").noconvert(), nb::arg("shard_ids").noconvert(), nb::arg("num_shards"));
  m.def(
      "reorder_fused",
      [](const IdArray& ids, const IdArray& lengths, int64_t num_shards, const IdArray& dims, bool spare_first_shard) {
        FusedReorder fused = WithoutGil(
            [&] { return ReorderFused(SpanOf(ids), SpanOf(lengths), num_shards, SpanOf(dims), spare_first_shard); });
        return ArraysOf(std::move(fused.ids), std::move(fused.shard_sizes), std::move(fused.pair_sizes),
                        std::move(fused.offsets));
      },
      nb::arg("ids").noconvert(), nb::arg("lengths").noconvert(), nb::arg("num_shards"), nb::arg("dims").noconvert(),
      nb::arg("spare_first_shard"));
}

void BindOffsets(nb::module_& m) {
  m.def(
      "unique_with_offsets",
      [](const IdArray& keys, const IdArray& row_splits, const IdArray& dims) {
        UniqueKeys unique =
            WithoutGil([&] { return UniqueWithOffsets(SpanOf(keys), SpanOf(row_splits), SpanOf(dims)); });
        return std::tuple_cat(ArraysOf(std::move(unique.keys), std::move(unique.row_splits), std::move(unique.offsets),
                                       std::move(unique.offset_splits)),
                              std::tuple(unique.num_floats));
      },
      nb::arg("keys").noconvert(), nb::arg("row_splits").noconvert(), nb::arg("dims").noconvert());
  m.def(
      "fill_by_offsets",
      [](const IdArray& positions, const IdArray& position_splits, const FloatArray& values, const IdArray& offsets,
         const IdArray& offset_splits, const IdArray& dims, const FloatBuffer& buffer) {
        const std::span<const float> source(values.data(), values.size());
        const std::span<float> target(buffer.data(), buffer.size());
        WithoutGil([&] {
          FillByOffsets(SpanOf(positions), SpanOf(position_splits), source, SpanOf(offsets), SpanOf(offset_splits),
                        SpanOf(dims), target);
        });
      },
      nb::arg("positions").noconvert(), nb::arg("position_splits").noconvert(), nb::arg("values").noconvert(),
      nb::arg("offsets").noconvert(), nb::arg("offset_splits").noconvert(), nb::arg("dims").noconvert(),
      nb::arg("buffer").noconvert());
}

// Returns memory of an earlier batch, as an array that recycles it.
template <typename T>
std::pair<T*, VectorArray<T>> NewArray(size_t count) {
  auto* buffer = new Buffer<T>(count);
  const nb::capsule owner(buffer, [](void* p) noexcept { delete static_cast<Buffer<T>*>(p); });
  return {buffer->data(), VectorArray<T>(buffer->data(), {count}, owner)};
}

// Returns the keys of all slots and their buckets, and the first slot whose ids do not fit, or -1. Slots are passed as
// addresses and sizes of int64 arrays that the caller keeps: views of 26 tensors would take longer to make than the ids
// to pack.
std::tuple<VectorArray<int64_t>, VectorArray<uint16_t>, int> PackedIdsOf(const std::vector<uintptr_t>& addresses,
                                                                         const IdArray& sizes, const IdArray& taken,
                                                                         const IdArray& given, const IdArray& forbidden,
                                                                         const IdArray& wide) {
  const size_t slots = addresses.size();
  for (const IdArray* each : {&sizes, &taken, &given, &forbidden, &wide}) {
    if (each->size() != slots) {
      throw nb::value_error("sizes, taken, given, forbidden and wide must have one entry per slot");
    }
  }
  std::vector<std::span<const int64_t>> ids;
  std::vector<SlotBits> bits;
  size_t count = 0;
  for (size_t slot = 0; slot < slots; ++slot) {
    const int64_t size = sizes.data()[slot];
    if (size < 0 || (size > 0 && addresses[slot] == 0))
      throw nb::value_error("a slot has a negative size, or no address");
    ids.emplace_back(reinterpret_cast<const int64_t*>(addresses[slot]), static_cast<size_t>(size));
    bits.push_back({static_cast<uint64_t>(taken.data()[slot]), static_cast<uint64_t>(given.data()[slot]),
                    static_cast<uint64_t>(forbidden.data()[slot]), static_cast<uint64_t>(wide.data()[slot])});
    count += static_cast<size_t>(size);
  }
  const auto [keys, key_array] = NewArray<int64_t>(count);
  const auto [buckets, bucket_array] = NewArray<uint16_t>(count);
  const int bad = WithoutGil([&, keys = keys, buckets = buckets] { return PackSlotIds(ids, bits, keys, buckets); });
  return {key_array, bucket_array, bad};
}

// Returns the ids of keys inside their slots (table/slot_keys.h).
VectorArray<int64_t> IdsOfKeys(const IdArray& keys, const BucketArray& buckets) {
  if (buckets.size() != keys.size()) throw nb::value_error("keys and buckets must have one length");
  std::vector<int64_t> ids(keys.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = IdOfSlotKey(buckets.data()[i] % kNumBuckets, keys.data()[i]);
  return ArrayOf(std::move(ids));
}

void BindSlots(nb::module_& m) {
  m.def("pack_slot_ids", &PackedIdsOf, nb::arg("addresses"), nb::arg("sizes").noconvert(), nb::arg("taken").noconvert(),
        nb::arg("given").noconvert(), nb::arg("forbidden").noconvert(), nb::arg("wide").noconvert());
  m.def("ids_of_keys", &IdsOfKeys, nb::arg("keys").noconvert(), nb::arg("buckets").noconvert());
}

}  // namespace

void BindIdKernels(nb::module_& m) {
  BindTimes(m);
  BindGrouping(m);
  BindRagged(m);
  BindReorder(m);
  BindOffsets(m);
  BindSlots(m);
}

}  // namespace monolith
