"""Reads and writes rows of a store by their keys, for external callers: keys and buckets are checked before any access.

A key determines its bucket, except the wide keys of slots that share a table (docs/formats/buckets.md): their buckets
have to be passed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.tables.arrays import NO_STEP
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import ALL_BUCKETS, NUM_BUCKETS
from monolith.tables.slot_keys import has_explicit_bucket

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from monolith.tables.local.store import LocalStore
    from monolith.tables.schema import Schema

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


def keys_in(store: LocalStore, buckets: range) -> KeyedRows:
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


def read_keyed(store: LocalStore, keyed: KeyedRows) -> NDArray[np.float32]:
    """Returns the rows end to end in the order of the keys, flat; a key without a row reads zeros."""
    dims = np.array(store.native.dims, np.int64)
    values = np.empty(int((np.diff(keyed.splits) * dims).sum()), np.float32)
    if keyed.told:
        store.native.core.lookup(keyed.keys, keyed.splits, values, 0)
        return values
    at = 0
    for number, dim in enumerate(dims.tolist()):
        begin, end = int(keyed.splits[number]), int(keyed.splits[number + 1])
        rows = values[at : at + (end - begin) * dim].reshape(-1, dim)
        _read_table(store, number, keyed, rows)
        at += rows.size
    return values


def write_keyed(store: LocalStore, keyed: KeyedRows, values: NDArray[np.float32], *, finite: bool = True) -> int:
    """Overwrites weights, timed now; the last of equal keys wins. All rows are checked before any is written.

    Args:
        store: Its rows are changed.
        keyed: Keys of the rows.
        values: Flat, as `read_keyed` gives them.
        finite: Reject weights that are NaN or infinite.

    Returns:
        The number of rows passed.

    Raises:
        InvalidArgumentError: a weight is not a number that can be served.
    """
    dims = store.native.dims
    ends = np.cumsum([0, *(np.diff(keyed.splits) * dims).tolist()])
    parts = [values[begin:end].reshape(-1, dim) for begin, end, dim in zip(ends, ends[1:], dims, strict=False)]
    if finite:
        bad = np.concatenate([~np.isfinite(part).all(axis=1) for part in parts])
        _refuse(store.schema, keyed.keys, keyed.splits, bad, "has a weight that is NaN or infinite")
    clock = store.native.event_clock
    bounded = clock.bounded(np.full(len(keyed.keys), int(time.time()), np.int64))
    for number, part in enumerate(parts):
        own = slice(keyed.splits[number], keyed.splits[number + 1])
        if len(part):
            store.native.core.assign(
                number,
                np.ascontiguousarray(keyed.keys[own]),
                np.ascontiguousarray(part).reshape(-1),
                np.ascontiguousarray(bounded.times[own]),
                False,
                NO_STEP,
                np.ascontiguousarray(keyed.buckets[own]),
            )
    clock.count(bounded)
    return len(keyed.keys)


def _read_table(store: LocalStore, number: int, keyed: KeyedRows, rows: NDArray[np.float32]) -> None:
    own = slice(keyed.splits[number], keyed.splits[number + 1])
    keys = np.ascontiguousarray(keyed.keys[own])
    if not len(keys):
        return
    splits = store.native.splits_for(number, len(keys))
    plan = store.native.core.plan(keys, splits, True, np.ascontiguousarray(keyed.buckets[own]))
    distinct_rows = np.empty(plan.num_unique * rows.shape[1], np.float32)
    store.native.core.read(plan, distinct_rows, 0)
    rows[:] = distinct_rows.reshape(-1, rows.shape[1])[plan.inverse]


def _refuse(
    schema: Schema, keys: NDArray[np.int64], splits: NDArray[np.int64], wrong: NDArray[np.bool_], why: str
) -> None:
    places = np.flatnonzero(wrong)
    if len(places):
        table = int(np.searchsorted(splits, places[0], side="right")) - 1
        raise InvalidArgumentError(
            f"table {schema.tables[table].name!r}: key {int(keys[places[0]])} {why} ({len(places)} of {len(keys)} keys)"
        )
