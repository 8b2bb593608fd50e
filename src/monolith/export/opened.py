"""`open_export`: reads an untrusted export, with each part checked when it is read."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from monolith.checkpoint import read_manifest, snapshots_of, tensors_from_bytes
from monolith.errors import DataLossError, FailedPreconditionError, NotFoundError
from monolith.export.export_folder import ExportFolder, find_export
from monolith.export.graph_file import JoinedRows, LoadedGraph, graph_from_bytes
from monolith.export.graph_limits import InputShape, input_shape, require_bounded_graph
from monolith.export.serving_rows import schema_of, tables_of
from monolith.files import join
from monolith.tables import Schema, ServingRows, Store, TableConfig, shared_buckets
from monolith.tables.local import LocalStore
from monolith.tables.snapshot import MANIFEST_NAME, open_source, restore
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from monolith.export.layout_spec import DenseSpec, FeatureSpec
    from monolith.export.manifest import ExportManifest, RowsPlace
    from monolith.export.signature import Signature

_TOLERANCE = 1e-3
"""Between two builds of torch: the order of sums may differ."""


class WarmUp(NamedTuple):
    """The example request stored with the export."""

    columns: dict[str, Tensor | Ragged]
    graph_inputs: dict[str, Tensor]
    """``kind:name`` -> input of its graph."""
    outputs: dict[str, Tensor]


class OpenedExport:
    """An export on disk, read lazily and never changed. Thread-safe."""

    def __init__(self, folder: ExportFolder) -> None:
        self.folder = folder
        self.manifest: ExportManifest = folder.manifest()
        self._origin = f"export '{folder.path}'"
        self.signatures: Mapping[str, Signature] = self.manifest.signatures
        """Signatures by name."""
        self.features: tuple[FeatureSpec, ...] = self.manifest.features
        """Columns of ids."""
        self.dense_columns: tuple[DenseSpec, ...] = self.manifest.dense
        """Columns of numbers."""

    def graph(self, signature: str, *, joins_rows: bool = False) -> LoadedGraph:
        """Loads the graph of a signature, which takes the weights as arguments.

        Args:
            signature: Name of the signature.
            joins_rows: Whether features that the graph concatenates become one input; see `LoadedGraph.joined`.

        Raises:
            NotFoundError: the signature does not exist.
            DataLossError, UnimplementedError, FailedPreconditionError: the graph is damaged, has operations that are
                not allowed, or belongs to another version of torch; nothing of it ran.
        """
        if signature not in self.signatures:
            raise NotFoundError(
                f"{self._origin}: there is no signature {signature!r}, it has {', '.join(sorted(self.signatures))}"
            )
        name = graph_name(signature)
        text = self.folder.read(name, self.manifest)
        return graph_from_bytes(text, origin=f"file '{join(self.folder.path, name)}'", joins_rows=joins_rows)

    def weights(self) -> dict[str, Tensor]:
        """Reads the dense weights by name."""
        return self._tensors(WEIGHTS)

    def constants(self, signature: str) -> dict[str, Tensor]:
        """Reads the constants of a graph, which are not weights."""
        prefix = f"{signature}/"
        tensors = self._tensors(CONSTANTS)
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    def warm_up(self, signature: str) -> WarmUp:
        """Reads the stored request of a signature and its answer."""
        tensors = self._tensors(EXAMPLE)
        parts: dict[str, dict[str, Tensor]] = {"column": {}, "values": {}, "splits": {}, "graph": {}, "output": {}}
        for key, tensor in tensors.items():
            name, kind, of = key.split("/", 2)
            if name == signature and kind in parts:
                parts[kind][of] = tensor
        columns: dict[str, Tensor | Ragged] = dict(parts["column"])
        columns |= {name: Ragged(values, parts["splits"][name]) for name, values in parts["values"].items()}
        return WarmUp(columns, parts["graph"], parts["output"])

    def schemas(self) -> dict[str, Schema]:
        """Returns store -> schema of its serving rows."""
        return {store: schema_of(text, origin=self._origin) for store, text in self.manifest.stores.items()}

    def new_stores(
        self, engine: Callable[[Mapping[str, TableConfig]], ServingRows] = LocalStore
    ) -> dict[str, ServingRows]:
        """Creates empty serving tables for all stores, with rows in this process or in another engine."""
        return {store: engine(tables_of(text, origin=self._origin)) for store, text in self.manifest.stores.items()}

    def load_rows(self, stores: Mapping[str, Store]) -> int:
        """Loads the rows into tables; returns their number.

        Raises:
            FailedPreconditionError: the export has no rows, or a store has another schema.
            DataLossError: a file of the rows is damaged, or they are those of another export.
        """
        rows = self.manifest.rows
        if rows is None:
            raise FailedPreconditionError(
                f"{self._origin}: it is of kind {self.manifest.kind!r} and has no rows; load them from its"
                " shards (ps_<i>) or from an earlier version, see docs/formats/export.md"
            )
        if unknown := [name for name in stores if name not in self.manifest.stores]:
            there = list(self.manifest.stores)
            raise NotFoundError(f"{self._origin}: there is no store {unknown[0]!r}, it has {there}")
        folders = self._rows_folders(rows, stores)
        return sum(
            sum(restore(store, folder, buckets=buckets).rows.values())
            for name, store in stores.items()
            for folder, buckets in _parts_of(folders[name], range(*rows.buckets))
        )

    def verify(self, signature: str, graph: LoadedGraph, weights: Mapping[str, Tensor]) -> None:
        """Checks the bounds of the graph, and runs the stored example.

        Raises:
            FailedPreconditionError: a version of torch other than that of the export gives another result, or cannot
                run it.
            DataLossError: the same version of torch does, or the graph exceeds its limits.
        """
        example, constants = self.warm_up(signature), self.constants(signature)
        origin = f"{self._origin}, signature {signature!r}"
        require_bounded_graph(graph.module, self._inputs(signature, graph, weights), origin=origin)
        known: dict[str, Mapping[str, Tensor]] = {"weight": weights, "constant": constants}
        try:
            known["joined"] = {name: _joined(parts, example.graph_inputs) for name, parts in graph.joined.items()}
            given = example.graph_inputs
            arguments = [known[kind][name] if kind in known else given[f"{kind}:{name}"] for kind, name in graph.inputs]
            with torch.inference_mode():
                outputs = dict(zip(graph.outputs, graph.call(*arguments), strict=True))
            same = outputs.keys() == example.outputs.keys() and all(
                torch.allclose(values, example.outputs[name], rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
                for name, values in outputs.items()
            )
            reason = "it answers the stored example otherwise than when it was exported"
        except Exception as error:  # noqa: BLE001 - a graph of another torch may raise anything
            same, reason = False, f"it cannot answer the stored example: {type(error).__name__}: {str(error)[:200]}"
        if same:
            return
        if self.manifest.torch != torch.__version__:
            raise FailedPreconditionError(
                f"{self._origin}, signature {signature!r}: exported with torch {self.manifest.torch}, and with torch"
                f" {torch.__version__} {reason}; export again, or serve with torch {self.manifest.torch}"
            )
        raise DataLossError(f"{self._origin}, signature {signature!r}: {reason}; export again")

    def try_rows(self, signature: str, graph: LoadedGraph, weights: Mapping[str, Tensor], count: int) -> None:
        """Runs a graph on this number of examples of zeros; results and errors of the graph are ignored.

        Raises:
            MemoryError: there is not enough memory.
        """
        inputs = self._inputs(signature, graph, weights)
        columns = {value.first for value in inputs if not isinstance(value, Tensor)}
        sizes = dict.fromkeys(columns, count) | {"splits": count + 1}
        zeros = [
            value if isinstance(value, Tensor) else torch.zeros(value.sized(sizes).shape, dtype=value.dtype)
            for value in inputs
        ]
        try:
            with torch.inference_mode():
                graph.call(*zeros)
        except Exception as error:
            if "memory" in str(error):
                raise MemoryError from error

    def _inputs(self, signature: str, graph: LoadedGraph, weights: Mapping[str, Tensor]) -> list[InputShape | Tensor]:
        """Returns the inputs of a graph: weights and constants, and shapes of the inputs of requests."""
        constants, origin = self.constants(signature), f"{self._origin}, signature {signature!r}"
        features = {feature.name: feature.shape for feature in self.features}
        columns = {
            name: (getattr(torch, spec.dtype), tuple(size or 0 for size in spec.shape[1:]))
            for name, spec in self.signatures[signature].inputs.items()
        }
        known = {"weight": weights, "constant": constants}
        if missing := [name for kind, name in graph.inputs if kind in known and name not in known[kind]]:
            raise DataLossError(f"{origin}: there is no weight or constant {missing[0]!r:.80}; export again")
        return [
            known[place.kind][place.name]
            if place.kind in known
            else input_shape(place, graph.joined, features, columns)
            for place in graph.inputs
        ]

    def _tensors(self, name: str) -> dict[str, Tensor]:
        data = self.folder.read(name, self.manifest)
        return tensors_from_bytes(data, origin=f"file '{join(self.folder.path, name)}'")

    def _rows_folders(self, rows: RowsPlace, stores: Mapping[str, Store]) -> dict[str, list[str]]:
        """Returns store -> folders of its snapshot; several for a checkpoint saved by ranks."""
        if rows.kind == "snapshot":
            folders = {name: join(self.folder.path, rows.path, name) for name in stores}
            for name, expected in rows.manifests.items():
                if name in folders:
                    ExportFolder(folders[name]).read_summed(MANIFEST_NAME, expected)
            return {name: [folder] for name, folder in folders.items()}
        try:
            all_stores: Any = {name: stores.get(name) for name in self.manifest.stores}
            return snapshots_of(rows.path, read_manifest(rows.path), all_stores, is_needed=stores.__contains__)
        except NotFoundError as error:
            raise NotFoundError(
                f"{self._origin}: its rows are those of a checkpoint, which must be kept as long as it: {error}"
            ) from error


def _parts_of(folders: list[str], buckets: range) -> Iterator[tuple[str, range]]:
    """Yields the folders with rows of some buckets, and those buckets; a single folder is used for all."""
    if len(folders) == 1:
        yield folders[0], buckets
        return
    for folder in folders:
        with closing(open_source(folder)) as source:
            shared = shared_buckets(source.manifest.buckets, buckets)
        if shared:
            yield folder, shared


def _joined(parts: JoinedRows, inputs: Mapping[str, Tensor]) -> Tensor:
    cuts = [inputs[f"rows:{cut.feature}"][:, cut.start : cut.end] for cut in parts.cuts]
    return torch.cat(cuts, 1) if parts.form == "concat" else torch.stack(cuts, 1)


WEIGHTS = "weights.safetensors"
CONSTANTS = "constants.safetensors"
EXAMPLE = "example.safetensors"


def graph_name(signature: str) -> str:
    """Returns the file name of the graph of a signature."""
    return f"graph.{signature}.json"


def open_export(path: str) -> OpenedExport:
    """Opens an export: its folder, or the newest version below a path.

    Raises:
        NotFoundError: there is no export, or its write was not completed.
        DataLossError, UnimplementedError: the manifest is damaged, or of another version.
    """
    return OpenedExport(find_export(path))
