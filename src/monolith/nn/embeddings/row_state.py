"""The rows of a store as one tensor of a state dictionary, and the switches that keep them out of it.

The tensor is uint8: eight bytes with the length of a head, the head as JSON (the schema of the tables), then row blocks
of the store end to end (docs/formats/row_block.md). So a state dictionary has weights, optimizer state, times and
admission counts bit for bit, and nothing but tensors.
"""

from __future__ import annotations

import contextlib
import json
import struct
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from monolith import _core
from monolith.errors import DataLossError, FailedPreconditionError
from monolith.nn.embeddings.saved_state import decode
from monolith.tables.formats.block_writing import rekeyed_block
from monolith.tables.formats.packed_blocks import PackedBlocks
from monolith.tables.formats.row_block import TRAILER, BlockKind, RowBlock
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.schema import Schema
from monolith.tables.slot_keys import moved_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import Any

    from torch import Tensor

    from monolith.tables.history import Cut
    from monolith.tables.schema import TableSchema

EXTRA_STATE = "_extra_state"
"""The key that torch gives to the extra state of a module."""
ROWS = "embedding_rows"
"""The key of a module's rows in a state dictionary."""

_FORMAT = 1
_LENGTH = struct.Struct("<Q")
_TABLE_OFFSET = 16
"""Offset of the table number in a block."""
_are_elsewhere: ContextVar[bool] = ContextVar("rows_are_elsewhere", default=False)
_are_counted: ContextVar[bool] = ContextVar("rows_are_counted", default=True)


@contextlib.contextmanager
def without_rows() -> Iterator[None]:
    """While open, `state_dict()` holds no rows and `load_state_dict()` does not change those of the store.

    For a caller that saves the store separately, or needs the weights without the rows.

    >>> from monolith.nn import Embeddings, Slot
    >>> with without_rows():
    ...     sorted(Embeddings({"user": Slot(dim=4)}).state_dict())
    ['_extra_state']
    """
    token = _are_elsewhere.set(True)
    try:
        yield
    finally:
        _are_elsewhere.reset(token)


@contextlib.contextmanager
def uncounted_rows() -> Iterator[None]:
    """Like `without_rows`, and the extra state has no row count, which only all ranks together can compute."""
    token = _are_counted.set(False)
    try:
        with without_rows():
            yield
    finally:
        _are_counted.reset(token)


def rows_are_counted() -> bool:
    """Returns whether the extra state has a row count: `uncounted_rows` is not open."""
    return _are_counted.get()


def rows_are_elsewhere() -> bool:
    """Returns whether `without_rows` is open."""
    return _are_elsewhere.get()


def saved_slots(state: Mapping[str, Any] | Tensor) -> list[str]:
    """Returns the slots of a saved extra state."""
    return list(decode(state)["slots"])


def without_slots(state: Mapping[str, Any] | Tensor, names: Collection[str]) -> Mapping[str, Any]:
    """Returns the extra state as it would be without these slots."""
    found = decode(state)
    return {**found, "slots": {name: where for name, where in found["slots"].items() if name not in names}}


def is_of_rows(name: str) -> bool:
    """Returns whether a key of a state dictionary describes rows instead of a weight: sizes differ by process."""
    return name.rpartition(".")[2] in {EXTRA_STATE, ROWS}


def pack_rows(cut: Cut, schema: Schema) -> Tensor:
    """Packs the rows of a cut and releases it. Blocks are appended one by one: the tensor is the only copy."""
    head = json.dumps({"format": _FORMAT, "schema": schema.text}).encode()
    packed = bytearray(_LENGTH.pack(len(head)) + head)
    with cut:
        for block in cut.blocks(ALL_BUCKETS, state=True):
            packed += block.data
    return torch.frombuffer(packed, dtype=torch.uint8)


