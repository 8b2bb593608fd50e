"""Splits rows for a receiver into requests of bounded size."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from monolith import _core
from monolith.errors import InternalError, InvalidArgumentError
from monolith.serving.protos import parameter_sync_pb2 as sync_messages
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.shards.shard_tables import ASSIGN, RAW_ASSIGN, RAW_KEYS
from monolith.serving.tensor_messages import message_of, value_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from monolith.tables import KeyedRows

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


def push_request(rows: StoreRows, *, model: str, signature: PushSignature) -> sync_messages.PushRequest:
    """Returns the rows as the message of ByteDance Monolith."""
    deltas = [
        sync_messages.DeltaEmbeddingHashTable(
            unique_id=table.table,
            dim_size=table.rows.shape[1],
            fids=table.keys.tolist(),
            embeddings=table.rows.reshape(-1).tolist(),
        )
        for table in rows.tables
        if len(table.keys)
    ]
    if signature == RAW_ASSIGN:
        name = f"{rows.store}/{RAW_ASSIGN}"
        return sync_messages.PushRequest(model_name=model, signature_name=name, delta_multi_hash_tables=deltas)
    return sync_messages.PushRequest(model_name=model, signature_name=ASSIGN, delta_hash_tables=deltas)


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
