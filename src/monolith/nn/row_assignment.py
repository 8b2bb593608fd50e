"""Assigns rows of a slot from outside: weights that were trained by another program."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from monolith.errors import AbortedError, InvalidArgumentError
from monolith.nn.embeddings.id_batch import IdBatchReader
from monolith.tables import ALL_BUCKETS, HashTable, TableConfig
from monolith.tables.formats import BlockKind, full_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from monolith.nn.embeddings.id_batch import IdBatch
    from monolith.nn.embeddings.merge import PlacedSlot
    from monolith.tables import Store, TableSchema
    from monolith.tables.formats import RowBlock

    RowIds: TypeAlias = Tensor | NDArray[np.int64]
    RowVectors: TypeAlias = Tensor | NDArray[np.floating]

_BATCH_BYTES = 32 << 20
"""Size of the rows in flight: the memory of an assignment in addition to the tables and the given vectors."""


class RowAssignment:
    """Overwrites rows of one slot, with fresh optimizer state; ids without a row get one, without admission.

    Args:
        store: The store of the rows.
        slot: The slot of the rows.
        config: The slot's table, which defines the initial optimizer state.
        time: Unix seconds at which the rows count as last trained.
    """

    def __init__(self, store: Store, slot: PlacedSlot, config: TableConfig, *, time: int) -> None:
        self._store = store
        self._slot = slot
        self._time = time
        self._number = store.schema.names.index(slot.table)
        self._schema: TableSchema = store.schema.tables[self._number]
        self._reader = IdBatchReader([slot], [slot.table])
        self._state = _fresh_state(config)

    def assign(self, ids: RowIds, vectors: RowVectors) -> int:
        """Checks everything, then writes it, some megabytes at a time; returns the number of rows.

        Raises:
            InvalidArgumentError, TypeError: ids or vectors that cannot be rows of the slot; no row changed.
        """
        read = self._read(ids)
        keys, buckets = read.ids, read.buckets
        self._check_vectors(vectors, len(keys))
        rows = max(1, _BATCH_BYTES // self._schema.payload_bytes(state=True))
        batches = [slice(begin, begin + rows) for begin in range(0, len(keys), rows)]
        for batch in batches:
            self._require_finite(_float32(vectors[batch]), ids[batch])
        time = self._settled_time(keys[:1], buckets[:1], _float32(vectors[:1])) if len(keys) else 0
        for batch in batches:
            blocks = self._blocks(keys[batch], buckets[batch], _float32(vectors[batch]), time=time)
            self._store.load(blocks, buckets=ALL_BUCKETS, replace=False)
        return len(keys)

    def _read(self, ids: RowIds) -> IdBatch:
        if getattr(ids, "ndim", 1) != 1:
            raise InvalidArgumentError(f"slot {self._slot.name!r}: ids must be int64 [rows], got {tuple(ids.shape)}")
        if isinstance(ids, np.ndarray) and not ids.flags.writeable:
            ids = ids.copy()  # Arrow returns read-only arrays, of which torch warns
        read = self._reader.read({self._slot.name: ids})
        if len(read.ids) != len(ids):
            raise InvalidArgumentError(
                f"slot {self._slot.name!r}: ids must not be its padding_id, {self._slot.slot.padding_id}: that stands"
                " for no id and has no row"
            )
        ordered = np.sort(np.asarray(ids))
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(repeated):
            raise InvalidArgumentError(
                f"slot {self._slot.name!r}: each id must come once, got {repeated[0]} more often; keep one of"
                " its vectors"
            )
        return read

    def _check_vectors(self, vectors: RowVectors, num_ids: int) -> None:
        name, expected = self._slot.name, (num_ids, self._slot.dim)
        if not isinstance(vectors, Tensor | np.ndarray):
            raise TypeError(f"slot {name!r}: vectors must be a tensor or an array, got {type(vectors).__name__}")
        if tuple(vectors.shape) != expected:
            raise InvalidArgumentError(
                f"slot {name!r}: vectors must be {list(expected)}, one of dim {self._slot.dim} for each id, got"
                f" {list(vectors.shape)}"
            )
        kind = vectors.dtype
        is_float = kind.is_floating_point if isinstance(kind, torch.dtype) else np.issubdtype(kind, np.floating)
        if not is_float:
            raise TypeError(f"slot {name!r}: vectors must be floats, got {vectors.dtype}")

    def _require_finite(self, weights: NDArray[np.float32], ids: RowIds) -> None:
        bad = np.flatnonzero(~np.isfinite(weights).all(axis=1))
        if len(bad):
            raise InvalidArgumentError(
                f"slot {self._slot.name!r}: vectors must be finite as float32, got {weights[bad[0]].tolist()} for id"
                f" {int(ids[int(bad[0])])}"
            )

    def _settled_time(self, keys: NDArray[np.int64], buckets: NDArray[np.uint16], weights: NDArray[np.float32]) -> int:
        """Returns the time as the store bounds it, since no call moves its clock far ahead: assigns one row to find it.

        `Store.load` takes times unchanged; it also loads optimizer state and rows that admission would filter.
        """
        self._store.load(self._blocks(keys, buckets, weights, time=0), buckets=ALL_BUCKETS, replace=False)
        (block,) = self._blocks(keys, buckets, weights, time=self._time)
        self._store.assign(block, add=False)
        with self._store.cut() as cut:
            for written in cut.blocks(range(block.bucket, block.bucket + 1), state=True):
                if written.table == self._number and written.kind is BlockKind.FULL:
                    for place in np.flatnonzero(written.keys == keys[0]):
                        return int(written.times[place])
        raise AbortedError(f"slot {self._slot.name!r}: a row went while it was assigned; assign between two evictions")

    def _blocks(
        self, keys: NDArray[np.int64], buckets: NDArray[np.uint16], weights: NDArray[np.float32], *, time: int
    ) -> Iterator[RowBlock]:
        order = np.argsort(buckets, kind="stable")
        payload = np.empty((len(keys), 4 * self._slot.dim + len(self._state)), np.uint8)
        payload[:, : 4 * self._slot.dim] = weights[order].view(np.uint8)
        payload[:, 4 * self._slot.dim :] = self._state
        keys = keys[order]
        distinct, begins = np.unique(buckets[order], return_index=True)
        ends = [*begins[1:], len(keys)]
        for bucket, begin, end in zip(distinct.tolist(), begins.tolist(), ends, strict=True):
            yield full_block(
                digest=self._schema.digest,
                table=self._number,
                bucket=bucket,
                keys=keys[begin:end],
                time=time,
                payload=payload[begin:end],
            )


def _fresh_state(config: TableConfig) -> NDArray[np.uint8]:
    """Returns the optimizer state of a row that was never trained, which is the same for every id."""
    table = HashTable(TableConfig(config.segments, name=config.name))
    table.assign([0], np.zeros((1, config.dim), np.float32))
    state: NDArray[np.uint8] = np.asarray(table.lookup_rows(np.zeros(1, np.int64)).state)[0]
    return state


def _float32(vectors: RowVectors) -> NDArray[np.float32]:
    if isinstance(vectors, Tensor):
        vectors = vectors.detach().to("cpu", torch.float32).contiguous().numpy()
    with np.errstate(over="ignore"):  # overflow is reported later as not finite, with its id
        return np.ascontiguousarray(vectors, np.float32)
