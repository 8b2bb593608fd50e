"""Writes one cut: its files first, each synced, the manifest last. Until then the checkpoint does not exist.

`<prefix>.meta` and `ckpt.info-<step>` describe a checkpoint for people and tools: no restore reads them.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import text_format

from monolith import _core
from monolith.checkpoint.catalog import manifest_of
from monolith.checkpoint.manifest import SUFFIX, CheckpointFile, Manifest, TablesEntry
from monolith.checkpoint.protos.ckpt_info_pb2 import CkptInfo
from monolith.checkpoint.tensor_file import FileSum, sum_of, tensor_descriptions, write_tensors
from monolith.checkpoint.train_state import extra_state_of
from monolith.errors import OpError
from monolith.files import canonical, may_hold
from monolith.nn.embeddings import RowAnchor
from monolith.tables import fnv1a_64, slots_of_keys
from monolith.tables.snapshot import MANIFEST_NAME, read_keys, save_cut

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from monolith.checkpoint.cut import StateCut, StoreCut
    from monolith.checkpoint.train_state import TrainState
    from monolith.files import Storage

logger = logging.getLogger(__name__)

SAVING = ".saving"
"""Suffix of the mark of a save in progress; without a manifest of the same prefix the save did not end."""
META_VERSION = 1
TENSORS, META, ASSETS = ".safetensors", ".meta", ".assets"
_OURS = re.compile(r"\.(safetensors|meta|assets|saving|manifest)((\.[0-9a-f]{8})?\.tmp)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWriteConfig:
    """Options for writing one cut."""

    prefix: str
    generation: int
    number: int
    """Number of the save in its generation."""
    created: float
    dense_only: bool
    meta: bytes | None
    threads: int | None
    rate_bytes_per_second: float | None


def write_checkpoint(
    folder: Storage, cut: StateCut, order: CheckpointWriteConfig, *, before_commit: Callable[[], None]
) -> Manifest:
    """Writes the checkpoint; `before_commit` may still raise. On an error everything written is removed.

    Once the manifest has its name the checkpoint is committed: an error after that is raised, and the checkpoint stays.
    """
    name, text, writing = f"{order.prefix}{SUFFIX}", b"", None
    try:
        cut = cut.complete()
        writing = _Writing(folder, cut, order)
        manifest = writing.write_files()
        before_commit()
        folder.sync()
        text = manifest.to_bytes()
        folder.replace(name, text)
    except BaseException as error:
        cut.release()
        if text and may_hold(folder, name, text):
            logger.warning("checkpoint '%s' is in place and stays, although its save failed: %r", name, error)
        elif writing is not None:
            writing.undo()
        raise
    writing.clean_up(manifest)
    return manifest


class _Writing:
    def __init__(self, folder: Storage, cut: StateCut, order: CheckpointWriteConfig) -> None:
        self._folder = folder
        self._cut = cut
        self._order = order
        # A checkpoint of this name stays intact until the new one replaces it, so it keeps its file names.
        replaces = folder.exists(f"{order.prefix}{SUFFIX}")
        infix = f".{order.generation}-{order.number}" if replaces else ""
        self._tensors = f"{order.prefix}{infix}{TENSORS}"
        self._meta = f"{order.prefix}{infix}{META}"
        self._assets = f"{order.prefix}{infix}{ASSETS}"
        self._replaces = replaces

    def write_files(self) -> Manifest:
        cut, order = self._cut, self._order
        self._folder.replace(f"{order.prefix}{SAVING}", b"")
        # As in ByteDance Monolith: tables before dense weights before what points to them.
        tables = {name: self._write_tables(name, store) for name, store in cut.stores.items()}
        tensors = None
        if cut.tensors:
            rate = order.rate_bytes_per_second
            total = write_tensors(self._folder, self._tensors, cut.tensors, bytes_per_second=rate)
            tensors = _entry(self._tensors, total)
        meta = None
        if order.meta is not None:
            self._folder.write(self._meta, [order.meta])
            meta = _entry(self._meta, sum_of(order.meta))
        return Manifest(
            step=cut.step,
            generation=order.generation,
            created=order.created,
            kind="dense_only" if order.dense_only else "full",
            tensors=tensors,
            meta=meta,
            tables=tables,
            applied=dict(cut.applied),
            positions=dict(cut.positions),
            state=dict(cut.state),
        )

    def undo(self) -> None:
        """Removes all written files; files that cannot be removed are marked, and the next save removes them."""
        marked = () if self._replaces else (f"{self._order.prefix}{SAVING}",)
        for name in (self._tensors, self._meta, self._assets, *marked):
            with suppress(OpError):  # the error that led here matters more
                self._folder.remove(name)

    def clean_up(self, manifest: Manifest) -> None:
        """Removes the mark, and the files of a checkpoint that was replaced."""
        remove_prefix(self._folder, self._order.prefix, keep=_files_of(self._order.prefix, manifest))

    def _write_tables(self, name: str, store: StoreCut) -> TablesEntry:
        order = self._order
        folder = f"{self._assets}/{name}"
        identity = f"{order.prefix} {order.generation} {order.number} {name}"
        report = save_cut(
            store.cut,
            store.schema,
            self._folder.place(folder),
            threads=order.threads,
            rate_bytes_per_second=order.rate_bytes_per_second,
            drop_expired=False,  # a run that resumes must have every row that one which was not killed still has
            generation=order.generation,
            snapshot_id=fnv1a_64(identity),
            created=int(order.created),
        )
        return TablesEntry(
            folder=folder,
            snapshot_id=report.snapshot_id,
            manifest_crc32c=_core.crc32c(self._folder.read(f"{folder}/{MANIFEST_NAME}")),
            rows=report.rows,
            bytes=report.bytes,
        )


def remove_prefix(folder: Storage, prefix: str, *, keep: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Removes `<prefix>.*`, the manifest first: from then on the checkpoint does not exist. Failures are warnings."""
    names = [name for name in folder.names() if name.startswith(f"{prefix}.") and name not in keep]
    for name in sorted(names, key=lambda name: not name.endswith(SUFFIX)):
        try:
            folder.remove(name)
        except OpError as error:
            logger.warning("%s", error)
            return


