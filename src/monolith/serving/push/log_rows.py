"""`LogRows`: reads rows of a delta log for receivers, from a base or an increment; splits them into bounded requests.

Rows of a log are compressed for serving; they are decoded by tables of the same schema, in small batches.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch

from monolith import _core
from monolith.deltalog import DENSE_PART, Base, DeltaLog, Increment, IncrementKind, PartReader, store_of
from monolith.deltalog.follow import BaseState, schemas_of
from monolith.deltalog.publish import serving_schema
from monolith.errors import InternalError, InvalidArgumentError
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.shards.served_shard import readable_tables
from monolith.serving.shards.shard_tables import ASSIGN, RAW_ASSIGN, RAW_KEYS, wire_names
from monolith.serving.tensor_messages import message_of, value_of
from monolith.tables import KeyedRows, TableConfig, keys_in, shared_buckets
from monolith.tables.formats import BlockKind, PackedBlocks, RowBlock
from monolith.tables.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt


PART_BYTES = 4 << 20
"""Maximum size of a request."""
_HEAD_BYTES = 4096
"""Bytes reserved for names and shapes."""

PushSignature = Literal["raw_assign", "hashtable_assign"]


@dataclass(frozen=True, slots=True)
class TableRows:
    """Current rows of one table; zeros for a removed id."""

    table: str
    """Table name at the receivers."""
    keys: npt.NDArray[np.int64]
    buckets: npt.NDArray[np.uint16]
    rows: npt.NDArray[np.float32]
    """[n, dim]"""

    @property
    def num_bytes(self) -> int:
        """Approximate size in a request."""
        return len(self.keys) * (12 + 4 * int(self.rows.shape[1]))

    def part(self, number: int, count: int) -> TableRows:
        """Returns share `number` of `count` equal shares."""
        own = slice(len(self.keys) * number // count, len(self.keys) * (number + 1) // count)
        return TableRows(self.table, self.keys[own], self.buckets[own], self.rows[own])


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Rows of every table of a store, in the order of their names."""

    store: str
    tables: Sequence[TableRows]

    @property
    def num_ids(self) -> int:
        """Number of ids of all tables."""
        return sum(len(table.keys) for table in self.tables)

    @property
    def num_bytes(self) -> int:
        """Approximate size in a request."""
        return sum(table.num_bytes for table in self.tables)


