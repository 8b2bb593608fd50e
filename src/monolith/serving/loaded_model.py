"""One version of a model in memory: its graphs, tables and weights, which `LiveModel` updates while it answers.

With a gate, dense weights of the delta log must pass it before they are served; rows do not pass through it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from monolith.background import PeriodicThread
from monolith.data.protos.example_pb2 import FeatureConfigs, OutType
from monolith.deltalog import DENSE_PART, DeltaLog
from monolith.deltalog.follow import Follower
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, OpError
from monolith.serving.layout import LaidOut, Layout
from monolith.serving.request import checked_numbers, encoded_samples, for_all, typed_columns
from monolith.serving.served_model import ModelVersion
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy as np
    import numpy.typing as npt

    from monolith.clock import Clock
    from monolith.export import FeatureSpec, LoadedGraph, OpenedExport, Signature
    from monolith.serving.promotion.gate import PromotionGate
    from monolith.serving.request import Column, EncodedSamples, TypedColumns
    from monolith.tables import ServingRows

Weights = dict[str, Tensor]


class GraphResult(NamedTuple):
    """Result of a graph."""

    outputs: dict[str, Tensor]
    num_ids: int
    num_found: int


class LookupKeys(NamedTuple):
    """Keys that a request looks up for one feature."""

    feature: FeatureSpec
    keys: npt.NDArray[np.int64]
    buckets: npt.NDArray[np.uint16]


class LoadedModel:
    """An export in memory. Thread-safe; immutable except for the rows of its tables."""

    def __init__(self, export: OpenedExport, stores: Mapping[str, ServingRows]) -> None:
        self.export = export
        self.stores = dict(stores)
        self.weights: Weights = export.weights()
        """Weights of the export."""
        self.signatures = dict(export.signatures)
        self._models = {name: _SignatureModel(name, export, stores, self.weights) for name in self.signatures}

    def signature(self, name: str) -> _SignatureModel:
        """Returns a signature by name."""
        model = self._models.get(name)
        if model is None:
            raise NotFoundError(
                f"model {self.export.manifest.name!r} has no signature {str(name)[:80]!r}, it has"
                f" {', '.join(sorted(self._models))}"
            )
        return model

    def with_weights(self, replacements: Mapping[str, Tensor]) -> Weights:
        """Returns the weights of this model, replaced by those given."""
        weights = dict(self.weights)
        for name, old in self.weights.items():
            new = replacements.get(name)
            if new is None:
                continue
            if new.shape != old.shape or new.dtype != old.dtype:
                raise FailedPreconditionError(
                    f"weight {name!r}: the export has {old.dtype} {list(old.shape)}, the log {new.dtype}"
                    f" {list(new.shape)}; it is the log of another model"
                )
            weights[name] = new
        return weights


class _SignatureModel:
    """A graph with the layout of its inputs."""

    def __init__(
        self, name: str, export: OpenedExport, stores: Mapping[str, ServingRows], weights: Mapping[str, Tensor]
    ) -> None:
        self.name = name
        self.signature: Signature = export.signatures[name]
        self._graph: LoadedGraph = export.graph(name, joins_rows=True)
        self._constants = export.constants(name)
        export.verify(name, self._graph, weights)
        alone = {entry.name for entry in self._graph.inputs if entry.kind == "rows"}
        looked_up = alone | {cut.feature for parts in self._graph.joined.values() for cut in parts.cuts}
        numbers = {entry.name for entry in self._graph.inputs if entry.kind in {"column", "values", "row_splits"}}
        features = [feature for feature in export.features if feature.name in looked_up]
        outputs = _outputs(self._graph, [feature for feature in features if feature.name in alone])
        clash = sorted(numbers & looked_up)
        self._not_encoded = f"column {clash[0]!r} is read as ids and as numbers" if clash else None
        dense = [] if clash else [column for column in export.dense_columns if column.name in numbers]
        self._layout = Layout(features, stores, dense=dense, outputs=outputs)

    def keys(self, inputs: Mapping[str, Any] | bytes) -> list[LookupKeys]:
        """Returns the keys that `answer` looks up for a request, by feature, for callers that fetch the rows first."""
        samples = self._samples(inputs)
        if samples is not None:
            by_feature = self._layout.keys_of_bytes(samples.data, samples.form)
        else:
            by_feature = self._layout.keys_of_columns(self._typed(inputs))
        return [
            LookupKeys(feature, keys, buckets)
            for feature, (keys, buckets, _) in zip(self._layout.features, by_feature, strict=True)
        ]

    def answer(self, inputs: Mapping[str, Any] | bytes, weights: Mapping[str, Tensor]) -> GraphResult:
        """Runs the graph on a request."""
        samples = self._samples(inputs)
        if samples is not None:
            laid_out = self._layout.from_bytes(samples.data, samples.form)
            columns = checked_numbers({**laid_out.inputs, **laid_out.loose}, self.signature)
            return self._run(laid_out, columns, laid_out.num_examples, weights)
        typed = self._typed(inputs)
        rows = self._layout.from_columns(typed) if self._layout.features else None
        return self._run(rows, typed, typed.num_examples, weights)

    def _typed(self, inputs: object) -> TypedColumns:
        if not isinstance(inputs, Mapping):
            raise InvalidArgumentError(f"predict: columns by name or bytes expected, got {type(inputs).__name__}")
        return typed_columns(inputs, self.signature, name=self.name)

    def _samples(self, inputs: Mapping[str, Any] | bytes) -> EncodedSamples | None:
        samples = encoded_samples(inputs, self.signature)
        if samples is not None and self._not_encoded is not None:
            raise InvalidArgumentError(f"signature {self.name!r}: {self._not_encoded}; give columns by name")
        return samples

    def _run(
        self, laid_out: LaidOut | None, columns: Mapping[str, Column], num_rows: int, weights: Mapping[str, Tensor]
    ) -> GraphResult:
        rows = {} if laid_out is None else laid_out.inputs
        known: dict[str, Mapping[str, Tensor]] = {
            "weight": weights,
            "constant": self._constants,
            "rows": rows,
            "joined": rows,
        }
        arguments = [
            known[kind][name] if kind in known else _part(kind, columns[name], num_rows)
            for kind, name in self._graph.inputs
        ]
        with torch.inference_mode():
            outputs = self._graph.call(*arguments)
        counts = (0, 0) if laid_out is None else (laid_out.num_ids, laid_out.num_found)
        return GraphResult(dict(zip(self._graph.outputs, outputs, strict=True)), *counts)


def _outputs(graph: LoadedGraph, alone: Sequence[FeatureSpec]) -> FeatureConfigs | None:
    """Returns the outputs of the layout: features that the graph takes separately, and those that it takes joined."""
    if not graph.joined:
        return None
    configs = FeatureConfigs()
    for feature in alone:
        configs.out_configs[feature.name].slice_configs.add(feature_name=feature.name, start=0, end=feature.dim)
    for name, parts in graph.joined.items():
        output = configs.out_configs[name]
        output.out_type = OutType.STACK if parts.form == "stack" else OutType.CONCAT
        for cut in parts.cuts:
            output.slice_configs.add(feature_name=cut.feature, start=cut.start, end=cut.end)
    return configs


def _part(kind: str, values: Column, num_rows: int) -> Any:
    values = for_all(values, num_rows)
    if isinstance(values, Ragged):
        return values.flat_values if kind == "values" else values.row_splits
    return values


_log = logging.getLogger(__name__)

OWN_WEIGHTS = -1
"""Number that stands for the dense weights of the export."""


class LiveRows:
    """Tables and the follower that updates them. Thread-safe."""

    def __init__(self, stores: Mapping[str, ServingRows], log: DeltaLog | None, clock: Clock, *, export: int) -> None:
        self.stores = dict(stores)
        self.export = export
        self.follower = None if log is None else Follower(stores, log, on_dense=self._take, clock=clock)
        self._lock = threading.Lock()
        self._models: list[LiveModel] = []
        """Models that use these rows: a version with only weights uses the rows of an earlier one."""
        self._dense: tuple[Mapping[str, Tensor], int] | None = None
        """The newest weights of the log, and their number."""
        self._is_started = False

    def begin(self, model: LiveModel) -> bool:
        """Loads the base of the log before `serve`; returns whether all tables have rows now."""
        self._models = [model]
        try:
            return self.follower is not None and self.follower.begin()
        except OpError as error:
            _log.warning("predictor: the export's own rows are served until the log can be followed: %s", error)
            return False

    def serve(self, model: LiveModel) -> None:
        """Passes the dense weights of the log to this model, too, from now on; the first model starts the follower."""
        with self._lock:
            if model not in self._models:
                self._models = [*self._models, model]
                if self._dense is not None:
                    model.take(*self._dense)
            starts, self._is_started = not self._is_started, True
        if starts and self.follower is not None:
            self.follower.start()

    def leave(self, model: LiveModel) -> None:
        """Stops passing weights to a model; when the last one leaves, the follower is closed."""
        with self._lock:
            self._models = [other for other in self._models if other is not model]
            is_last = not self._models
        if model.gate is not None:
            model.gate.close()
        if is_last and self.follower is not None:
            self.follower.close()

    def _take(self, weights: Mapping[str, Tensor]) -> None:
        if self.follower is None:
            return
        with self._lock:
            for model in self._models:
                model.take(weights, self.follower.dense_number)
            self._dense = weights, self.follower.dense_number


class LiveModel:
    """A model, its rows, and its current weights. Thread-safe."""

    def __init__(self, model: LoadedModel, rows: LiveRows, gate: PromotionGate | None = None) -> None:
        self.model = model
        self.rows = rows
        self.current: tuple[Weights, int] = (model.weights, OWN_WEIGHTS)
        """Weights and the number of their increment, in one tuple, so that both change atomically."""
        self.gate = None if gate is None or rows.follower is None else DenseGate(self, gate)

    def take(self, weights: Mapping[str, Tensor], number: int) -> None:
        """Serves these weights from now on, or once they pass the gate; their rows must already be applied."""
        candidate = self.model.with_weights(weights), number
        if self.gate is None:
            self.current = candidate
        else:
            self.gate.offer(candidate)

    @property
    def awaits_gate(self) -> bool:
        """Whether the first weights of the log are still being judged; meanwhile those of the export are served."""
        return self.gate is not None and self.gate.awaits_first

    @property
    def version(self) -> ModelVersion:
        """Minimum version of an answer that starts now."""
        _, dense = self.current
        return ModelVersion(self.model.export.manifest.version, dense, sparse_version(self.rows.follower))


def sparse_version(follower: Follower | None) -> dict[str, int]:
    """Returns part of rows -> number of its last applied increment; empty without a follower."""
    if follower is None:
        return {}
    return {part: number for part, number in follower.version.items() if part != DENSE_PART}


def has_base_of_all(log: DeltaLog, stores: Collection[str]) -> bool:
    """Returns whether the log has a base for every store, so that the rows of the export are not needed."""
    with contextlib.suppress(Exception):
        based = {store for base in log.bases() for store in base.stores}
        return based >= set(stores)
    return False


class WithWeights:
    """A model with candidate weights, for the gate."""

    def __init__(self, live: LiveModel, weights: Weights) -> None:
        self._model = live.model
        self._weights = weights

    @property
    def signatures(self) -> Mapping[str, Any]:
        """Signatures by name."""
        return self._model.signatures

    def predict(self, inputs: Any, signature: str) -> GraphResult:
        """Predicts with the candidate weights and the current rows."""
        return self._model.signature(signature).answer(inputs, self._weights)


class DenseGate:
    """Gate between the delta log and a model's weights. One thread judges, always the newest weights. Thread-safe.

    The rows that weights need are applied before the weights are offered, and only become newer while they wait.
    """

    def __init__(self, live: LiveModel, gate: PromotionGate) -> None:
        self._live = live
        self._gate = gate
        self._lock = threading.Lock()  # guards the field below
        self._offered: tuple[Weights, int] | None = None
        self.awaits_first = False
        """Whether weights were offered and none judged yet: the model still serves the weights of its export."""
        self._thread = PeriodicThread(self._judge, every=None, name="monolith-gate", on_error=self._note_error)
        self.problem: str | None = None
        """Why the last judged weights are not served; None: they are."""

    def offer(self, candidate: tuple[Weights, int]) -> None:
        """Offers new weights with the number of their increment; they replace waiting ones."""
        with self._lock:
            self._offered = candidate
            if self._thread.ident is None:
                self.awaits_first = True
                self._thread.start()
        self._thread.wake()

    def close(self) -> None:
        """Stops the thread; waiting weights are not served. Idempotent."""
        self._thread.close()

    def _judge(self) -> None:
        torch.set_num_threads(1)  # of this thread; leaves the cores to requests
        with self._lock:
            candidate, self._offered = self._offered, None
        if candidate is None:
            return
        weights, number = candidate
        served, served_number = self._live.current
        judged, against = WithWeights(self._live, weights), WithWeights(self._live, served)
        refused = self._gate.judge(judged, kind="dense", against=against).refused
        if refused is None:
            self._live.current, self.problem = candidate, None
        else:
            self._note_refusal(number, refused, served_number)
        self.awaits_first = False

    def _note_error(self, error: Exception) -> None:
        self.problem = f"the newest dense weights of the delta log could not be judged: {error!r}"

    def _note_refusal(self, number: int, refused: str, served: int) -> None:
        current = "those of the export" if served < 0 else f"those of increment {served}"
        self.problem = (
            f"dense weights of increment {number} of the delta log did not pass the gate, {current} are served:"
            f" {refused}"
        )
        _log.error("predictor: %s", self.problem)
