from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.tables import id_kernels as kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
few_ids = st.lists(st.integers(-5, 5) | st.sampled_from([INT64_MIN, INT64_MAX, -(1 << 54)]), max_size=30)
lengths = st.lists(st.integers(0, 4), max_size=8)


def joined(lists: Iterable[list[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


def splits_of(row_lengths: list[int]) -> list[int]:
    return [0, *np.cumsum(row_lengths, dtype=int).tolist()]


def bucket_of(value: int) -> int:
    """The rule of the buckets once more, in Python's integers."""
    mask = (1 << 64) - 1
    x = (value + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return (x ^ (x >> 31)) >> 54


# unique


@given(ids=few_ids)
def test_unique_keeps_first_seen_order(ids: list[int]) -> None:
    expected = list(dict.fromkeys(ids))
    result = kernels.unique(torch.tensor(ids, dtype=torch.int64))
    assert result.ids.tolist() == expected
    assert result.counts.tolist() == [ids.count(each) for each in expected]
    assert result.ids[result.inverse.long()].tolist() == ids
    assert (result.ids.dtype, result.inverse.dtype, result.counts.dtype) == (torch.int64, torch.int32, torch.int32)


def test_unique_of_a_shaped_batch_has_an_inverse_of_that_shape() -> None:
    ids = np.array([[3, 4], [4, 3], [9, 3]])
    result = kernels.unique(ids)
    assert isinstance(result.ids, np.ndarray)
    assert result.inverse.tolist() == [[0, 1], [1, 0], [2, 0]]
    np.testing.assert_array_equal(result.ids[result.inverse], ids)


def test_unique_of_a_large_batch_agrees_with_numpy() -> None:
    ids = np.random.default_rng(5).integers(-(1 << 62), 1 << 62, 3000).repeat(7)
    np.random.default_rng(6).shuffle(ids)
    result = kernels.unique(ids)
    _, first = np.unique(ids, return_index=True)
    np.testing.assert_array_equal(result.ids, ids[np.sort(first)])
    assert set(result.counts.tolist()) == {7}


# row ids


@given(row_lengths=lengths)
def test_row_ids_number_the_row_of_each_value(row_lengths: list[int]) -> None:
    expected = [row for row, length in enumerate(row_lengths) for _ in range(length)]
    assert kernels.row_ids(splits_of(row_lengths)).tolist() == expected
    assert kernels.row_ids(np.array(splits_of(row_lengths), np.int32)).tolist() == expected


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ([], "at least one number"),
        ([1, 2], "start with 0, got 1"),
        ([0, 3, 2], "never decrease, got 2 after 3 at 2"),
        ([0, INT64_MIN], "never decrease"),
        ([0, INT64_MAX], "at most 2147483647"),
        ([[0, 1]], "one dimension"),
    ],
)
def test_what_are_no_row_splits_is_refused(splits: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.row_ids(splits)


# partition


@given(ids=few_ids, count=st.integers(1, 7))
def test_partition_by_mod_groups_stably(ids: list[int], count: int) -> None:
    grouped = [[each for each in ids if each % count == owner] for owner in range(count)]
    result = kernels.partition(torch.tensor(ids, dtype=torch.int64), count, rule="mod")
    assert result.ids.tolist() == joined(grouped)
    assert result.sizes.tolist() == [len(group) for group in grouped]
    assert [ids[k] for k in result.positions.tolist()] == result.ids.tolist()


@given(ids=few_ids, count=st.sampled_from([1, 2, 3, 7, 512, 1000, 1024]))
def test_partition_by_bucket_gives_owners_complete_buckets(ids: list[int], count: int) -> None:
    result = kernels.partition(np.array(ids, np.int64), count)
    owners = [bucket_of(each) * count // 1024 for each in ids]
    expected = [each for _, each in sorted(zip(owners, ids, strict=True), key=lambda pair: pair[0])]
    assert result.ids.tolist() == expected
    assert result.sizes.tolist() == [owners.count(owner) for owner in range(count)]


def test_partition_positions_undo_the_grouping() -> None:
    ids = torch.arange(-50, 50).reshape(10, 10)
    result = kernels.partition(ids, 8)
    restored = torch.empty(100, dtype=torch.int64)
    restored[result.positions] = result.ids
    assert torch.equal(restored, ids.flatten())


@pytest.mark.parametrize("bad", [0, -1, (1 << 20) + 1, 1 << 70])
def test_partition_into_no_or_too_many_owners_is_refused(bad: int) -> None:
    with pytest.raises(ValueError, match=rf"num_partitions must be in 1\.\.1048576, got {bad}"):
        kernels.partition([1], bad)


def test_partition_refuses_other_rules_and_types() -> None:
    with pytest.raises(ValueError, match="at most 1024 by the bucket rule, got 1025"):
        kernels.partition([1], 1025)
    with pytest.raises(ValueError, match="rule must be 'bucket' or 'mod', got 'hash'"):
        kernels.partition([1], 2, rule="hash")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"num_partitions must be an int, got float 2\.0"):
        kernels.partition([1], 2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ids must be int64"):
        kernels.partition(torch.tensor([1.0]), 2)


# splits


@given(indices=st.lists(st.integers(0, 3), max_size=20))
def test_split_by_indices_keeps_the_order_of_rows(indices: list[int]) -> None:
    rows = torch.arange(len(indices) * 2.0).reshape(-1, 2)
    parts = kernels.split_by_indices(torch.tensor(indices, dtype=torch.int32), rows, 4)
    for number, part in enumerate(parts):
        assert part.tolist() == [row for row, index in zip(rows.tolist(), indices, strict=True) if index == number]
        assert part.shape[1:] == (2,)
    arrays = kernels.split_by_indices(indices, rows.numpy(), 4)
    for part, array in zip(parts, arrays, strict=True):
        np.testing.assert_array_equal(part, array)


def test_the_gradient_of_a_split_gathers_the_rows_back() -> None:
    rows = torch.zeros(4, 1, requires_grad=True)
    parts = kernels.split_by_indices([1, 0, 1, 1], rows, 3)
    (parts[0].sum() * 10 + (parts[1] * torch.tensor([[1.0], [2.0], [3.0]])).sum()).backward()
    assert rows.grad is not None
    assert rows.grad.flatten().tolist() == [1, 10, 2, 3]


def test_split_by_indices_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"indices must be in 0\.\.1, got 2"):
        kernels.split_by_indices([0, 2], torch.zeros(2), 2)
    with pytest.raises(ValueError, match="a number for each of 3 rows, got 2"):
        kernels.split_by_indices([0, 1], torch.zeros(3), 2)
    with pytest.raises(TypeError, match="tensor must be a tensor or array with rows, got list"):
        kernels.split_by_indices([0], [1.0], 2)


@given(row_lengths=lengths, data=st.data())
def test_ragged_split_agrees_with_lists(row_lengths: list[int], data: st.DataObject) -> None:
    count = sum(row_lengths)
    indices = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    splits = splits_of(row_lengths)
    parts = kernels.ragged_split_by_indices(indices, np.arange(count) * 10, splits, 3)
    for number, part in enumerate(parts):
        rows = [[i for i in range(begin, end) if indices[i] == number] for begin, end in itertools.pairwise(splits)]
        assert part.positions.tolist() == joined(rows)
        assert part.values.tolist() == [10 * i for i in joined(rows)]
        assert part.row_splits.tolist() == splits_of([len(row) for row in rows])


def test_ragged_split_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"Ragged tensor values size must match indices size\. Got 2 v\.s\. 1"):
        kernels.ragged_split_by_indices([0], [1, 2], [0, 2], 2)
    for splits in ([0, 3], [0, 2, 1, 2], [1, 2], []):
        with pytest.raises(ValueError, match=r"The input ragged tensor is invalid\."):
            kernels.ragged_split_by_indices([0, 0], [1, 2], splits, 2)


def test_merged_row_splits_become_one() -> None:
    merged = kernels.normalize_merged_split(torch.tensor([0, 2, 5, 5, 9, 0, 0, 3, 4]), torch.tensor([5, 4]))
    assert merged.tolist() == [0, 2, 5, 5, 9, 9, 12, 13]


@given(parts=st.lists(lengths, max_size=5))
def test_merging_row_splits_is_joining_rows(parts: list[list[int]]) -> None:
    split_lists = [splits_of(part) for part in parts]
    merged = kernels.normalize_merged_split(joined(split_lists), [len(each) for each in split_lists])
    assert merged.tolist() == splits_of(joined(parts))


@pytest.mark.parametrize("sizes", [[1], [3], [2, 0], [-1, 3], [INT64_MAX, INT64_MAX], []])
def test_sizes_that_do_not_sum_up_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="sum up to the length of row_split 2"):
        kernels.normalize_merged_split([0, 1], sizes)


# reordering


def test_reorder_by_indices_groups_distinct_ids_the_latest_first() -> None:
    ids = torch.tensor([0, 1, 2, 2, 3, 5])
    grouped, sizes = kernels.reorder_by_indices(ids, ids % 3, 3)
    assert grouped.tolist() == [3, 0, 1, 5, 2]
    assert sizes.tolist() == [2, 1, 2]


@given(ids=few_ids, shards=st.integers(1, 4))
def test_reorder_by_indices_agrees_with_lists(ids: list[int], shards: int) -> None:
    distinct = list(dict.fromkeys(ids))
    groups = [[each for each in reversed(distinct) if each % shards == shard] for shard in range(shards)]
    grouped, sizes = kernels.reorder_by_indices(ids, [each % shards for each in ids], shards)
    assert grouped.tolist() == joined(groups)
    assert sizes.tolist() == [len(group) for group in groups]


def test_reorder_by_indices_refuses_wrong_shards() -> None:
    with pytest.raises(ValueError, match=r"indices must be in 0\.\.1, got 2"):
        kernels.reorder_by_indices([7, 7], [0, 2], 2)
    with pytest.raises(ValueError, match="of one length, got 2 and 1"):
        kernels.reorder_by_indices([7, 7], [0], 2)


def test_fused_reorder_lays_rows_out_shard_after_shard() -> None:
    fused = kernels.fused_reorder_by_indices([[0, 1, 0], [3, 2, 3], [5, 6, 7]], 2, [1, 2, 3])
    assert fused.ids.tolist() == [0, 2, 6, 1, 3, 5, 7]
    assert fused.shard_sizes.tolist() == [3, 4]
    assert fused.pair_sizes.tolist() == [1, 1, 1, 1, 1, 2]
    assert fused.input_lengths.tolist() == [3, 3, 3]
    assert fused.offsets.tolist() == [0, 6, 0, 7, 1, 7, 9, 3, 12]


@pytest.mark.parametrize(("shards", "sizes"), [(4, [3, 3, 3, 3]), (5, [0, 3, 3, 3, 3]), (7, [0, 2, 2, 2, 2, 2, 2])])
def test_fused_reorder_spares_the_first_of_more_than_four_shards_by_default(shards: int, sizes: list[int]) -> None:
    assert kernels.fused_reorder_by_indices([range(12)], shards, [1]).shard_sizes.tolist() == sizes


@given(inputs=st.lists(few_ids, max_size=4), shards=st.integers(1, 6), spare=st.booleans(), data=st.data())
def test_fused_reorder_agrees_with_lists(
    inputs: list[list[int]], shards: int, spare: bool, data: st.DataObject
) -> None:
    dims = data.draw(st.lists(st.integers(1, 4), min_size=len(inputs), max_size=len(inputs)))

    def shard_of(value: int) -> int:
        return value % (shards - 1) + 1 if spare and shards > 4 else value % shards

    ids, pair_sizes, offset_of, offset = [], [], {}, 0
    for shard in range(shards):
        for number, input_ids in enumerate(inputs):
            group = [each for each in dict.fromkeys(input_ids) if shard_of(each) == shard]
            pair_sizes.append(len(group))
            for each in group:
                ids.append(each)
                offset_of[number, each] = offset
                offset += dims[number]
    arrays = [torch.tensor(each, dtype=torch.int64) for each in inputs]
    fused = kernels.fused_reorder_by_indices(arrays, shards, dims, spare_first_shard=spare)
    assert fused.ids.tolist() == ids
    assert fused.pair_sizes.tolist() == pair_sizes
    assert fused.shard_sizes.tolist() == [
        sum(pair_sizes[s * len(inputs) : (s + 1) * len(inputs)]) for s in range(shards)
    ]
    assert fused.offsets.tolist() == [offset_of[n, each] for n, input_ids in enumerate(inputs) for each in input_ids]


def test_fused_reorder_refuses_dims_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="a number for each of the 1 inputs, got 2"):
        kernels.fused_reorder_by_indices([[1]], 2, [1, 1])
    with pytest.raises(ValueError, match=r"dims must be in 1\.\.2147483647, got 0"):
        kernels.fused_reorder_by_indices([[1]], 2, [0])


