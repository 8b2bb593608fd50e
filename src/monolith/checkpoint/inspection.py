"""Inspects checkpoints without a model: lists, verifies, compares and copies them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith import _core
from monolith.checkpoint.catalog import Catalog, full_local_path, read_manifest
from monolith.checkpoint.manifest import SUFFIX, Manifest
from monolith.checkpoint.protos.checkpoint_state_pb2 import CheckpointState
from monolith.checkpoint.retention import read_best
from monolith.checkpoint.snapshots import newest_of_ranks
from monolith.checkpoint.state_files import (
    CHECKPOINT,
    checkpoint_exists,
    get_monolith_checkpoint_state,
    split_path,
    write_checkpoint_state,
)
from monolith.checkpoint.tensor_file import FileSum, sum_of, tensors_of, write_tensors
from monolith.checkpoint.writing import ASSETS, META, TENSORS
from monolith.errors import AlreadyExistsError, DataLossError, InvalidArgumentError, NotFoundError
from monolith.files import StoragePath, is_name, open_storage
from monolith.observe.summaries import nas_weight_json
from monolith.tables import TableSchema, has_explicit_bucket, ids_of_keys
from monolith.tables.formats import BlockKind
from monolith.tables.snapshot import MANIFEST_NAME, open_source, read_blocks, rewrite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from monolith.checkpoint.manifest import CheckpointFile, TablesEntry
    from monolith.tables.formats import RowBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCheckpoint:
    """A line of ``monolith checkpoint list``."""

    path: str
    step: int
    generation: int
    created: float
    kind: str
    rows: int
    bytes: int
    latest: bool
    """Whether the file `checkpoint` points to it."""
    exempt: bool
    """Whether retention ignores it."""


def list_checkpoints(model_dir: StoragePath, *, basename: str = "model.ckpt") -> list[ListedCheckpoint]:
    """Returns the checkpoints of a directory, by step. Raises if a manifest is damaged.

    Raises:
        NotFoundError: there is no such directory.
    """
    folder = open_storage(model_dir)
    if not folder.is_there():
        raise NotFoundError(f"'{folder.path}': there is no such directory")
    catalog = Catalog(folder, basename)
    state = catalog.state()
    monolith = None
    if folder.exists("monolith_checkpoint"):
        monolith = get_monolith_checkpoint_state(model_dir, remove_invalid_path=True)
    exempt = set() if monolith is None else set(monolith.exempt_model_checkpoint_paths)
    best = read_best(folder)
    if best is not None:
        exempt.add(best.path)
    return [
        ListedCheckpoint(
            path=path,
            step=manifest.step,
            generation=manifest.generation,
            created=manifest.created,
            kind=manifest.kind,
            rows=sum(sum(tables.rows.values()) for tables in manifest.tables.values()),
            bytes=manifest.num_bytes,
            latest=state is not None and state.model_checkpoint_path == path,
            exempt=path in exempt,
        )
        for path in catalog.committed()
        for manifest in (read_manifest(path),)
    ]


def resolve(path: str, *, basename: str = "model.ckpt") -> str:
    """Returns the full prefix of a checkpoint, given as a prefix or as a directory, whose newest one is taken.

    Raises:
        NotFoundError: there is none.
    """
    full = full_local_path(path.removesuffix(SUFFIX).rstrip("/"))
    if checkpoint_exists(full):
        return full
    for candidate in newest_of_ranks(Catalog(open_storage(full), basename)):
        if checkpoint_exists(candidate):
            return candidate
    raise NotFoundError(f"'{path}': neither a checkpoint (no {SUFFIX[1:]} of that name) nor a directory with one")


class SavedState:
    """A checkpoint on disk: read lazily, never changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        root, self.prefix = split_path(path)
        self.folder = open_storage(root)
        self.manifest: Manifest = read_manifest(path)

    def tensors(self) -> dict[str, Tensor]:
        """Returns all tensors; weights of the model by their names."""
        return tensors_of(self.folder, self.manifest.tensors)

    def weights(self) -> dict[str, Tensor]:
        """Returns the model's weights and buffers by their names."""
        tensors, named = self.tensors(), self.manifest.state["model"] or {}
        references = {
            name: value["name"]
            for name, value in named.items()
            if isinstance(value, dict) and value.get("@") == "tensor"
        }
        return {name: tensors[reference] for name, reference in references.items()}

    def rows(self, store: str) -> Iterator[tuple[TableSchema, RowBlock]]:
        """Yields every block of rows with the schema of its table."""
        schemas = self.schemas(store)
        for block in read_blocks(self.folder.place(self._tables(store).folder)):
            if block.kind in {BlockKind.FULL, BlockKind.SERVING}:
                yield schemas[block.table], block

    def schemas(self, store: str) -> list[TableSchema]:
        """Returns the schema of each table, by number."""
        source = open_source(self.folder.place(self._tables(store).folder))
        try:
            return [TableSchema.parse(table.name, table.schema) for table in source.manifest.tables]
        finally:
            source.close()

    def verify(self) -> int:
        """Reads and checks every byte; returns the number of bytes.

        Raises:
            NotFoundError: a file is missing.
            DataLossError: a file is damaged; names it.
        """
        self.tensors()
        if self.manifest.meta is not None:
            entry = self.manifest.meta
            if sum_of(self.folder.read(entry.name)) != FileSum(bytes=entry.bytes, crc32c=entry.crc32c):
                raise DataLossError(f"file '{self.folder.place(entry.name)}': checksum does not match")
        for tables in self.manifest.tables.values():
            place = f"{tables.folder}/{MANIFEST_NAME}"
            if _core.crc32c(self.folder.read(place)) != tables.manifest_crc32c:
                raise DataLossError(
                    f"file '{self.folder.place(place)}': not the one this checkpoint was committed with"
                )
            for _ in read_blocks(self.folder.place(tables.folder)):
                pass
        return self.manifest.num_bytes

    def _tables(self, store: str) -> TablesEntry:
        return self.manifest.tables[store]


