"""Reads and writes rows of a store by their keys, for external callers: keys and buckets are checked before any access.

A key determines its bucket, except the wide keys of slots that share a table (docs/formats/buckets.md): their buckets
have to be passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import ALL_BUCKETS, NUM_BUCKETS
from monolith.tables.slot_keys import has_explicit_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables.schema import Schema
    from monolith.tables.store import ServingRows, Store

UNTOLD = -1
"""Stands for a bucket that the key itself determines."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Keys of all tables of a store, end to end in table order; `buckets_of_keys` has checked them."""

    keys: NDArray[np.int64]
    splits: NDArray[np.int64]
    """[T + 1]: where the keys of each table begin."""
    buckets: NDArray[np.uint16]
    """Bucket of each key."""
    told: bool
    """Whether every key determines its bucket."""

    def by_table(self, dims: Sequence[int], values: NDArray[np.float32]) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Yields the positions of the keys of each table, and their rows [n, dim]: views of flat values."""
        at = 0
        splits = self.splits.tolist()
        for begin, end, dim in zip(splits, splits[1:], dims, strict=False):
            size = (end - begin) * dim
            yield slice(begin, end), values[at : at + size].reshape(-1, dim)
            at += size


class KeyedValues(NamedTuple):
    """The rows of some keys."""

    values: Tensor
    """float32: the rows end to end in the order of the keys, on the device of the store; a key without a row: zeros."""
    num_found: int
    """Number of keys that have a row; equal keys count each."""


def buckets_of_keys(
    schema: Schema,
    keys: NDArray[np.int64],
    splits: NDArray[np.int64],
    *,
    given: NDArray[np.integer] | None = None,
    own: range = ALL_BUCKETS,
) -> KeyedRows:
    """Returns the keys with the bucket of each.

    Args:
        schema: Of the store.
        keys: Of all its tables.
        splits: Where those of each table begin.
        given: Buckets passed along with the keys, `UNTOLD` where none was; None: keys have to determine them.
        own: Buckets that this store has.

    Raises:
        InvalidArgumentError: a key of another bucket, or a wide key without one; names table and key.
    """
    is_explicit = np.ones(len(keys), np.bool_)
    for number, table in enumerate(schema.tables):
        if table.wide_slots:
            part = slice(splits[number], splits[number + 1])
            is_explicit[part] = has_explicit_bucket(keys[part], table.wide_slots)
    buckets = _core.bucket_of(keys).astype(np.int64)
    if given is not None:
        contradicts = is_explicit & (given != buckets) & (given != UNTOLD)
        wrong = contradicts | (~is_explicit & ((given < 0) | (given >= NUM_BUCKETS)))
        _refuse(schema, keys, splits, wrong, "is not of the bucket that came with it")
        buckets = np.where(is_explicit, buckets, given)
    else:
        _refuse(schema, keys, splits, ~is_explicit, "does not contain its bucket; send the bucket with it")
    outside = (buckets < own.start) | (buckets >= own.stop)
    _refuse(schema, keys, splits, outside, f"is of another shard: buckets {own.start} to {own.stop - 1} are here")
    return KeyedRows(keys, splits, buckets.astype(np.uint16), bool(is_explicit.all()))


def keys_in(store: Store, buckets: range) -> KeyedRows:
    """Returns the keys of all rows in some buckets."""
    tables: list[list[tuple[NDArray[np.int64], int]]] = [[] for _ in store.schema.names]
    with store.cut() as cut:
        for block in cut.blocks(buckets, state=False):
            if block.kind in {BlockKind.FULL, BlockKind.SERVING}:
                tables[block.table].append((block.keys.copy(), block.bucket))
    listed = [block for blocks in tables for block in blocks]
    return KeyedRows(
        np.concatenate([np.empty(0, np.int64), *(keys for keys, _ in listed)]),
        np.cumsum([0, *(sum(len(keys) for keys, _ in blocks) for blocks in tables)]),
        np.concatenate([np.empty(0, np.uint16), *(np.full(len(keys), bucket, np.uint16) for keys, bucket in listed)]),
        told=False,
    )


def write_keyed(store: ServingRows, keyed: KeyedRows, values: NDArray[np.float32]) -> int:
    """Overwrites weights like `ServingRows.overwrite`, if all are finite; returns the number of rows passed.

    Raises:
        InvalidArgumentError: a weight is NaN or infinite; no row was written.
    """
    finite = [np.isfinite(rows).all(axis=1) for _, rows in keyed.by_table(store.schema.dims, values)]
    _refuse(store.schema, keyed.keys, keyed.splits, ~np.concatenate(finite), "has a weight that is NaN or infinite")
    store.overwrite(keyed, values)
    return len(keyed.keys)


def _refuse(
    schema: Schema, keys: NDArray[np.int64], splits: NDArray[np.int64], wrong: NDArray[np.bool_], why: str
) -> None:
    places = np.flatnonzero(wrong)
    if len(places):
        table = int(np.searchsorted(splits, places[0], side="right")) - 1
        raise InvalidArgumentError(
            f"table {schema.tables[table].name!r}: key {int(keys[places[0]])} {why} ({len(places)} of {len(keys)} keys)"
        )
