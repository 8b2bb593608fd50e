"""Rows of a table as a Parquet file, for analysis by other tools."""

from __future__ import annotations

import errno
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from monolith import _core
from monolith.errors import FileUnavailableError, StorageFullError
from monolith.files import replaced_file
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.slot_keys import ids_of_keys

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from monolith.tables.formats.row_block import RowBlock
    from monolith.tables.hash_table import HashTable
    from monolith.tables.local.cut import LocalCut

_ROW_GROUP_BYTES = 64 << 20
"""Rows are gathered to row groups of about this size: large enough to compress and scan well, small enough to hold."""


def export_parquet(table: HashTable, path: str | os.PathLike[str], *, state: bool = False) -> int:
    """Writes the rows of a table, as they are now and in no particular order, to one local Parquet file.

    Columns: ``id`` int64, ``time`` int64 (Unix seconds of the last update), ``weights`` fixed-size list of dim float32,
    and with `state` the optimizer ``state`` as fixed-size binary. Weights of a serving table are decompressed. Where
    slots share the table and take any int64, ``id`` is that of the user and ``slot``, int32, the slot's number. Writers
    continue during the export; memory stays bounded by a few row groups.

    Returns:
        Number of rows.

    Raises:
        ModuleNotFoundError: pyarrow is not installed; names the package to install.
        StorageFullError, FileUnavailableError: the file cannot be written; nothing is left at the path.
    """
    arrow, parquet = _import_pyarrow()
    target = Path(path)
    number = table.native.number_of(table.name)
    state_bytes = table.native.core.state_bytes(number) if state and not table.config.serving else 0
    columns = _Columns(arrow, table, number, state_bytes)
    try:
        with (
            replaced_file(target) as temporary,
            table.store.cut() as cut,
            parquet.ParquetWriter(temporary, columns.schema) as writer,
        ):
            return sum(_write(writer, columns.table(blocks)) for blocks in _row_groups(cut, number))
    except OSError as error:
        raise _translated(error, target) from error


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        message = "export_parquet needs pyarrow, which is not installed; run: pip install 'monolith-torch[parquet]'"
        raise ModuleNotFoundError(message, name=error.name) from error


def _row_groups(cut: LocalCut, number: int) -> Iterator[list[RowBlock]]:
    group: list[RowBlock] = []
    size = 0
    for block in cut.blocks():
        if block.table != number or block.kind not in {BlockKind.FULL, BlockKind.SERVING}:
            continue
        group.append(block)
        size += len(block.data)
        if size >= _ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _write(writer: Any, rows: Any) -> int:
    writer.write_table(rows, row_group_size=max(1, rows.num_rows))
    return int(rows.num_rows)


class _Columns:
    """Turns row blocks into an Arrow table."""

    def __init__(self, arrow: Any, table: HashTable, number: int, state_bytes: int) -> None:
        self._arrow = arrow
        self._core = table.native.core
        self._number = number
        self._dim = table.dim
        self._state_bytes = state_bytes
        self._wide_slots = table.config.wide_slots
        fields = [arrow.field("slot", arrow.int32(), nullable=False)] if self._wide_slots else []
        fields += [
            arrow.field("id", arrow.int64(), nullable=False),
            arrow.field("time", arrow.int64(), nullable=False),
            arrow.field(
                "weights", arrow.list_(arrow.field("item", arrow.float32(), nullable=False), table.dim), nullable=False
            ),
        ]
        if state_bytes:
            fields.append(arrow.field("state", arrow.binary(state_bytes), nullable=False))
        schema = table.native.core.schema(number)
        self.schema = arrow.schema(fields, metadata={"monolith.table": table.name, "monolith.schema": schema})

    def table(self, blocks: list[RowBlock]) -> Any:
        arrow = self._arrow
        weights = np.concatenate([self._weights(block) for block in blocks])
        columns = [
            *self._ids(blocks),
            arrow.array(np.concatenate([block.times for block in blocks]).astype(np.int64)),
            arrow.FixedSizeListArray.from_arrays(
                arrow.array(weights.reshape(-1)), type=self.schema.field("weights").type
            ),
        ]
        if self._state_bytes:
            state = np.concatenate([block.state(self._dim) for block in blocks])
            buffers = [None, arrow.py_buffer(np.ascontiguousarray(state))]
            columns.append(arrow.Array.from_buffers(arrow.binary(self._state_bytes), len(state), buffers))
        return arrow.Table.from_arrays(columns, schema=self.schema)

    def _ids(self, blocks: list[RowBlock]) -> list[Any]:
        keys = np.concatenate([block.keys for block in blocks])
        if not self._wide_slots:
            return [self._arrow.array(keys)]
        buckets = np.repeat([block.bucket for block in blocks], [block.count for block in blocks])
        slot_ids = ids_of_keys(keys, buckets, self._wide_slots)
        return [self._arrow.array(slot_ids.slots.astype(np.int32)), self._arrow.array(slot_ids.ids)]

    def _weights(self, block: RowBlock) -> NDArray[np.float32]:
        if block.kind is BlockKind.FULL:
            return block.weights(self._dim)
        weights = np.empty((block.count, self._dim), np.float32)
        _core.decompress_rows(self._core, self._number, block.payload, weights)
        return weights


def _translated(error: OSError, path: Path) -> Exception:
    message = f"file '{path}': cannot be written: {error}"
    # pyarrow raises OSError without errno for a full disk; only the text names the cause
    full = error.errno in {errno.ENOSPC, errno.EFBIG, errno.EDQUOT} or "No space left" in str(error)
    return StorageFullError(message) if full else FileUnavailableError(message)