def diff(first: str, second: str) -> dict[str, Any]:
    """Returns the differences of two checkpoints: step, positions, dense tensors and rows; empty parts are equal."""
    a, b = SavedState(first), SavedState(second)
    return {
        "step": [a.manifest.step, b.manifest.step],
        "positions": _different(a.manifest.all_positions, b.manifest.all_positions),
        "tensors": _tensor_differences(a.tensors(), b.tensors()),
        "tables": _table_differences(a, b),
    }


def _different(a: dict[str, Any], b: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [a.get(name), b.get(name)] for name in sorted({*a, *b}) if a.get(name) != b.get(name)}


def _tensor_differences(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, str]:
    differences: dict[str, str] = {}
    for name in sorted({*a, *b}):
        if name not in a or name not in b:
            differences[name] = f"only in the {'second' if name not in a else 'first'}"
        elif a[name].shape != b[name].shape or a[name].dtype != b[name].dtype:
            differences[name] = f"{a[name].dtype} {tuple(a[name].shape)}, {b[name].dtype} {tuple(b[name].shape)}"
        elif not torch.equal(a[name].view(-1).view(torch.uint8), b[name].view(-1).view(torch.uint8)):
            distance = (a[name].double() - b[name].double()).abs().max() if a[name].numel() else torch.tensor(0.0)
            differences[name] = f"differs by up to {float(distance):g}"
    return differences


def _table_differences(a: SavedState, b: SavedState) -> dict[str, dict[str, int]]:
    counts_by_table: dict[str, dict[str, int]] = {}
    for store in sorted({*a.manifest.tables, *b.manifest.tables}):
        sides = [
            _row_digests(checkpoint, store) if store in checkpoint.manifest.tables else {} for checkpoint in (a, b)
        ]
        for table in sorted({*sides[0], *sides[1]}):
            first, second = sides[0].get(table, {}), sides[1].get(table, {})
            changed = sum(first[key] != second[key] for key in first.keys() & second.keys())
            counts = {
                "only_first": len(first.keys() - second.keys()),
                "only_second": len(second.keys() - first.keys()),
                "changed": changed,
            }
            if any(counts.values()):
                counts_by_table[f"{store}/{table}"] = counts
    return counts_by_table


def _row_digests(state: SavedState, store: str) -> dict[str, dict[tuple[int, int], int]]:
    """Returns table -> row -> a hash of its time and payload."""
    digests: dict[str, dict[tuple[int, int], int]] = {}
    for table, block in state.rows(store):
        rows = np.concatenate([block.times.view(np.uint8).reshape(block.count, 4), block.payload], axis=1)
        digests.setdefault(table.name, {}).update(
            (name, hash(row.tobytes())) for name, row in zip(_row_names(table, block), rows, strict=True)
        )
    return digests


def _row_names(table: TableSchema, block: RowBlock) -> Iterator[tuple[int, int]]:
    """Yields the identity of each row: -1 and its key; slot and id where the key depends on other slots."""
    split_keys = ids_of_keys(block.keys, block.bucket, table.wide_slots)
    has_key = has_explicit_bucket(block.keys, table.wide_slots)
    names = np.where(has_key, -1, split_keys.slots), np.where(has_key, block.keys, split_keys.ids)
    return zip(names[0].tolist(), names[1].tolist(), strict=True)