def unpack_rows(tensor: Tensor, schema: Schema) -> tuple[list[RowBlock] | PackedBlocks, list[str]]:
    """Returns the blocks as a store of this schema takes them, and the tables that it does not have, which are skipped.

    Blocks of the same schema are a view of the tensor; others are copied.

    Raises:
        DataLossError: the tensor is not what `pack_rows` made.
        FailedPreconditionError: a table differs from the store's.
    """
    if tensor.dtype != torch.uint8 or tensor.ndim != 1:
        raise DataLossError(f"{ROWS}: uint8 [n] expected, got {tensor.dtype} {tuple(tensor.shape)}")
    data = memoryview(tensor.detach().cpu().contiguous().numpy().data)
    saved, offset = _read_head(data)
    packed = _packed_at(data, offset)
    if saved.text == schema.text:
        return packed, []
    numbers = _table_numbers(saved, schema)
    blocks = []
    for block in packed:
        if block.kind is BlockKind.FILTER:
            continue  # counts are kept by the numbers of all tables and slots of a store; with others they restart
        number = numbers[block.table] if block.table < len(numbers) else None
        if number is None:
            continue
        has_other_keys = saved.tables[block.table] != schema.tables[number]
        own = _with_own_keys(block, saved.tables[block.table], schema.tables[number]) if has_other_keys else block
        blocks.append(own if number == own.table else _renumbered(own, number))
    return blocks, [name for name in saved.names if name not in schema.names]


def _read_head(data: memoryview) -> tuple[Schema, int]:
    try:
        (length,) = _LENGTH.unpack_from(data)
        head = json.loads(bytes(data[_LENGTH.size : _LENGTH.size + length]))
        form, text = head["format"], head["schema"]
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise DataLossError(f"{ROWS}: not the rows of a saved module: {error!r}") from error
    if form != _FORMAT:
        raise FailedPreconditionError(f"{ROWS}: expected format {_FORMAT}, got {form!r}; it is of a later version")
    return Schema.parse(text), _LENGTH.size + length


def _table_numbers(saved: Schema, own: Schema) -> list[int | None]:
    """Returns, by number of a saved table, its number in the store; None for a table that is skipped."""
    sides = [Schema(tuple(replace(table, wide_slots=()) for table in each.tables)) for each in (own, saved)]
    changed = [line for line in sides[0].differences(sides[1]) if "is missing" not in line and "is unknown" not in line]
    if changed:
        raise FailedPreconditionError(
            f"{ROWS}: {'; '.join(changed)}; define the slots as they were, or save by ml.save and load by ml.load,"
            " which carry rows over to other optimizers and compressors"
        )
    numbers = {name: number for number, name in enumerate(own.names)}
    return [numbers.get(name) for name in saved.names]


def _packed_at(data: memoryview, offset: int) -> PackedBlocks:
    packed = PackedBlocks(data[offset:])
    try:
        _ = packed.count
    except DataLossError as error:
        raise DataLossError(f"{ROWS}: the rows after byte {offset} are damaged: {error}") from error
    return packed


def _with_own_keys(block: RowBlock, saved: TableSchema, own: TableSchema) -> RowBlock:
    """Rewrites wide keys (docs/formats/buckets.md), which change when slots are added or removed."""
    _checked_body(block)
    taken, keys = moved_keys(block.keys, saved.wide_slots, own.wide_slots)
    if not own.wide_slots and not taken.all():
        raise FailedPreconditionError(
            f"{ROWS}: table {own.name!r} has rows of ids beyond [0, 2^48), which its slots do not take any more; give"
            " them id_layout='int64'"
        )
    return rekeyed_block(block, digest=own.digest, taken=taken, keys=keys)


def _checked_body(block: RowBlock) -> bytearray:
    body = bytearray(block.data[: -TRAILER.size])
    if _core.crc32c(bytes(body)) != TRAILER.unpack(block.data[-TRAILER.size :])[0]:
        raise DataLossError(f"{ROWS}: the checksum of {block!r} does not match")
    return body


def _renumbered(block: RowBlock, table: int) -> RowBlock:
    body = _checked_body(block)
    struct.pack_into("<I", body, _TABLE_OFFSET, table)
    return RowBlock(bytes(body) + TRAILER.pack(_core.crc32c(bytes(body)), 0))
