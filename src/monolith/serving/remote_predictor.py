"""`RemotePredictor`: answers from the entry of an export and looks up its rows at shards for each request."""

from __future__ import annotations

import queue
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from monolith.closing import Closing
from monolith.deltalog.follow import Follower, Staleness
from monolith.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from monolith.export import DEFAULT_SIGNATURE, Signature
from monolith.serving.export_versions import ExportVersions, FoundExport
from monolith.serving.loaded_model import OWN_WEIGHTS, LoadedModel, LookupKeys, Weights
from monolith.serving.served_model import ModelVersion, Prediction, ServedModel, lag_reason
from monolith.serving.shards.row_versions import DenseSet, DenseSets
from monolith.serving.shards.shard_tables import wire_names
from monolith.serving.shards.sharded_rows import FetchedRows, ShardedRows
from monolith.serving.version_watch import VersionWatch
from monolith.tables import ALL_BUCKETS, KeyedRows, Schema, Segment, TableConfig
from monolith.tables.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from torch import Tensor

    from monolith.deltalog import DeltaLog
    from monolith.serving.shards.replicas import Replicas

_ASK_SECONDS = 1.0
"""Timeout of health checks of shards."""


class RemotePredictor(ServedModel, Closing):
    """The entry of a sharded model. Thread-safe. Close it, or use it as a context manager.

    Args:
        path: An export for shards, or the folder of its entry or of one version of it. A newer version is served once
            the shards have its rows, without a failing call.
        shards: The addresses of the replicas of each shard, or a `Replicas` that resolves them.
        model: Model name at the shards, ``<model>:ps_<i>``; None: that of the export.
        follow: The delta log that the shards follow: its dense weights replace those of the export. An answer uses the
            newest weights whose rows its shards have. None: the weights stay those of the export.
        threads: Number of requests whose graphs run concurrently; each has its own memory for rows.
        trial: Whether a child process loads and runs the graphs of the export first, as it does with newer versions.
        options: Fields of `ShardedRowsConfig`: deadline, hedging, policy for lost shards.

    Raises:
        NotFoundError: there is no export.
        FailedPreconditionError: the export is for another number of shards.
    """

    def __init__(
        self,
        path: str,
        shards: Replicas | Sequence[Sequence[str]],
        *,
        model: str | None = None,
        follow: DeltaLog | str | None = None,
        threads: int = 1,
        trial: bool = False,
        **options: Any,
    ) -> None:
        if threads < 1:
            raise InvalidArgumentError(f"RemotePredictor: threads must be >= 1, got {threads}")
        self._threads = threads
        self._versions = ExportVersions(path)
        newest = self._versions.newest(trial=trial)
        self._remote = ShardedRows(model or newest.export.manifest.name, {}, shards, **options)
        self._dense = None if follow is None else DenseSets()
        self._live = EntryModel(newest, self._remote, self._dense, threads=threads)
        newest.export.folder.release()
        self._next: EntryModel | None = None
        """Newer version whose rows the shards do not have yet."""
        self._waits_for: str | None = None
        """Why that version is not served yet."""
        self._shards_problem: str | None = "its shards have not been queried yet"
        self._last = ModelVersion(self._live.manifest.version, OWN_WEIGHTS, {})
        self._follower: Follower | None = None
        if follow is not None:
            self._follower = Follower({}, follow, on_dense=self._take_weights, rows_elsewhere=True)
            self._follower.start()
        self._watch = VersionWatch("entry", next_version=self._look, activate=self._open)
        self._watch.start()

    # Predictions

    def predict(
        self,
        inputs: Mapping[str, Any] | bytes,
        signature: str = DEFAULT_SIGNATURE,
        *,
        deadline_millis: float | None = None,
    ) -> Prediction:
        """Predicts examples.

        Args:
            inputs: Columns by name or encoded samples, as `Predictor.predict` takes them.
            signature: Name of the signature.
            deadline_millis: Deadline of the lookup, if shorter than the configured one.

        Raises:
            InvalidArgumentError: inputs do not fit the signature; the message names them.
            NotFoundError: the model does not have this signature.
            OpError: rows could not be looked up.
        """
        if self._watch.stopped.is_set():
            raise UnavailableError("predictor: it is closed")
        prediction = self._live.predict(inputs, signature, deadline_millis=deadline_millis)
        self._last = prediction.version
        return prediction

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._live.manifest.name

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Signatures by name."""
        return self._live.export.signatures

    @property
    def version(self) -> ModelVersion:
        """Export of the next answer, and weights and rows of the last one."""
        return self._last._replace(export=self._live.manifest.version)

    # Status

    @property
    def why_not_ready(self) -> str | None:
        """Why a shard has no ready replica, or the weights lag; None: ready. Requests are answered if shards answer."""
        if self._watch.stopped.is_set():
            return "it is closed"
        return self._shards_problem or lag_reason(self._follower)

    @property
    def problem(self) -> str | None:
        """Why a newer export is not served; None: no problem."""
        return self._watch.problem or self._waits_for

    @property
    def staleness(self) -> Staleness | None:
        """Seconds from events to the weights trained with them; None: no log is followed, or no weights arrived yet."""
        return None if self._follower is None else self._follower.staleness

    @property
    def num_rows(self) -> int:
        """Always 0: the shards hold and report the rows."""
        return 0

    @property
    def memory_bytes(self) -> int:
        """Memory of the rows of recent requests."""
        return self._live.memory_bytes

    def close(self) -> None:
        """Closes connections. Idempotent."""
        self._watch.stopped.set()
        if self._follower is not None:
            self._follower.close()
        self._remote.close()  # cancels pending calls of the watch
        self._watch.close()

    # Internals

    def _take_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Adds weights of the follower, which stalls at weights that this rejects."""
        if self._dense is None or self._follower is None:
            return
        dense = DenseSet(weights, self._follower.dense_number, self._follower.dense_needs)
        self._live.models[0].with_weights(dense.weights)  # refuses those of another model
        self._dense.add(dense)

    def _look(self) -> int | None:
        """Checks the shards and a newer version that waits for them; returns the number of an even newer version."""
        self._shards_problem = self._live.remote.why_not_ready(_ASK_SECONDS)
        if self._versions.is_fixed:
            return None
        self._take_over()
        newest = self._versions.newest_number()
        return newest if newest > (self._next or self._live).manifest.version else None

    def _open(self, _: int) -> None:
        newest = self._versions.newest(trial=True, is_stopped=self._watch.stopped.is_set)
        entry = EntryModel(newest, self._remote, self._dense, threads=self._threads)
        newest.export.folder.release()
        if not self._watch.is_given_up:
            self._next = entry

    def _take_over(self) -> None:
        """Serves the newer version once the shards have its rows."""
        if self._next is None:
            return
        waits_for = None if self._dense is not None else self._next.remote.why_not_ready(_ASK_SECONDS)
        self._waits_for = None if waits_for is None else f"version {self._next.manifest.version} waits: {waits_for}"
        if waits_for is None:
            self._live, self._next = self._next, None