def split_rows(rows: StoreRows, *, at_most: int = PART_BYTES) -> list[StoreRows]:
    """Splits rows into parts of at most `at_most` bytes, each with an equal share of every table; none without rows."""
    if not rows.num_ids:
        return []
    room = max(1, at_most - _HEAD_BYTES)
    count = -(-rows.num_bytes // room)
    while True:
        parts = [StoreRows(rows.store, [table.part(number, count) for table in rows.tables]) for number in range(count)]
        if count >= rows.num_ids or max(part.num_bytes for part in parts) <= room:
            return [part for part in parts if part.num_ids]
        count += 1  # rows are not split, so that some shares are larger


def assign_request(rows: StoreRows, *, model: str, signature: PushSignature) -> messages.PredictRequest:
    """Builds the request that assigns rows; contains buckets only if they do not follow from the keys."""
    if signature == RAW_ASSIGN:
        return _raw_request(rows, model)
    request = messages.PredictRequest(model_spec=messages.ModelSpec(name=model, signature_name=ASSIGN))
    for table in rows.tables:
        if len(table.keys):
            request.inputs[f"{table.table}_id"].CopyFrom(message_of(table.keys))
            request.inputs[f"{table.table}_value"].CopyFrom(message_of(table.rows))
            if _needs_buckets(table.keys, table.buckets):
                request.inputs[f"{table.table}_bucket"].CopyFrom(message_of(table.buckets.astype(np.int32)))
    return request


def keys_request(store: str, buckets: range, *, model: str) -> messages.PredictRequest:
    """Builds the request for the keys that a receiver has in some buckets."""
    spec = messages.ModelSpec(name=model, signature_name=f"{store}/{RAW_KEYS}")
    return messages.PredictRequest(
        model_spec=spec, inputs={"bucket_range": message_of(torch.tensor([buckets.start, buckets.stop]))}
    )


def removed_rows(rows: StoreRows, known: KeyedRows, response: messages.PredictResponse) -> StoreRows:
    """Returns zeros for the keys in an answer to `keys_request` that are not in `known`."""
    try:
        keys, splits, buckets = (
            np.asarray(value_of(response.outputs[name], name=name)) for name in ("id", "id_split", "bucket")
        )
        gone = [_not_among(keys[own], buckets[own], known, number) for number, own in enumerate(_slices(splits))]
        tables = [
            TableRows(table.table, *missing, np.zeros((len(missing[0]), table.rows.shape[1]), np.float32))
            for table, missing in zip(rows.tables, gone, strict=True)
        ]
    except (InvalidArgumentError, ValueError, TypeError, IndexError) as error:
        raise InternalError(f"push: the answer to {RAW_KEYS} is not that of a shard: {error}") from error
    return StoreRows(rows.store, tables)


def _slices(splits: npt.NDArray[np.int64]) -> list[slice]:
    return [slice(begin, end) for begin, end in itertools.pairwise(splits.tolist())]


def _not_among(
    keys: npt.NDArray[np.int64], buckets: npt.NDArray[np.int32], known: KeyedRows, table: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]:
    """Returns the keys and buckets that a table does not have; wide keys are compared with their bucket."""
    own = _slices(known.splits)[table]
    missing = np.ones(len(keys), np.bool_)
    for bucket in np.unique(buckets):
        here = buckets == bucket
        missing[here] = ~np.isin(keys[here], known.keys[own][known.buckets[own] == bucket])
    return keys[missing], buckets[missing].astype(np.uint16)


def _raw_request(rows: StoreRows, model: str) -> messages.PredictRequest:
    spec = messages.ModelSpec(name=model, signature_name=f"{rows.store}/{RAW_ASSIGN}")
    keys = np.concatenate([table.keys for table in rows.tables])
    buckets = np.concatenate([table.buckets for table in rows.tables])
    inputs = {
        "id": message_of(keys),
        "id_split": message_of(torch.from_numpy(np.cumsum([0, *(len(table.keys) for table in rows.tables)]))),
        "flat_value": message_of(np.concatenate([table.rows.reshape(-1) for table in rows.tables])),
    }
    if _needs_buckets(keys, buckets):
        inputs["bucket"] = message_of(buckets.astype(np.int32))
    return messages.PredictRequest(model_spec=spec, inputs=inputs)


def _needs_buckets(keys: npt.NDArray[np.int64], buckets: npt.NDArray[np.uint16]) -> bool:
    return bool((_core.bucket_of(keys) != buckets).any())


_log = logging.getLogger(__name__)

_BUCKETS_AT_ONCE = 16
"""Number of buckets of a base that are in memory at a time."""


class BaseRows(NamedTuple):
    """The rows of some buckets of a base."""

    rows: StoreRows
    known: KeyedRows
    """All keys, including those of skipped rows."""
    buckets: range


class LogRows:
    """Reader of a log for pushing. Not thread-safe."""

    def __init__(
        self, log: DeltaLog, *, buckets: range, tables: Mapping[str, Mapping[str, TableConfig]] | None = None
    ) -> None:
        self.log = log
        self._own = buckets
        self._tables = tables
        self._stores: dict[str, LocalStore] = {}
        self._names: dict[str, list[str]] = {}

    def parts(self) -> list[str]:
        """Returns the parts of the log that have rows of these buckets; opens new stores."""
        parts = [part for part in self.log.parts() if part != DENSE_PART and len(self._buckets(part))]
        if any(self._store_name(part) not in self._stores for part in parts):
            self._open_stores()
        return parts

    def base_of(self, part: str) -> Base | None:
        """Returns the newest base that holds a part, by its numbers; None if there is none."""
        holding = [base for base in self.log.bases() if base.holds(part)]
        return max(holding, key=lambda base: base.numbers[part], default=None)

    def of_base(self, part: str, base: Base) -> Iterator[BaseRows]:
        """Yields all rows of a part in a base, some buckets at a time.

        Raises:
            NotFoundError, DataLossError: files of the base were removed, or are damaged.
        """
        name = self._store_name(part)
        store, own = self._stores[name], self._buckets(part)
        for begin in range(own.start, own.stop, _BUCKETS_AT_ONCE):
            some = range(begin, min(begin + _BUCKETS_AT_ONCE, own.stop))
            try:
                BaseState(base).load(part, store, own=some)
                with store.cut() as cut:
                    blocks = [block for block in cut.blocks(some, state=False) if block.kind is not BlockKind.FILTER]
                yield BaseRows(self._rows(name, blocks), keys_in(store, some), some)
            finally:
                store.load([], buckets=some, replace=True)

    def of_increment(self, increment: Increment) -> StoreRows | None:
        """Returns the rows that an increment changed, zeros for removed ones; None if it has no rows."""
        if increment.kind is not IncrementKind.ROWS or not increment.payload:
            return None
        name, own = self._store_name(increment.part), self._buckets(increment.part)
        store, packed = self._stores[name], PackedBlocks(increment.payload)
        try:
            store.load(packed, buckets=own, replace=False)
            return self._rows(name, [block for block in packed if block.bucket in own])
        finally:
            store.load([], buckets=own, replace=True)

    def open_reader(self, part: str, number: int) -> PartReader:
        """Opens a reader of the increments after a number."""
        schema = serving_schema(self._stores[self._store_name(part)].schema)
        return self.log.open_reader(part, number=number + 1, schema=schema)

    # Internals

    def _open_stores(self) -> None:
        if self._tables is None:
            schemas = schemas_of(self.log)
            configs = {store: readable_tables(schema, store=store) for store, schema in schemas.items()}
        else:
            configs = {store: dict(tables) for store, tables in self._tables.items()}
        self._stores = {store: self._stores.get(store) or LocalStore(tables) for store, tables in configs.items()}
        self._names = wire_names({name: store.schema.names for name, store in self._stores.items()})

    def _store_name(self, part: str) -> str:
        place = store_of(part)
        return "" if place is None else place[0]

    def _buckets(self, part: str) -> range:
        place = store_of(part)
        return range(0) if place is None else shared_buckets(place[1], self._own)

    def _rows(self, name: str, blocks: Iterable[RowBlock]) -> StoreRows:
        """Returns the current rows of the keys of some blocks; each key once."""
        store = self._stores[name]
        tables = []
        by_table: dict[int, list[RowBlock]] = {}
        for block in blocks:
            by_table.setdefault(block.table, []).append(block)
        for number, table in enumerate(self._names[name]):
            keys, buckets = _keys_of(by_table.get(number, []))
            splits = np.zeros(len(self._names[name]) + 1, np.int64)
            splits[number + 1 :] = len(keys)
            follows_keys = not store.schema.tables[number].wide_slots
            flat = store.lookup(KeyedRows(keys, splits, buckets, follows_keys)).values
            rows = flat.numpy().reshape(len(keys), store.schema.dims[number])
            tables.append(self._finite(TableRows(table, keys, buckets, rows)))
        return StoreRows(name, tables)

    def _finite(self, table_rows: TableRows) -> TableRows:
        """Removes rows that are not finite: receivers keep their previous values."""
        good = np.isfinite(table_rows.rows).all(axis=1)
        if good.all():
            return table_rows
        _log.error("push: skipped %d rows of table %r that are NaN or infinite", (~good).sum(), table_rows.table)
        return TableRows(table_rows.table, table_rows.keys[good], table_rows.buckets[good], table_rows.rows[good])


def _keys_of(blocks: Iterable[RowBlock]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]:
    """Returns the distinct keys of blocks of one table, and their buckets."""
    by_bucket: dict[int, list[npt.NDArray[np.int64]]] = {}
    for block in blocks:
        by_bucket.setdefault(block.bucket, []).append(block.keys)
    distinct = {bucket: np.unique(np.concatenate(keys)) for bucket, keys in by_bucket.items()}
    keys = np.concatenate([np.empty(0, np.int64), *distinct.values()])
    buckets = np.repeat(np.array(list(distinct), np.uint16), [len(keys) for keys in distinct.values()])
    return keys, buckets
