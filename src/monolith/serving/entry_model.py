"""One version of the entry of an export in memory: its graphs, and buffers for the rows of requests in flight."""

from __future__ import annotations

import queue
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from monolith.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from monolith.serving.live_model import OWN_WEIGHTS
from monolith.serving.loaded_model import LoadedModel
from monolith.serving.prediction import ModelVersion, Prediction
from monolith.serving.shards.shard_tables import wire_names
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.keyed_rows import KeyedRows, write_keyed
from monolith.tables.local.store import LocalStore
from monolith.tables.table_config import Segment, TableConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from monolith.export.layout_spec import FeatureSpec
    from monolith.serving.export_versions import FoundExport
    from monolith.serving.loaded_model import LookupKeys, Weights
    from monolith.serving.shards.dense_sets import DenseSet, DenseSets
    from monolith.serving.shards.remote_rows import FetchedRows, RemoteRows
    from monolith.tables.schema import Schema

__all__ = ["EntryModel"]

Keys: TypeAlias = "dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]]"
"""Table name at the shards -> keys of rows, and their buckets."""

_PASSED_ON = (DeadlineExceededError, ResourceExhaustedError, UnavailableError)
"""Errors of shards that are passed to the caller unchanged."""
_MOST_ROWS = 200_000
"""Number of rows of past requests that are kept before all are dropped."""


class EntryModel:
    """Model whose rows are looked up at shards for each request. Thread-safe.

    Args:
        found: The entry, and the version of its rows.
        remote: The shards.
        dense: Weights of a log, which replace those of the export; None: no log is followed.
        threads: Number of requests whose graphs run concurrently; each has its own memory for rows.

    Raises:
        FailedPreconditionError: the export is for another number of shards.
    """

    def __init__(self, found: FoundExport, remote: RemoteRows, dense: DenseSets | None, *, threads: int) -> None:
        self.export = found.export
        self.manifest = found.export.manifest
        _require_shards(found, remote)
        self._schemas = self.export.schemas()
        self._names = wire_names({name: schema.names for name, schema in self._schemas.items()})
        dims = {
            wire: dim
            for store, schema in self._schemas.items()
            for wire, dim in zip(self._names[store], schema.dims, strict=True)
        }
        # Shards that follow a log have one set of rows for all versions; others keep the rows of each version
        # separately.
        self.remote = remote.of_version(found.with_rows.manifest.version if dense is None else None, dims)
        self._dense = dense
        self._merged: dict[int, Weights] = {}
        """Number of a set of weights -> all weights for the graphs."""
        self._models = [
            LoadedModel(self.export, {name: _scratch(each) for name, each in self._schemas.items()})
            for _ in range(threads)
        ]
        self._idle: queue.SimpleQueue[LoadedModel] = queue.SimpleQueue()
        for model in self._models:
            self._idle.put(model)

    def predict(
        self, inputs: Mapping[str, Any] | bytes, signature: str, *, deadline_millis: float | None = None
    ) -> Prediction:
        """Predicts; see `RemotePredictor.predict`."""
        keys = self._keys(self._models[0].signature(signature).keys(inputs))
        fetched = self._fetch(keys, deadline_millis)
        # The rows are fetched: weights that need newer rows are used by a later request.
        weights, number = self._weights(fetched)
        with self._model() as model:
            self._fill(model, keys, fetched)
            answer = model.signature(signature).answer(inputs, weights)
        version = ModelVersion(self.manifest.version, number, fetched.sparse)
        num_found = sum(int(rows.any(dim=1).sum()) for rows in fetched.rows.values())
        return Prediction(answer.outputs, version, answer.num_ids, min(answer.num_ids, num_found))

    def require_fitting(self, found: DenseSet) -> None:
        """Rejects weights of another model.

        Raises:
            FailedPreconditionError: one has another shape or type.
        """
        self._models[0].with_weights(found.weights)

    @property
    def memory_bytes(self) -> int:
        """Memory of the rows of requests."""
        return sum(store.stats().memory_bytes for model in self._models for store in model.stores.values())

    # Internals

    def _fetch(self, keys: Keys, deadline_millis: float | None) -> FetchedRows:
        try:
            return self.remote.lookup(
                {table: torch.from_numpy(found) for table, (found, _) in keys.items()},
                buckets={table: torch.from_numpy(buckets.astype(np.int32)) for table, (_, buckets) in keys.items()},
                deadline_millis=deadline_millis,
            )
        except _PASSED_ON:
            raise
        except OpError as error:  # an error of the shards is not the caller's fault
            raise UnavailableError(f"the rows of {self.manifest.name!r} cannot be had: {error.message}") from error

    def _weights(self, fetched: FetchedRows) -> tuple[Weights, int]:
        chosen = None if self._dense is None else self._dense.choose(fetched.told, self.remote.ranges)
        if chosen is None or self._dense is None:
            return self._models[0].weights, OWN_WEIGHTS
        merged = self._merged.get(chosen.number)
        if merged is None:
            kept = self._dense.numbers
            merged = self._models[0].with_weights(chosen.weights)
            self._merged = {
                **{number: each for number, each in self._merged.items() if number in kept},
                chosen.number: merged,
            }
        return merged, chosen.number

    def _wire_name(self, feature: FeatureSpec) -> str:
        return self._names[feature.store][self._schemas[feature.store].names.index(feature.table)]

    @contextmanager
    def _model(self) -> Iterator[LoadedModel]:
        """Borrows a model that no other thread uses."""
        model = self._idle.get()
        try:
            yield model
        finally:
            self._idle.put(model)

    def _keys(self, asked: Sequence[LookupKeys]) -> Keys:
        """Returns table name at the shards -> the keys of the ids of a request, and their buckets."""
        found: dict[str, list[LookupKeys]] = {}
        for each in asked:
            found.setdefault(self._wire_name(each.feature), []).append(each)
        return {
            table: (np.concatenate([each.keys for each in some]), np.concatenate([each.buckets for each in some]))
            for table, some in found.items()
        }

    def _fill(self, model: LoadedModel, asked: Keys, fetched: FetchedRows) -> None:
        """Writes the rows of a request to the tables that its graph reads."""
        for name, store in model.stores.items():
            if store.stats().rows > _MOST_ROWS:
                store.load([], buckets=ALL_BUCKETS, replace=True)
            own = [table for table in self._names[name] if table in asked]
            if not own:
                continue
            splits = np.cumsum([0, *(len(asked[table][0]) if table in asked else 0 for table in self._names[name])])
            known = KeyedRows(
                np.concatenate([asked[table][0] for table in own]),
                splits,
                np.concatenate([asked[table][1] for table in own]),
                told=False,
            )
            write_keyed(
                store, known, np.concatenate([fetched.rows[table].numpy().reshape(-1) for table in own]), finite=False
            )


def _require_shards(found: FoundExport, remote: RemoteRows) -> None:
    wanted = found.with_rows.manifest.shards
    if wanted and remote.num_shards != wanted:
        raise FailedPreconditionError(
            f"export of {found.export.manifest.name!r}: it is for {wanted} shards, got the addresses of"
            f" {remote.num_shards}"
        )


def _scratch(schema: Schema) -> LocalStore:
    """Creates tables for the rows of requests, which are stored as received."""
    return LocalStore(
        {
            table.name: TableConfig([Segment(table.dim)], serving=True, wide_slots=table.wide_slots)
            for table in schema.tables
        }
    )