# offsets


def test_values_reach_every_occurrence_of_their_key() -> None:
    dims = [2, 3]
    unique_keys = kernels.unique_key_with_value_and_offset([7, 8, 7, 7], [0, 3, 4], dims)
    assert unique_keys.keys.tolist() == [7, 8, 7]
    assert unique_keys.row_splits.tolist() == [0, 2, 3]
    assert unique_keys.offsets.tolist() == [0, 4, 2, 6]
    assert unique_keys.offset_splits.tolist() == [0, 2, 3, 4]
    assert unique_keys.buffer.shape == (9,)
    filled = kernels.fill_with_offset_map(
        [0, 1, 2], [0, 2, 3], torch.tensor([1.0, 2, 8, 9, 3, 4, 5]), unique_keys, dims
    )
    assert filled is unique_keys.buffer
    assert filled.tolist() == [1, 2, 8, 9, 1, 2, 3, 4, 5]


@given(rows=st.lists(few_ids, max_size=4), data=st.data())
def test_filling_by_offsets_is_expanding_the_distinct_values(rows: list[list[int]], data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.integers(1, 3), min_size=len(rows), max_size=len(rows)))
    splits = splits_of([len(row) for row in rows])
    unique_keys = kernels.unique_key_with_value_and_offset(np.array(joined(rows), np.int64), splits, dims)
    distinct = [list(dict.fromkeys(row)) for row in rows]
    assert unique_keys.keys.tolist() == joined(distinct)
    value_of = {
        (number, key): [float(100 * number + at)] * dims[number]
        for number, keys in enumerate(distinct)
        for at, key in enumerate(keys)
    }
    values = np.array(joined(value_of.values()), np.float32)
    positions = np.arange(len(unique_keys.keys))
    filled = kernels.fill_with_offset_map(positions, unique_keys.row_splits, values, unique_keys, dims)
    assert filled.tolist() == joined(value_of[number, key] for number, row in enumerate(rows) for key in row)


