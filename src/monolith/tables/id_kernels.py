"""Small kernels over batches of ids: distinct ids, row numbers, grouping by owner, and exchange with shards.

Words used below::

    row_splits   row i holds the values row_splits[i] .. row_splits[i + 1] - 1; [0, 2, 2, 5]: rows of 2, 0 and 3 values
    distinct     each id once, in the order of first occurrence
    positions    positions[k] is the place in the input of the k-th output

Ids are int64 of any shape and are read in row-major order; numbers that point somewhere (indices, sizes, splits) may be
int32 too. Results are of the kind of the first argument: NumPy for NumPy, torch for tensors and lists. Where rows of
floats are moved and they are torch tensors, the result is differentiable.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.tables.arrays import as_type_of, float_array, id_array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from monolith.tables.arrays import Floats, Ids

    Indices = NDArray[np.int64]

_MAX_GROUPS = 1 << 20
"""More owners, shards or outputs than this are taken for a mistake."""


class UniqueIds(NamedTuple):
    """The distinct ids of a batch."""

    ids: Any
    """int64 [U]."""
    inverse: Any
    """int32, shape of the input: its place in `ids`."""
    counts: Any
    """int32 [U]: occurrences."""


class PartitionedIds(NamedTuple):
    """Ids grouped by owner; a group keeps the order of the input."""

    ids: Any
    """int64 [n]."""
    sizes: Any
    """int64 [num_partitions]."""
    positions: Any
    """int64 [n]: ``ids == input.flatten()[positions]``."""


class RaggedPart(NamedTuple):
    """One of the ragged batches that another was split into."""

    values: Any
    """int64 [m]."""
    row_splits: Any
    """int64 [rows + 1], as many rows as the input."""
    positions: Any
    """int64 [m]: ``values == input_values[positions]``."""


class FusedReorder(NamedTuple):
    """The ids of several inputs, ordered for the shards; S shards, M inputs."""

    ids: Any
    """int64: shard after shard, in a shard input after input, distinct inside an input."""
    shard_sizes: Any
    """int64 [S]: ids of each shard."""
    pair_sizes: Any
    """int64 [S * M]: ids of each (shard, input), shard-major."""
    input_lengths: Any
    """int64 [M]: ids of each input."""
    offsets: Any
    """int64 [sum of input_lengths]: where the row of each input id starts when the rows of `ids` lie end to end."""


class UniqueKeys(NamedTuple):
    """The distinct keys of each row, and the places in a buffer of floats where their values belong."""

    keys: Any
    """int64 [K]: row after row."""
    row_splits: Any
    """int64 [rows + 1], of `keys`."""
    offsets: Any
    """int64 [n]: key after key, the offsets in `buffer` of all its occurrences."""
    offset_splits: Any
    """int64 [K + 1], of `offsets`."""
    buffer: Any
    """float32, not initialised: what `fill_with_offset_map` writes to."""


def unique(ids: Ids) -> UniqueIds:
    """Returns the distinct ids, the index of each input id among them, and the count of each.

    >>> unique([7, 5, 7]).counts
    tensor([2, 1], dtype=torch.int32)
    """
    array = id_array(ids, "unique")
    distinct, inverse, counts = _core.unique(array.reshape(-1))
    return UniqueIds(*_hand_back_all((distinct, inverse.reshape(array.shape), counts), ids))


def row_ids(row_splits: Ids) -> Any:
    """Returns int64 [row_splits[-1]]: the row number of each value.

    >>> row_ids([0, 2, 2, 5])
    tensor([0, 0, 2, 2, 2])
    """
    return as_type_of(_core.row_ids(_indices(row_splits, "row_ids", "row_splits")), row_splits)


def partition(ids: Ids, num_partitions: int, rule: Literal["bucket", "mod"] = "bucket") -> PartitionedIds:
    """Groups ids by their owner, one of ``num_partitions``.

    Args:
        ids: To be grouped; duplicates stay.
        num_partitions: At most 1,024 by the bucket rule.
        rule: "bucket": the owner is ``bucket * num_partitions // 1024``, so owners hold complete, consecutive buckets.
            "mod": it is ``id mod num_partitions``, for negative ids too.
    """
    if rule not in {"bucket", "mod"}:
        raise InvalidArgumentError(f"partition: rule must be 'bucket' or 'mod', got {rule!r}")
    owners = _count(num_partitions, "partition", "num_partitions")
    array = id_array(ids, "partition").reshape(-1)
    return PartitionedIds(*_hand_back_all(_core.partition(array, owners, rule == "bucket"), ids))


def split_by_indices(indices: Ids, tensor: Any, num_splits: int) -> list[Any]:
    """Sends row i of ``tensor`` to output ``indices[i]``; rows keep their order inside an output.

    Args:
        indices: int [n], each in 0..num_splits-1.
        tensor: A tensor or array [n, ...] of any type; the outputs are of its kind.
        num_splits: Number of outputs; an output that gets no row has shape [0, ...].
    """
    numbers = _indices(indices, "split_by_indices", "indices")
    if not isinstance(tensor, torch.Tensor | np.ndarray) or tensor.ndim == 0:
        raise TypeError(f"split_by_indices: tensor must be a tensor or array with rows, got {type(tensor).__name__}")
    if len(tensor) != len(numbers):
        raise InvalidArgumentError(
            f"split_by_indices: indices must have a number for each of {len(tensor)} rows, got {len(numbers)}"
        )
    positions, sizes = _core.group_by_index(numbers, _count(num_splits, "split_by_indices", "num_splits"))
    if isinstance(tensor, np.ndarray):
        return np.split(tensor[positions], np.cumsum(sizes)[:-1])
    return list(torch.split(_rows_at(tensor, positions), sizes.tolist()))


def ragged_split_by_indices(indices: Ids, values: Ids, row_splits: Ids, num_splits: int) -> list[RaggedPart]:
    """Sends each value of a ragged batch to output ``indices[i]``; every output has all rows, some of them shorter.

    >>> parts = ragged_split_by_indices([0, 1, 0], [7, 8, 9], [0, 2, 3], 2)
    >>> parts[0].values, parts[0].row_splits
    (tensor([7, 9]), tensor([0, 1, 2]))
    """
    subject = "ragged_split_by_indices"
    flat, splits, positions, sizes = _core.split_ragged(
        _indices(indices, subject, "indices"),
        id_array(values, subject, "values").reshape(-1),
        _indices(row_splits, subject, "row_splits"),
        _count(num_splits, subject, "num_splits"),
    )
    ends = np.cumsum(sizes)[:-1]
    parts = zip(np.split(flat, ends), splits.reshape(num_splits, -1), np.split(positions, ends), strict=True)
    return [RaggedPart(*_hand_back_all(part, values)) for part in parts]


def normalize_merged_split(row_split: Ids, sizes: Ids) -> Any:
    """Converts the row splits of several batches, laid end to end, to row splits of the concatenated batches.

    >>> normalize_merged_split([0, 2, 5, 5, 9, 0, 0, 3, 4], [5, 4])
    tensor([ 0,  2,  5,  5,  9,  9, 12, 13])
    """
    subject = "normalize_merged_split"
    splits = _indices(row_split, subject, "row_split")
    return as_type_of(_core.normalize_merged_split(splits, _indices(sizes, subject, "sizes")), row_split)


def reorder_by_indices(ids: Ids, shard_ids: Ids, num_shards: int) -> tuple[Any, Any]:
    """Groups distinct ids by the shard of their first occurrence, the latest first inside a shard.

    Returns:
        The ids, and int64 [num_shards] how many go to each shard.

    >>> reorder_by_indices([0, 1, 2, 2, 3, 5], [0, 1, 2, 2, 0, 2], 3)
    (tensor([3, 0, 1, 5, 2]), tensor([2, 1, 2]))
    """
    subject = "reorder_by_indices"
    array = id_array(ids, subject).reshape(-1)
    shards = _indices(shard_ids, subject, "shard_ids")
    grouped, sizes = _core.reorder_by_shard(array, shards, _count(num_shards, subject, "num_shards"))
    return as_type_of(grouped, ids), as_type_of(sizes, ids)


def fused_reorder_by_indices(
    inputs: Sequence[Ids], num_shards: int, dims: Ids, *, spare_first_shard: bool = True
) -> FusedReorder:
    """Orders the distinct ids of each input for a fused lookup, and returns the offset of each input id's row in it.

    Args:
        inputs: Ids of M tables.
        num_shards: The shard of an id is ``id mod num_shards``, for negative ids too.
        dims: int [M]: floats of a row of each table.
        spare_first_shard: With more than 4 shards, leave shard 0 empty and take ``id mod (num_shards - 1) + 1``: where
            shard 0 runs on the machine of a busy coordinator.
    """
    subject = "fused_reorder_by_indices"
    arrays = [id_array(ids, subject).reshape(-1) for ids in inputs]
    lengths = np.array([len(array) for array in arrays], np.int64)
    ids, shard_sizes, pair_sizes, offsets = _core.reorder_fused(
        _joined(arrays),
        lengths,
        _count(num_shards, subject, "num_shards"),
        _indices(dims, subject, "dims"),
        bool(spare_first_shard),
    )
    like = inputs[0] if inputs else None
    return FusedReorder(*_hand_back_all((ids, shard_sizes, pair_sizes, lengths, offsets), like))


def unique_key_with_value_and_offset(keys: Ids, row_splits: Ids, dims: Ids) -> UniqueKeys:
    """Returns the distinct keys of each row, and the offsets of their values in one buffer.

    Args:
        keys: int64 [n], a ragged batch with one row for each table.
        row_splits: int [rows + 1], of ``keys``.
        dims: int [rows]: the value of a key of row i takes ``dims[i]`` floats; the buffer holds them in the order of
            ``keys``.
    """
    subject = "unique_key_with_value_and_offset"
    *arrays, num_floats = _core.unique_with_offsets(
        id_array(keys, subject, "keys").reshape(-1),
        _indices(row_splits, subject, "row_splits"),
        _indices(dims, subject, "dims"),
    )
    return UniqueKeys(*_hand_back_all((*arrays, np.empty(num_floats, np.float32)), keys))


def fill_with_offset_map(
    positions: Ids, position_splits: Ids, values: Floats, unique_keys: UniqueKeys, dims: Ids
) -> Any:
    """Copies values to all places where their keys occur.

    Args:
        positions: int64 [m]: places in ``unique_keys.keys``, a ragged batch with one row for each table.
        position_splits: int [rows + 1], of ``positions``.
        values: float32 [sum of dims over positions], one value after another in the order of ``positions``.
        unique_keys: Of `unique_key_with_value_and_offset`, for this batch; its buffer is written to.
        dims: int [rows], as given there.

    Returns:
        The buffer. A rejected call leaves it unchanged. Where values require a gradient, that of a value is the sum
        over the places it was copied to and still stands at.
    """
    subject = "fill_with_offset_map"
    places = id_array(positions, subject, "positions").reshape(-1)
    splits = _indices(position_splits, subject, "position_splits")
    offsets = _indices(unique_keys.offsets, subject, "offsets")
    offset_splits = _indices(unique_keys.offset_splits, subject, "offset_splits")
    row_dims = _indices(dims, subject, "dims")
    floats = float_array(values, tuple(np.shape(values)), subject, "values").reshape(-1)
    target = writable_floats(unique_keys.buffer, subject)

    def fill() -> None:
        _core.fill_by_offsets(places, splits, floats, offsets, offset_splits, row_dims, target)

    if not is_learnt(values, unique_keys.buffer, subject):
        fill()
        return unique_keys.buffer

    def fill_and_tell() -> torch.Tensor:
        fill()
        dims_of_places = np.repeat(row_dims, np.diff(splits))
        return sources_of_places(places, dims_of_places, offsets, offset_splits, len(target))

    return _Fill.apply(torch.as_tensor(values), unique_keys.buffer, fill_and_tell)  # type: ignore[no-untyped-call]


def map_id_to_embedding(id_lists: Sequence[Ids], embedding_lists: Sequence[Any], wanted: Ids) -> Any:
    """Replaces each wanted id by its embedding; the first occurrence of an id in the lists wins.

    Args:
        id_lists: Ids whose embeddings are given, list k with n_k of them.
        embedding_lists: Tensors or arrays [n_k, D], one for each list of ids; their kind is that of the result.
        wanted: int64 of any shape.

    Returns:
        Shape of ``wanted`` + [D].

    Raises:
        InvalidArgumentError: Lists that do not match, or ``Unable to map id x``.
    """
    subject = "map_id_to_embedding"
    if len(id_lists) != len(embedding_lists) or not id_lists:
        raise InvalidArgumentError(
            f"{subject}: as many id lists as embedding lists are needed, at least one; "
            f"got {len(id_lists)} and {len(embedding_lists)}"
        )
    arrays = [id_array(ids, subject, "id_lists").reshape(-1) for ids in id_lists]
    tables = [_embeddings(table, len(ids), subject) for ids, table in zip(arrays, embedding_lists, strict=True)]
    if len({(isinstance(table, torch.Tensor), table.shape[1]) for table in tables}) > 1:
        shapes = [f"{type(table).__name__} {tuple(table.shape)}" for table in tables]
        raise InvalidArgumentError(f"{subject}: embeddings must be of one kind and dim, got {', '.join(shapes)}")
    table = torch.cat(tables) if isinstance(tables[0], torch.Tensor) else np.concatenate(tables)
    places = id_array(wanted, subject, "wanted")
    rows = _rows_at(table, _core.find_ids(_joined(arrays), places.reshape(-1)))
    return rows.reshape((*places.shape, table.shape[1]))


def gather_embeddings_by_input(ids: Ids, embeddings: Any, wanted: Ids) -> tuple[Any, Any]:
    """Like `map_id_to_embedding` with one list.

    Returns:
        The embeddings, shape of ``wanted`` + [D], and int64 in the shape of ``wanted`` the row each was taken from.
    """
    subject = "gather_embeddings_by_input"
    array = id_array(ids, subject).reshape(-1)
    table = _embeddings(embeddings, len(array), subject)
    places = id_array(wanted, subject, "wanted")
    index = _core.find_ids(array, places.reshape(-1))
    rows = _rows_at(table, index).reshape((*places.shape, table.shape[1]))
    return rows, as_type_of(index.reshape(places.shape), table)


def _indices(values: Ids, subject: str, name: str) -> NDArray[np.int64]:
    """Returns int64 [n] of indices, sizes or splits; int32 is widened."""
    if isinstance(values, torch.Tensor) and values.dtype == torch.int32:
        values = values.to(torch.int64)
    elif isinstance(values, np.ndarray) and values.dtype == np.int32:
        values = values.astype(np.int64)
    array = id_array(values, subject, name)
    if array.ndim != 1:
        raise InvalidArgumentError(f"{subject}: {name} must have one dimension, got shape {array.shape}")
    return array


def _count(value: int, subject: str, name: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{subject}: {name} must be an int, got {type(value).__name__} {value!r}") from None
    if not 1 <= number <= _MAX_GROUPS:
        raise InvalidArgumentError(f"{subject}: {name} must be in 1..{_MAX_GROUPS}, got {number}")
    return number


def _embeddings(table: Any, num_ids: int, subject: str) -> Any:
    if not isinstance(table, torch.Tensor | np.ndarray) or table.ndim != 2:
        shape = tuple(np.shape(table))
        raise TypeError(
            f"{subject}: embeddings must be a tensor or array [n, D], got {type(table).__name__} of {shape}"
        )
    if len(table) != num_ids:
        raise InvalidArgumentError(f"{subject}: See unmatched embedding dim {len(table)} and id dim {num_ids}")
    return table


def _joined(arrays: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def _rows_at(table: Any, rows: NDArray[np.int64]) -> Any:
    return table.index_select(0, torch.from_numpy(rows)) if isinstance(table, torch.Tensor) else table[rows]


def _hand_back_all(arrays: tuple[Any, ...], like: object) -> tuple[Any, ...]:
    return tuple(as_type_of(array, like) for array in arrays)


def writable_floats(buffer: Any, subject: str) -> NDArray[np.float32]:
    """Returns the memory of the buffer itself, never a copy of it."""
    if isinstance(buffer, Tensor):
        usable = buffer.is_contiguous()
    else:
        usable = isinstance(buffer, np.ndarray) and buffer.flags.c_contiguous and buffer.flags.writeable
    if not usable or buffer.ndim != 1:
        kind = f"{type(buffer).__name__} of shape {tuple(np.shape(buffer))}"
        raise InvalidArgumentError(f"{subject}: buffer must be contiguous and writable, of one dimension, got {kind}")
    return float_array(buffer, tuple(buffer.shape), subject, "buffer")


def is_learnt(values: Any, buffer: Any, subject: str) -> bool:
    """Returns whether a gradient has to flow back through the buffer."""
    needed = [isinstance(part, Tensor) and part.requires_grad for part in (values, buffer)]
    if not any(needed) or not torch.is_grad_enabled():
        return False
    if not isinstance(buffer, Tensor):
        raise InvalidArgumentError(
            f"{subject}: values require a gradient, which a NumPy buffer cannot carry; "
            "give the keys of unique_key_with_value_and_offset as a tensor, or detach the values"
        )
    return True


def sources_of_places(
    positions: Indices, dims_of_positions: Indices, offsets: Indices, offset_splits: Indices, num_places: int
) -> Tensor:
    """Returns int64 [num_places]: which value each place of the buffer gets, -1 where it is unchanged."""
    counts = (offset_splits[1:] - offset_splits[:-1])[positions]
    starts = np.cumsum(dims_of_positions) - dims_of_positions
    # One line for each (position, occurrence of its key); then one for each of its floats.
    occurrences = offsets[_runs(offset_splits[positions], counts)]
    dims = np.repeat(dims_of_positions, counts)
    sources = np.full(num_places, -1, np.int64)
    # Of a position that occurs twice the last one wins, as in the core.
    sources[_runs(occurrences, dims)] = _runs(np.repeat(starts, counts), dims)
    return torch.from_numpy(sources)


def _runs(starts: Indices, lengths: Indices) -> Indices:
    """Returns start, start + 1, ... of each run, one run after another."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    runs: Indices = np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
    return runs


class _Fill(torch.autograd.Function):
    """Writes to the buffer and returns it, differentiable in the values.

    The gradient of a value is the sum of the gradients of its places in the buffer. A value that was overwritten, by
    another value for the same key or by a later call, has no place and gets none.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, buffer: Tensor, fill: Callable[[], Tensor]) -> Tensor:
        ctx.sources = fill()
        ctx.shape = values.shape
        ctx.mark_dirty(buffer)
        return buffer

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (gradient,) = gradients
        is_written = ctx.sources >= 0
        to_values = to_buffer = None
        if ctx.needs_input_grad[0]:
            to_values = gradient.new_zeros(ctx.shape.numel())
            to_values = to_values.index_add(0, ctx.sources[is_written], gradient[is_written]).reshape(ctx.shape)
        if ctx.needs_input_grad[1]:
            to_buffer = gradient.masked_fill(is_written, 0.0)
        return to_values, to_buffer, None
