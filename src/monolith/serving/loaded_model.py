"""One version of a model in memory: its graphs, its tables, and its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from monolith.data.protos.example_pb2 import FeatureConfigs, OutType
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.serving.layout import LaidOut, Layout
from monolith.serving.request import checked_numbers, encoded_samples, for_all, typed_columns
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    import numpy.typing as npt

    from monolith.export import FeatureSpec, LoadedGraph, OpenedExport, Signature
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
    """An export in memory. Thread-safe; immutable except for the rows of its tables.

    Raises:
        DataLossError, UnimplementedError, FailedPreconditionError: a graph cannot be used here; the message gives the
            reason.
    """

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