def test_a_refused_fill_leaves_the_buffer_as_it_was() -> None:
    unique_keys = kernels.unique_key_with_value_and_offset([7, 8, 7], [0, 3], [2])
    unique_keys.buffer.fill_(-1.0)
    refusals: list[tuple[str, tuple[Any, ...]]] = [
        (r"pos is bigger than offset size\. 2 v\.s\. 2", ([0, 2], [0, 2], torch.ones(4), unique_keys, [2])),
        (r"pos is bigger than offset size\. -1 v\.s\. 2", ([0, -1], [0, 2], torch.ones(4), unique_keys, [2])),
        (r"Value size doesn't match expected size\.", ([0, 1], [0, 2], torch.ones(3), unique_keys, [2])),
        (r"room for 3 floats", ([0, 1], [0, 2], torch.ones(6), unique_keys, [3])),
        (r"a row for each of the 2 dims", ([0], [0, 1], torch.ones(2), unique_keys, [2, 2])),
    ]
    for message, arguments in refusals:
        with pytest.raises(ValueError, match=message):
            kernels.fill_with_offset_map(*arguments)
    with pytest.raises(TypeError, match="values must be float32"):
        kernels.fill_with_offset_map([0], [0, 1], torch.ones(2, dtype=torch.float64), unique_keys, [2])
    strided = unique_keys._replace(buffer=torch.zeros(12)[::2])
    with pytest.raises(ValueError, match="buffer must be contiguous and writable"):
        kernels.fill_with_offset_map([0], [0, 1], torch.ones(2), strided, [2])
    assert unique_keys.buffer.tolist() == [-1.0] * 6