Keys: TypeAlias = "dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]]"
"""Table name at the shards -> keys of rows, and their buckets."""

_PASSED_ON = (DeadlineExceededError, ResourceExhaustedError, UnavailableError)
"""Errors of shards that are passed to the caller unchanged."""
_MOST_ROWS = 200_000
"""Number of rows of past requests that are kept before all are dropped."""


class EntryModel:
    """Model whose rows are looked up at shards for each request. Thread-safe."""

    def __init__(self, version: FoundExport, remote: ShardedRows, dense: DenseSets | None, *, threads: int) -> None:
        self.export = version.export
        self.manifest = version.export.manifest
        _require_shards(version, remote)
        self._schemas = self.export.schemas()
        self._names = wire_names({name: schema.names for name, schema in self._schemas.items()})
        dims = {
            wire: dim
            for store, schema in self._schemas.items()
            for wire, dim in zip(self._names[store], schema.dims, strict=True)
        }
        # Shards that follow a log have one set of rows for all versions; others keep the rows of each version
        # separately.
        self.remote = remote.of_version(version.with_rows.manifest.version if dense is None else None, dims)
        self._dense = dense
        self._merged: dict[int, Weights] = {}
        """Number of a set of weights -> all weights for the graphs."""
        self.models = [
            LoadedModel(self.export, {name: _scratch(schema) for name, schema in self._schemas.items()})
            for _ in range(threads)
        ]
        self._idle: queue.SimpleQueue[LoadedModel] = queue.SimpleQueue()
        for model in self.models:
            self._idle.put(model)

    def predict(
        self, inputs: Mapping[str, Any] | bytes, signature: str, *, deadline_millis: float | None = None
    ) -> Prediction:
        """Predicts; see `RemotePredictor.predict`."""
        keys = self._keys(self.models[0].signature(signature).keys(inputs))
        fetched = self._fetch(keys, deadline_millis)
        # The rows are fetched: weights that need newer rows are used by a later request.
        weights, number = self._weights(fetched)
        with self._model() as model:
            self._fill(model, keys, fetched)
            answer = model.signature(signature).answer(inputs, weights)
        version = ModelVersion(self.manifest.version, number, fetched.sparse)
        num_found = sum(int(rows.any(dim=1).sum()) for rows in fetched.rows.values())
        return Prediction(answer.outputs, version, answer.num_ids, min(answer.num_ids, num_found))

    @property
    def memory_bytes(self) -> int:
        """Memory of the rows of requests."""
        return sum(store.stats().memory_bytes for model in self.models for store in model.stores.values())

    # Internals

    def _fetch(self, keys: Keys, deadline_millis: float | None) -> FetchedRows:
        try:
            return self.remote.lookup(
                {table: torch.from_numpy(ids) for table, (ids, _) in keys.items()},
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
            return self.models[0].weights, OWN_WEIGHTS
        merged = self._merged.get(chosen.number)
        if merged is None:
            kept = self._dense.numbers
            merged = self.models[0].with_weights(chosen.weights)
            self._merged = {
                **{number: weights for number, weights in self._merged.items() if number in kept},
                chosen.number: merged,
            }
        return merged, chosen.number

    @contextmanager
    def _model(self) -> Iterator[LoadedModel]:
        """Borrows a model that no other thread uses."""
        model = self._idle.get()
        try:
            yield model
        finally:
            self._idle.put(model)

    def _keys(self, lookups: Sequence[LookupKeys]) -> Keys:
        """Returns table name at the shards -> the keys of the ids of a request, and their buckets."""
        by_table: dict[str, list[LookupKeys]] = {}
        for lookup in lookups:
            store, table = lookup.feature.store, lookup.feature.table
            wire_name = self._names[store][self._schemas[store].names.index(table)]
            by_table.setdefault(wire_name, []).append(lookup)
        return {
            table: (
                np.concatenate([lookup.keys for lookup in some]),
                np.concatenate([lookup.buckets for lookup in some]),
            )
            for table, some in by_table.items()
        }

    def _fill(self, model: LoadedModel, keys: Keys, fetched: FetchedRows) -> None:
        """Writes the rows of a request to the tables that its graph reads."""
        for name, store in model.stores.items():
            if store.stats().rows > _MOST_ROWS:
                store.load([], buckets=ALL_BUCKETS, replace=True)
            own = [table for table in self._names[name] if table in keys]
            if not own:
                continue
            splits = np.cumsum([0, *(len(keys[table][0]) if table in keys else 0 for table in self._names[name])])
            known = KeyedRows(
                np.concatenate([keys[table][0] for table in own]),
                splits,
                np.concatenate([keys[table][1] for table in own]),
                told=False,
            )
            store.overwrite(known, np.concatenate([fetched.rows[table].numpy().reshape(-1) for table in own]))


def _require_shards(version: FoundExport, remote: ShardedRows) -> None:
    num_shards = version.with_rows.manifest.shards
    if num_shards and remote.num_shards != num_shards:
        raise FailedPreconditionError(
            f"export of {version.export.manifest.name!r}: it is for {num_shards} shards, got the addresses of"
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