def remove_torn_saves(folder: Storage) -> None:
    """Removes files of saves that did not end; the caller must be the only saver of this folder."""
    folder.remove_abandoned()
    names = folder.names()
    # Files of another program, such as a TensorFlow checkpoint of the same step, must stay.
    foreign = {name for name in names if not _OURS.search(name)}
    for prefix in [name.removesuffix(SAVING) for name in names if name.endswith(SAVING)]:
        manifest = f"{prefix}{SUFFIX}"
        if manifest not in names:
            remove_prefix(folder, prefix, keep=foreign)
            continue
        try:
            listed = _files_of(prefix, manifest_of(folder, prefix))
        except OpError as error:
            logger.warning("the leftovers of a save of '%s' cannot be identified, and are kept: %s", prefix, error)
            continue
        folder.sync()  # the manifest that replaced another one may not be durable, and the other's files go now
        remove_prefix(folder, prefix, keep=foreign | listed)


def _files_of(prefix: str, manifest: Manifest) -> set[str]:
    """Returns the names in the model directory that make up a checkpoint."""
    beside = {f"{prefix}{ASSETS}"} if manifest.kind == "dense_only" else set()  # of `save_table_assets`
    return {f"{prefix}{SUFFIX}", *manifest.names, *beside}


def _entry(name: str, total: FileSum) -> CheckpointFile:
    return CheckpointFile(name=name, bytes=total.bytes, crc32c=total.crc32c)


def model_meta(state: TrainState) -> bytes:
    """Returns modules, weights, slots and optimizers as canonical JSON: equal for equal models."""
    document: dict[str, Any] = {"format": "monolith-model-meta", "version": META_VERSION}
    document["modules"] = {} if state.model is None else _modules(state.model)
    document["weights"] = {} if state.model is None else tensor_descriptions(dict(_weights(state.model)))
    document["slots"] = {
        name: {slot: {"dim": config.dim, "combiner": str(config.combiner)} for slot, config in module.slots.items()}
        for name, module in state.embeddings.items()
    }
    document["tables"] = {
        name: {table: list(slots) for table, slots in module.tables.items()}
        for name, module in state.embeddings.items()
    }
    document["optimizers"] = {name: _class_name(optimizer) for name, optimizer in state.optimizers.items()}
    document["schedules"] = {name: _class_name(schedule) for name, schedule in state.schedules.items()}
    return canonical(document)


def _modules(model: nn.Module) -> dict[str, str]:
    return {name: _class_name(module) for name, module in model.named_modules()}


def _weights(model: nn.Module) -> Any:
    yield from (
        (name, parameter) for name, parameter in model.named_parameters() if not isinstance(parameter, RowAnchor)
    )
    yield from model.named_buffers()


def _class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def info_name(step: int) -> str:
    """Returns the name of the file with the rows of each slot."""
    return f"ckpt.info-{step}"


def count_rows(folder: Storage, manifest: Manifest) -> bytes:
    """Returns the text of that file: rows by number and name of the slot. Reads ids only, and only of shared tables."""
    info = CkptInfo()
    for store, tables in manifest.tables.items():
        by_table: dict[str, dict[str, Any]] = {}
        for name, slot in _slots(manifest, store).items():
            by_table.setdefault(slot["table"], {})[name] = slot["number"]
        shared = {table for table, slots in by_table.items() if len(set(slots.values())) > 1}
        numbers = _rows_by_number(folder.place(tables.folder)) if shared else {}
        for table, slots in by_table.items():
            for name, number in slots.items():
                count = numbers.get(table, Counter())[number] if table in shared else tables.rows.get(table, 0)
                info.feature_counts[name] += count
                if number is not None:
                    info.slot_counts[number] = count
    return text_format.MessageToString(info).encode()


def _slots(manifest: Manifest, store: str) -> Mapping[str, Any]:
    weights = manifest.state["model"] or {}
    key = extra_state_of(store)
    slots: Mapping[str, Any] = weights.get(key, {}).get("slots", {})
    return slots


def _rows_by_number(folder: str) -> dict[str, Counter[int]]:
    """Returns table -> number of a slot -> rows."""
    counts: dict[str, Counter[int]] = {}
    for table, keys in read_keys(folder):
        numbers, rows = np.unique(slots_of_keys(keys, table.wide_slots), return_counts=True)
        counts.setdefault(table.name, Counter()).update(dict(zip(numbers.tolist(), rows.tolist(), strict=True)))
    return counts