def test_keys_of_another_number_of_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="RaggedKey should have 2 but got 1"):
        kernels.unique_key_with_value_and_offset([7], [0, 1], [2, 3])


# embeddings


@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_ids_are_replaced_by_the_first_embedding_found(make: Callable[..., Any]) -> None:
    lists = [make([5, 6]), make([6, -7])]
    embeddings = [make([[1.0, 2.0], [3.0, 4.0]]), make([[5.0, 6.0], [7.0, 8.0]])]
    mapped = kernels.map_id_to_embedding(lists, embeddings, make([[6, 5], [-7, 6]]))
    assert type(mapped) is type(embeddings[0])
    assert mapped.tolist() == [[[3, 4], [1, 2]], [[7, 8], [3, 4]]]


def test_the_gradient_of_mapped_embeddings_sums_per_id() -> None:
    embeddings = [torch.zeros(2, 1, requires_grad=True), torch.zeros(1, 1, requires_grad=True)]
    mapped = kernels.map_id_to_embedding([[5, 6], [9]], embeddings, [6, 9, 6])
    (mapped * torch.tensor([[1.0], [10.0], [100.0]])).sum().backward()
    gradients = [each.grad for each in embeddings]
    assert [None if each is None else each.flatten().tolist() for each in gradients] == [[0, 101], [10]]


