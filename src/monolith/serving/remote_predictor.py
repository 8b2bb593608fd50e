"""`RemotePredictor`: answers from the entry of an export whose rows are at shards, looked up for each request."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from monolith.export.opened import open_export
from monolith.export.signature import DEFAULT_SIGNATURE
from monolith.nn._id_batch import IdBatchReader
from monolith.nn._merge import PlacedSlot
from monolith.nn.combiners import ReduceSum
from monolith.nn.slot import Slot
from monolith.serving.loaded_model import LoadedModel
from monolith.serving.prediction import ModelVersion, Prediction
from monolith.serving.request_columns import request_columns
from monolith.serving.shards.remote_rows import RemoteRows
from monolith.serving.shards.shard_tables import wire_names
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.keyed_rows import KeyedRows, write_keyed
from monolith.tables.local_store import LocalStore
from monolith.tables.table_config import Segment, TableConfig
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from monolith.export.layout_spec import FeatureSpec
    from monolith.export.signature import Signature
    from monolith.nn._id_batch import IdBatch
    from monolith.serving.shards.remote_rows import FetchedRows
    from monolith.serving.shards.replicas import Replicas
    from monolith.tables.schema import Schema

__all__ = ["RemotePredictor"]

_OWN_WEIGHTS = -1
_MOST_ROWS = 200_000
"""Rows of past requests that are kept before all are let go."""


class RemotePredictor:
    """The entry of a model with shards. Any thread may call it; nothing is opened before the first call.

    Args:
        path: The entry of an export, or a folder with its versions.
        shards: The addresses of the replicas of each shard, or who knows them.
        threads: Requests whose graphs are called at once; each has memory of its own for the rows of its request.
        options: Of `RemoteOptions`, by name: deadline, hedging, what a lost shard means.

    Raises:
        NotFoundError: there is no export.
        FailedPreconditionError: it is for another number of shards.
    """

    def __init__(
        self, path: str, shards: Replicas | Sequence[Sequence[str]], *, threads: int = 1, **options: Any
    ) -> None:
        if threads < 1:
            raise InvalidArgumentError(f"RemotePredictor: threads must be >= 1, got {threads}")
        self._export = open_export(path)
        self._schemas = self._export.schemas()
        self._names = wire_names({name: schema.names for name, schema in self._schemas.items()})
        dims = {
            wire: dim
            for store, schema in self._schemas.items()
            for wire, dim in zip(self._names[store], schema.dims, strict=True)
        }
        self._remote = RemoteRows(self._export.manifest.name, dims, shards, **options)
        self._require_shards()
        self._readers = {each.name: (self._wire_name(each), _feature_reader(each)) for each in self._export.features}
        """Feature -> its table, as shards call it, and what makes keys of ids."""
        self._idle: queue.SimpleQueue[LoadedModel] = queue.SimpleQueue()
        for _ in range(threads):
            self._idle.put(LoadedModel(self._export, {name: _scratch(each) for name, each in self._schemas.items()}))
        self._is_closed = False

    def predict(
        self,
        inputs: Mapping[str, Any] | bytes,
        signature: str = DEFAULT_SIGNATURE,
        *,
        deadline_millis: float | None = None,
    ) -> Prediction:
        """The predictions for some examples.

        Args:
            inputs: Columns by name, as `Predictor.predict` takes them; encoded samples are refused.
            signature: What is asked.
            deadline_millis: For the lookup, where it is less than that of all.

        Raises:
            InvalidArgumentError: inputs that do not fit the signature; says which.
            NotFoundError: a signature that the model does not have.
            OpError: rows could not be looked up.
        """
        if self._is_closed:
            raise UnavailableError("predictor: it is closed")
        if not isinstance(inputs, Mapping):
            raise InvalidArgumentError(f"predict: columns by name expected, got {type(inputs).__name__}")
        if signature not in self.signatures:
            known = ", ".join(sorted(self.signatures))
            raise NotFoundError(f"model {self.name!r} has no signature {str(signature)[:80]!r}, it has {known}")
        columns = request_columns(inputs, self.signatures[signature], name=signature)
        keys = self._keys(columns)
        fetched = self._remote.lookup(
            {table: found for table, (found, _) in keys.items()},
            buckets={table: buckets for table, (_, buckets) in keys.items()},
            deadline_millis=deadline_millis,
        )
        with self._model() as model:
            self._fill(model, keys, fetched)
            answer = model.signature(signature).answer(inputs, model.weights)
        version = ModelVersion(self._export.manifest.version, _OWN_WEIGHTS, fetched.sparse)
        return Prediction(answer.outputs, version, answer.num_ids, answer.num_found)

    @property
    def name(self) -> str:
        """Of the model."""
        return self._export.manifest.name

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """What it can be asked."""
        return self._export.signatures

    def close(self) -> None:
        """Ends connections. Again: does nothing."""
        self._is_closed = True
        self._remote.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside

    def _wire_name(self, feature: FeatureSpec) -> str:
        return self._names[feature.store][self._schemas[feature.store].names.index(feature.table)]

    def _require_shards(self) -> None:
        found, wanted = self._remote.num_shards, self._export.manifest.shards
        if wanted and found != wanted:
            raise FailedPreconditionError(
                f"export of {self.name!r}: it is for {wanted} shards, got the addresses of {found}"
            )

    @contextmanager
    def _model(self) -> Iterator[LoadedModel]:
        """One that no other thread has."""
        model = self._idle.get()
        try:
            yield model
        finally:
            self._idle.put(model)

    def _keys(self, columns: Mapping[str, Tensor | Ragged]) -> dict[str, tuple[Tensor, Tensor]]:
        """Table, as shards call it -> the keys of the ids of a request, and their buckets."""
        found: dict[str, list[IdBatch]] = {}
        for feature in self._export.features:
            if feature.source in columns:
                table, reader = self._readers[feature.name]
                values = columns[feature.source]
                flat = values.flat_values if isinstance(values, Ragged) else values.reshape(-1)
                found.setdefault(table, []).append(reader.read({feature.name: flat}))
        return {
            table: (
                torch.from_numpy(np.concatenate([each.ids for each in batches])),
                torch.from_numpy(np.concatenate([each.buckets for each in batches]).astype(np.int32)),
            )
            for table, batches in found.items()
        }

    def _fill(self, model: LoadedModel, asked: Mapping[str, tuple[Tensor, Tensor]], fetched: FetchedRows) -> None:
        """Puts the rows of a request where its graph looks for them."""
        for name, store in model.stores.items():
            if store.stats().rows > _MOST_ROWS:
                store.load([], buckets=ALL_BUCKETS, replace=True)
            tables = self._names[name]
            keys = [asked[table][0].numpy() for table in tables if table in asked]
            if not keys:
                continue
            buckets = [asked[table][1].numpy().astype(np.uint16) for table in tables if table in asked]
            rows = [fetched.rows[table].numpy().reshape(-1) for table in tables if table in asked]
            splits = np.cumsum([0, *(len(asked[table][0]) if table in asked else 0 for table in tables)])
            known = KeyedRows(np.concatenate(keys), splits, np.concatenate(buckets), told=False)
            write_keyed(store, known, np.concatenate(rows), finite=False)


def _feature_reader(feature: FeatureSpec) -> IdBatchReader:
    slot = PlacedSlot(
        name=feature.name,
        slot=Slot(dim=feature.dim, id_layout=feature.id_layout, padding_id=feature.padding_id),
        combiner=ReduceSum(),
        table=feature.table,
        number=feature.number,
        wide_index=feature.wide_index,
        dim=feature.dim,
        column=0,
    )
    return IdBatchReader([slot], [feature.table])


def _scratch(schema: Schema) -> LocalStore:
    """Tables for the rows of requests, which are kept as they come."""
    return LocalStore(
        {
            table.name: TableConfig([Segment(table.dim)], serving=True, wide_slots=table.wide_slots)
            for table in schema.tables
        }
    )
