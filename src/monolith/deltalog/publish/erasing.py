"""Removes the rows of given ids from checkpoints, without the model's code and while no process trains it.

A checkpoint is replaced in the same way as by a save of the same step: the new table files are written next to the old
ones, the manifest is replaced, and the old files are removed. Until the manifest is replaced, the checkpoint is
unchanged.
"""

from __future__ import annotations

import re
import secrets
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith import _core
from monolith.checkpoint import (
    ASSETS,
    SAVING,
    SUFFIX,
    Catalog,
    SavedState,
    TablesEntry,
    checkpoint_exists,
    full_local_path,
    resolve,
    split_path,
)
from monolith.deltalog.publish.log_position import POSITION_NAME
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.files import open_storage
from monolith.ids import SIGNATURE_BITS_V2
from monolith.nn.embeddings import SlotAddress
from monolith.tables.formats import BlockKind, filter_block, rekeyed_block
from monolith.tables.snapshot import blocks_of, open_source, write_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables import TableSchema
    from monolith.tables.formats import RowBlock

_RANK_FOLDER = re.compile(r"index-\d{4,}")
_ROWS = frozenset({BlockKind.FULL, BlockKind.SERVING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedRows:
    """Result of erasing rows from one checkpoint."""

    path: str
    rows: int
    """Number of matching rows."""


def checkpoints_at(path: str) -> list[str]:
    """Returns the full prefixes of the checkpoints at a path: that one, or all of a model directory and its ranks.

    Raises:
        NotFoundError: there is no checkpoint.
    """
    full = full_local_path(path.removesuffix(SUFFIX).rstrip("/"))
    if checkpoint_exists(full):
        return [full]
    basename = split_path(resolve(path))[1].rpartition("-")[0]
    root = open_storage(full)
    folders = [full, *(f"{full}/{name}" for name in root.names() if _RANK_FOLDER.fullmatch(name))]
    return [prefix for folder in folders for prefix in Catalog(open_storage(folder), basename).committed()]


def erase_from_checkpoint(path: str, slot: str, ids: Tensor, *, dry_run: bool = False) -> ErasedRows:
    """Removes the rows of given ids of a slot from a checkpoint, and their admission counts.

    A run that resumes from it publishes a new base to its delta log, so that followers drop the rows, too. The caller
    must hold the `ModelDirLock` of the directory, so that no other process saves to it meanwhile.

    Args:
        path: Full prefix of the checkpoint.
        slot: Name of the slot, as the model has it.
        ids: int64 [n], as the slot takes them.
        dry_run: Count the rows, and change nothing.

    Raises:
        InvalidArgumentError: no such slot, or an id that it does not take.
        FailedPreconditionError: the checkpoint does not record the tables of its slots.
    """
    state = SavedState(path)
    if not state.manifest.tables:
        return ErasedRows(path=path, rows=0)
    store, eraser = _eraser_of(state, slot, ids)
    source = state.folder.place(state.manifest.tables[store].folder)
    with closing(open_source(source)) as opened:
        manifest = opened.manifest
    if not any(eraser.changes(block) for block in blocks_of(source, manifest)):
        return ErasedRows(path=path, rows=0)
    if dry_run:
        for block in blocks_of(source, manifest):
            eraser.left_of(block)
        return ErasedRows(path=path, rows=eraser.rows)
    prefix, folder = state.prefix, state.folder
    assets = f"{prefix}.erased-{secrets.token_hex(4)}{ASSETS}"
    folder.replace(f"{prefix}{SAVING}", b"")  # the next save removes the files of an interrupted erase
    left = (kept for block in blocks_of(source, manifest) if (kept := eraser.left_of(block)) is not None)
    # A new id, so that a server's recovery record does not match this snapshot and is ignored.
    written = write_blocks(
        left,
        folder.place(f"{assets}/{store}"),
        replace(manifest, snapshot_id=secrets.randbits(64)),
        ranges=[(file.begin, file.end) for file in manifest.files],
    )
    entries = dict(state.manifest.tables)
    entries[store] = TablesEntry(
        folder=f"{assets}/{store}",
        snapshot_id=written.snapshot_id,
        manifest_crc32c=_core.crc32c(written.to_bytes()),
        rows=written.rows,
        bytes=sum(file.bytes for file in written.files),
    )
    positions = {name: value for name, value in state.manifest.positions.items() if name != POSITION_NAME}
    erased = replace(state.manifest, tables=entries, positions=positions)
    folder.sync()
    folder.replace(f"{prefix}{SUFFIX}", erased.to_bytes())
    folder.sync()
    for name in (state.manifest.tables[store].folder, *(state.manifest.names - erased.names), f"{prefix}{SAVING}"):
        with suppress(NotFoundError):  # the folder of the only store is removed with its rows
            folder.remove(name)
    return ErasedRows(path=path, rows=eraser.rows)


class _RowEraser:
    """Removes rows and admission counts of given keys of one table from the blocks of a snapshot."""

    def __init__(self, table: TableSchema, number: int, keys: NDArray[np.int64], buckets: NDArray[np.uint16]) -> None:
        self._table = table
        self._number = number
        self._by_bucket = {int(bucket): keys[buckets == bucket] for bucket in np.unique(buckets)}
        self.rows = 0
        """Number of rows removed so far."""

    def changes(self, block: RowBlock) -> bool:
        """Returns whether `left_of` would change the block."""
        keys = self._by_bucket.get(block.bucket)
        if keys is None:
            return False
        if block.kind is BlockKind.FILTER:
            return self._left_of_filter(block, keys) != block.payload.tobytes()
        return block.kind in _ROWS and block.table == self._number and bool(np.isin(block.keys, keys).any())

    def left_of(self, block: RowBlock) -> RowBlock | None:
        """Returns the block without the rows or counts; None if it becomes empty."""
        if not self.changes(block):
            return block
        keys = self._by_bucket[block.bucket]
        if block.kind is BlockKind.FILTER:
            payload = self._left_of_filter(block, keys)
            return filter_block(block, payload) if payload else None
        kept = ~np.isin(block.keys, keys)
        self.rows += int(np.count_nonzero(~kept))
        return rekeyed_block(block, digest=block.digest, taken=kept, keys=block.keys[kept]) if kept.any() else None

    def _left_of_filter(self, block: RowBlock, keys: NDArray[np.int64]) -> bytes:
        return _core.without_counts(
            block.payload.tobytes(),
            table=self._table.name,
            wide_slots=list(self._table.wide_slots),
            bucket=block.bucket,
            keys=keys.tolist(),
        )


def _eraser_of(state: SavedState, slot: str, ids: Tensor) -> tuple[str, _RowEraser]:
    """Returns the store that has the rows of a slot, and their eraser."""
    known: set[str] = set()
    for module, slots in _slots_of_modules(state):
        known |= slots.keys()
        if slot in slots:
            place = slots[slot]
            store, number, table = _table_of(state, module, place["table"])
            keys, buckets = _keys_of(place, table, ids)
            return store, _RowEraser(table, number, keys, buckets)
    if not known:
        raise FailedPreconditionError(
            f"checkpoint '{state.path}': it does not record the tables of its slots; restore it into its model, call"
            " emb.erase(slot, ids), and save a new checkpoint"
        )
    raise InvalidArgumentError(
        f"slot {slot!r} does not exist; the slots of checkpoint '{state.path}' are {sorted(known)}"
    )


def _slots_of_modules(state: SavedState) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each module with the locations of its slots' rows."""
    for name, value in (state.manifest.state["model"] or {}).items():
        if isinstance(value, dict) and isinstance(value.get("slots"), dict):
            yield name.rpartition(".")[0], value["slots"]


def _table_of(state: SavedState, module: str, name: str) -> tuple[str, int, TableSchema]:
    """Returns the store, number and schema of a table; a store shared by modules has the name of the first one."""
    stores = [module] if module in state.manifest.tables else list(state.manifest.tables)
    for store in stores:
        for number, table in enumerate(state.schemas(store)):
            if table.name == name:
                return store, number, table
    raise NotFoundError(f"checkpoint '{state.path}': table {name!r} of module {module!r} is not in it")


def _keys_of(place: Mapping[str, Any], table: TableSchema, ids: Tensor) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    number = place["number"]
    is_wide = number in table.wide_slots
    if number is not None and not is_wide:
        # Slots of packed ids (`v2`) and of ids below 2^48 (`raw`) are saved alike: both forms mean the same row.
        ids = torch.where(ids >> SIGNATURE_BITS_V2 == number, ids & ((1 << SIGNATURE_BITS_V2) - 1), ids)
    address = SlotAddress(
        store="",
        table=table.name,
        dim=place["dim"],
        id_layout="any" if number is None else "int64" if is_wide else "raw",
        number=number,
        wide_index=table.wide_slots.index(number) if is_wide else None,
    )
    return address.keys_of(ids)