def test_gathering_also_returns_the_rows_used() -> None:
    rows, index = kernels.gather_embeddings_by_input([5, 6, 5], torch.eye(3), [[5], [6]])
    assert index.tolist() == [[0], [1]]
    assert rows.tolist() == [[[1, 0, 0]], [[0, 1, 0]]]
    empty, none = kernels.gather_embeddings_by_input([], np.zeros((0, 3)), [])
    assert empty.shape == (0, 3)
    assert none.shape == (0,)


def test_embeddings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="Unable to map id -6"):
        kernels.map_id_to_embedding([[5]], [torch.zeros(1, 2)], [5, -6])
    with pytest.raises(ValueError, match="See unmatched embedding dim 2 and id dim 1"):
        kernels.gather_embeddings_by_input([5], torch.zeros(2, 2), [5])
    with pytest.raises(ValueError, match=r"as many id lists as embedding lists .* got 1 and 2"):
        kernels.map_id_to_embedding([[5]], [torch.zeros(1, 2)] * 2, [5])
    with pytest.raises(ValueError, match="of one kind and dim"):
        kernels.map_id_to_embedding([[5], [6]], [torch.zeros(1, 2), torch.zeros(1, 3)], [5])
    with pytest.raises(ValueError, match="of one kind and dim"):
        kernels.map_id_to_embedding([[5], [6]], [torch.zeros(1, 2), np.zeros((1, 2))], [5])
    with pytest.raises(TypeError, match=r"embeddings must be a tensor or array \[n, D\]"):
        kernels.gather_embeddings_by_input([5], torch.zeros(1), [5])
