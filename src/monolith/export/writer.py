"""Writes an export: graphs, weights and rows first, the manifest last."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from monolith.checkpoint import tensors_to_bytes
from monolith.clock import Clock, SystemClock
from monolith.data import Batch, TextColumn
from monolith.errors import AlreadyExistsError, InvalidArgumentError
from monolith.export.export_folder import ENTRY, ExportFolder, versions_in
from monolith.export.graph import ModelCall, ModelGraph, TracedModel, trace
from monolith.export.manifest import ExportKind, ExportManifest, RowsPlace
from monolith.export.opened import CONSTANTS, EXAMPLE, WEIGHTS, graph_name
from monolith.export.serving_rows import copy_for_serving, describe_tables, tables_of
from monolith.export.signature import DEFAULT_SIGNATURE, InputSpec, OutputSpec, Signature
from monolith.files import is_name, join
from monolith.tables import NUM_BUCKETS, Store, owned_ranges, require_owners
from monolith.tables.snapshot import MANIFEST_NAME, save
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, Sequence

    from monolith.export.layout_spec import DenseSpec, FeatureSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource:
    """A model to export. It must not be trained meanwhile."""

    name: str
    step: int
    model: ModelCall
    stores: Mapping[str, Store]
    signatures: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Name -> columns that it reads; empty: one signature that reads all."""
    extra_outputs: Callable[[], Mapping[str, Callable[[Any], object]]] = dict
    """Called after the model: returns further signatures, and the functions that compute their outputs for a batch."""
    snapshots: Mapping[str, Sequence[str]] | None = None
    """Store -> folders of a snapshot with its rows, one or several parts; None: the stores have them."""
    leaves_out_unread: bool = False
    """Whether to omit stores that no graph reads."""
    graphs: MutableMapping[str, ModelGraph] | None = None
    """Signature -> its graph of the last export, for repeated exports: it is reused if the model does the same. None:
    no reuse."""
    texts: Mapping[str, TextColumn] = field(default_factory=dict)
    """Columns for which requests may have texts, if the example is not a `Batch`, which has this information."""
    on_rows: Callable[[int], None] | None = None
    """Called with the number of rows of a snapshot written since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """Options of an export."""

    version: int | None = None
    """Number of the version; None: the Unix time."""
    shards: int = 0
    """Number of shards; above 0, rows are in folders ``ps_<i>`` next to ``entry``."""
    checkpoint: str | None = None
    """Prefix of a checkpoint with the same rows, to be referenced instead of copying them."""
    dense_only: bool = False
    """Whether to write only graph and weights; the rows of the previous version are used."""
    skip_zero: bool = False
    """Whether serving tables drop rows of zeros."""
    clock: Clock | None = None


def write_export(source: ExportSource, path: str, example: Mapping[str, Any], options: ExportConfig) -> str:
    """Writes one version of a model below a path.

    Args:
        source: The model.
        path: A folder, local or any fsspec path.
        example: A batch with every column that requests will have.
        options: Options.

    Returns:
        The folder of the version; that of its entry if there are shards.

    Raises:
        InvalidArgumentError: the model cannot be exported; the message names the line. Nothing was written.
    """
    traced = _all_traced(source, columns_of(example))
    source = replace(source, texts=example.texts if isinstance(example, Batch) else source.texts)
    if source.leaves_out_unread:
        read = {feature.store for model in traced.values() for feature in model.features}
        source = replace(source, stores={name: store for name, store in source.stores.items() if name in read})
    if options.shards:
        require_owners(options.shards, subject="export", name="shards")
    version = _free_version(path, options)
    place = join(path, ENTRY, str(version)) if options.shards else join(path, str(version))
    folder = ExportFolder(place)
    files = _write_model(folder, traced)
    rows = None if options.dense_only else _write_rows(source, path, version, options)
    kind: ExportKind = "dense" if options.dense_only else "entry" if options.shards else "standalone"
    manifest = _manifest(source, traced, version=version, kind=kind, files=files, rows=rows, options=options)
    if not options.dense_only:
        _write_shards(manifest, path, options)
    folder.publish(manifest)
    return place


def columns_of(example: Mapping[str, Any]) -> dict[str, Tensor | Ragged]:
    """Returns the columns that a graph can take: numbers; texts are ignored.

    Raises:
        InvalidArgumentError: there are none.
    """
    columns: dict[str, Tensor | Ragged] = {}
    for name, values in example.items():
        if isinstance(values, Tensor | Ragged):
            columns[name] = values.detach().cpu() if isinstance(values, Tensor) else values
        elif isinstance(values, np.ndarray) and values.dtype.kind in "iufb":
            columns[name] = torch.from_numpy(np.ascontiguousarray(values))
    if not columns:
        raise InvalidArgumentError(
            "export: the example must be a batch with columns of numbers by name, got"
            f" {', '.join(map(str, example)) or 'nothing'}"
        )
    return columns


def _signatures(source: ExportSource, columns: Mapping[str, Any]) -> dict[str, list[str]]:
    reads_of = {name: list(reads) for name, reads in source.signatures.items()} or {DEFAULT_SIGNATURE: list(columns)}
    for name, reads in reads_of.items():
        _require_name(name)
        if not reads:
            raise InvalidArgumentError(f"signature {name!r}: it reads no column; name those that its requests have")
        if missing := [column for column in reads if column not in columns]:
            raise InvalidArgumentError(
                f"signature {name!r}: column {missing[0]!r} is not in the example, which has {', '.join(columns)}"
            )
    return reads_of


def _require_name(name: str) -> None:
    if not is_name(name) or not name.isprintable():
        raise InvalidArgumentError(f"signature {name!r}: a name must be that of a file")


def _all_traced(source: ExportSource, columns: Mapping[str, Tensor | Ragged]) -> dict[str, TracedModel]:
    traced = {}
    for name, reads in sorted(_signatures(source, columns).items()):
        read = {column: columns[column] for column in reads}
        traced[name] = trace(source.model, read, name=name, graphs=source.graphs)
    for name, call in sorted(source.extra_outputs().items()):
        _require_name(name)
        if name in traced:
            raise InvalidArgumentError(
                f"signature {name!r}: it has predictions, and outputs were added under the same name; give them another"
            )
        traced[name] = trace(replace(source.model, call=call), columns, name=name, graphs=source.graphs)
    return traced


def _free_version(path: str, options: ExportConfig) -> int:
    """Returns the requested version, or Unix seconds above all existing versions: servers load the highest."""
    places = (path, join(path, ENTRY))
    if options.version is None:
        newest = max([version for place in places for version in versions_in(place)[-1:]], default=-1)
        return max(int((options.clock or SystemClock()).now()), newest + 1)
    if any(ExportFolder(join(place, str(options.version))).is_whole for place in places):
        raise AlreadyExistsError(f"export '{path}': there is a version {options.version}; give another, or remove it")
    return options.version


def _write_model(folder: ExportFolder, traced: Mapping[str, TracedModel]) -> dict[str, dict[str, int]]:
    weights: dict[str, Tensor] = {}
    constants: dict[str, Tensor] = {}
    example: dict[str, Tensor] = {}
    files = {}
    for signature, model in traced.items():
        files[graph_name(signature)] = folder.write(graph_name(signature), model.graph.text)
        weights |= model.weights
        constants |= {f"{signature}/{name}": tensor for name, tensor in model.graph.constants.items()}
        example |= {f"{signature}/{key}": tensor for key, tensor in model.example_tensors().items()}
    for name, tensors in ((WEIGHTS, weights), (CONSTANTS, constants), (EXAMPLE, example)):
        whole = {key: tensor.contiguous() for key, tensor in tensors.items()}
        files[name] = folder.write(name, tensors_to_bytes(whole))
    return files


def _write_rows(source: ExportSource, path: str, version: int, options: ExportConfig) -> RowsPlace:
    if options.checkpoint is not None:
        return RowsPlace(kind="checkpoint", path=options.checkpoint)
    place = join(path, "rows", str(version)) if options.shards else join(path, str(version), "rows")
    files = min(NUM_BUCKETS, 4 * options.shards)  # so that a server reads little beyond its buckets
    for name, store in source.stores.items():
        if source.snapshots is None:
            save(store, join(place, name), state=False, num_files=files or None)
        else:
            tables = tables_of(_described(source, store, options), origin=f"store {name!r}")
            copy_for_serving(
                source.snapshots[name], join(place, name), tables, least_files=max(1, files), on_rows=source.on_rows
            )
    manifests = {name: ExportFolder(join(place, name)).sum_of(MANIFEST_NAME) for name in source.stores}
    return RowsPlace(kind="snapshot", path=f"../../rows/{version}" if options.shards else "rows", manifests=manifests)


def _write_shards(manifest: ExportManifest, path: str, options: ExportConfig) -> None:
    """Writes the manifests of the shards: each server reads its buckets of the same files."""
    rows = manifest.rows
    assert rows is not None  # noqa: S101 - only an export of weights alone has none, and no shards
    for shard, buckets in enumerate(owned_ranges(options.shards) if options.shards else ()):
        own_rows = replace(rows, buckets=(buckets.start, buckets.stop))
        own = replace(manifest, kind="ps", signatures={}, dense=(), rows=own_rows, shard=shard, files={})
        ExportFolder(join(path, f"ps_{shard}", str(manifest.version))).publish(own)


def _manifest(
    source: ExportSource,
    traced: Mapping[str, TracedModel],
    *,
    version: int,
    kind: ExportKind,
    files: dict[str, dict[str, int]],
    rows: RowsPlace | None,
    options: ExportConfig,
) -> ExportManifest:
    clock = options.clock or SystemClock()
    features: dict[str, FeatureSpec] = {}
    dense: dict[str, DenseSpec] = {}
    for name, model in traced.items():
        features |= {spec.name: spec for spec in _same(features, model.features, name)}
        dense |= {spec.name: spec for spec in model.dense_columns()}
    return ExportManifest(
        name=source.name,
        version=version,
        kind=kind,
        created=int(clock.now()),
        step=source.step,
        torch=torch.__version__,
        signatures={name: _signature(model, source.texts) for name, model in traced.items()},
        features=tuple(features.values()),
        dense=tuple(dense.values()),
        stores={name: _described(source, store, options) for name, store in source.stores.items()},
        rows=rows,
        shards=options.shards,
        files=files,
    )


def _described(source: ExportSource, store: Store, options: ExportConfig) -> dict[str, Any]:
    embeddings = next(each for each in source.model.embeddings.values() if each.store is store)
    return describe_tables(store.schema, embeddings.table_configs, skip_zero=options.skip_zero)


def _same(known: Mapping[str, FeatureSpec], features: Sequence[FeatureSpec], signature: str) -> Sequence[FeatureSpec]:
    for feature in features:
        if known.get(feature.name, feature) != feature:
            raise InvalidArgumentError(
                f"signature {signature!r}: feature {feature.name!r} has other rows than in another signature; give the"
                " columns names of their own"
            )
    return features


def _signature(model: TracedModel, texts: Mapping[str, TextColumn]) -> Signature:
    ids = {feature.source for feature in model.features}
    inputs = {
        name: InputSpec.of(values, "ids" if name in ids else "dense", texts.get(name))
        for name, values in sorted(model.example.items())
    }
    rows = next(column.shape[0] if isinstance(column, Tensor) else column.num_rows for column in model.example.values())
    outputs = {name: OutputSpec.of(values, rows) for name, values in model.expected.items()}
    return Signature(inputs=inputs, outputs=outputs)