def export(path: str, target: StoragePath) -> list[str]:
    """Writes what a checkpoint has learned as safetensors files: `weights`, and for each table ids, times and weights.

    Where slots share a table and take any int64 (the default), ids are as users gave them, and `slots` has their slots'
    numbers.

    Returns:
        The names of the files.

    Raises:
        AlreadyExistsError: the target is not empty.
        InvalidArgumentError: a table holds compressed rows only, or its name cannot be that of a file.
    """
    state, folder = SavedState(path), open_storage(target)
    if folder.names():
        raise AlreadyExistsError(f"'{folder.path}': export needs an empty or new folder")
    for table in (schema.name for store in state.manifest.tables for schema in state.schemas(store)):
        if not is_name(table):
            raise InvalidArgumentError(f"export: table {table!r} would become a file outside of '{folder.path}'")
    folder.make()
    write_tensors(folder, f"weights{TENSORS}", state.weights())
    written = [f"weights{TENSORS}"]
    for store in state.manifest.tables:
        for table, tensors in _table_tensors(state, store).items():
            written.append(f"{store}.{table}{TENSORS}")
            write_tensors(folder, written[-1], tensors)
    return written


def _table_tensors(state: SavedState, store: str) -> dict[str, dict[str, Tensor]]:
    schemas = {schema.name: schema for schema in state.schemas(store)}
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in schemas}
    for table, block in state.rows(store):
        if block.payload.shape[1] != 4 * table.dim + table.state_bytes:
            raise InvalidArgumentError(
                f"table {table.name!r}: its rows are compressed for serving and cannot be exported"
            )
        columns = {"times": block.times.astype(np.int64), "weights": block.weights(table.dim)}
        parts[table.name].append({**_id_columns(table, block), **columns})
    return {
        table: {name: torch.from_numpy(np.concatenate([part[name] for part in blocks])) for name in blocks[0]}
        for table, blocks in parts.items()
        if blocks
    }


def _id_columns(table: TableSchema, block: RowBlock) -> dict[str, Any]:
    """Returns ids; where slots share a table and take any int64, ids as users gave them and their slots' numbers."""
    if not table.wide_slots:
        return {"ids": block.keys}
    split_keys = ids_of_keys(block.keys, block.bucket, table.wide_slots)
    return {"slots": split_keys.slots, "ids": split_keys.ids}


def reshard(path: str, target: StoragePath, *, num_files: int) -> str:
    """Copies a checkpoint to another directory with its tables in another number of bucket files.

    Restoring does not need it: any number of owners read any number of files. It helps where each should open few.

    Returns:
        The new prefix.
    """
    state, folder = SavedState(path), open_storage(target)
    if folder.exists(f"{state.prefix}{SUFFIX}"):
        raise AlreadyExistsError(f"'{folder.place(state.prefix)}': there is a checkpoint already")
    state.verify()
    folder.make()
    tables = {}
    for store, entry in state.manifest.tables.items():
        name = f"{state.prefix}{ASSETS}/{store}"
        written = rewrite(state.folder.place(entry.folder), folder.place(name), num_files=num_files)
        tables[store] = replace(
            entry,
            folder=name,
            manifest_crc32c=_core.crc32c(written.to_bytes()),
            bytes=sum(file.bytes for file in written.files),
        )
    tensors, meta = (
        _copied(state, entry, f"{state.prefix}{suffix}", target)
        for entry, suffix in ((state.manifest.tensors, TENSORS), (state.manifest.meta, META))
    )
    manifest = replace(state.manifest, tables=tables, tensors=tensors, meta=meta)
    folder.sync()
    folder.replace(f"{state.prefix}{SUFFIX}", manifest.to_bytes())
    path = f"{full_local_path(folder.path)}/{state.prefix}"
    if not folder.exists(CHECKPOINT):
        write_checkpoint_state(folder, CheckpointState(model_checkpoint_path=path, all_model_checkpoint_paths=[path]))
    return path


def _copied(state: SavedState, entry: CheckpointFile | None, name: str, target: StoragePath) -> CheckpointFile | None:
    if entry is None:
        return None
    open_storage(target).write(name, [state.folder.read(entry.name)])
    return replace(entry, name=name)


def get_nas_weight_json(ckpt_dir_or_file: str, prefix: str | None = None) -> list[str]:
    """Returns the values of the first weight of a checkpoint whose name contains `prefix`, each as a text.

    Args:
        ckpt_dir_or_file: A prefix, or a directory, whose newest checkpoint is meant.
        prefix: A part of the name.

    Raises:
        NotFoundError: there is no checkpoint, or no such weight; lists the names.
    """
    return nas_weight_json(SavedState(resolve(ckpt_dir_or_file)).weights(), prefix)
