"""The saved state of a module with rows: location of rows and progress, and the rows as a tensor.

The tensor of the rows is uint8: eight bytes with the length of a head, the head as JSON (the schema of the tables),
then row blocks of the store end to end (docs/formats/row_block.md). So a state dictionary has weights, optimizer state,
times and admission counts bit for bit, and nothing but tensors.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith import _core
from monolith.errors import DataLossError, FailedPreconditionError
from monolith.tables import ALL_BUCKETS, Schema, moved_keys
from monolith.tables.formats import TRAILER, BlockKind, PackedBlocks, RowBlock, rekeyed_block

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from monolith.nn.embeddings.gradient_step import StoreWorker
    from monolith.nn.embeddings.merge import MergedTable, PlacedSlot
    from monolith.tables import Cut, TableConfig, TableSchema


_FORMAT = 2
"""1 also had the numbers of batches and updates, which the store keeps."""
_TENSOR_FORMAT = 3
"""2 as the JSON bytes of a tensor, with the number of rows: programs that save tensors can save it."""
_PADDED_TO = 256
"""Keeps the length the same for almost all numbers in it."""


def require_tables(schema: Schema, configs: Mapping[str, TableConfig], merged: Sequence[MergedTable]) -> None:
    """Rejects a store that was made for other slots.

    Raises:
        FailedPreconditionError: names the slots whose table is missing or has other rows.
    """
    stored = {table.name: table for table in schema.tables}
    for table in merged:
        slots = ", ".join(map(repr, table.slots))
        if table.name not in stored:
            raise FailedPreconditionError(
                f"slots {slots}: the store has no table {table.name!r} for them, it has {list(stored)}; it was made for"
                " slots of another dim or row optimizer"
            )
        expected = [(segment.dim, segment.optimizer.kernel()[0]) for segment in configs[table.name].segments]
        got = [(segment.dim, segment.optimizer) for segment in stored[table.name].segments]
        if got != expected:
            raise FailedPreconditionError(
                f"slots {slots}: table {table.name!r} of the store has segments {got}, the slots need {expected}"
            )
        wide = list(stored[table.name].wide_slots)
        if wide != table.wide_slots:
            raise FailedPreconditionError(
                f"slots {slots}: table {table.name!r} of the store takes any int64 for slots of the numbers {wide}, and"
                f" the slots need it for {table.wide_slots}; make the store for these slots"
            )
    if len(stored) != len(merged):
        unknown = sorted(stored.keys() - configs.keys())
        raise FailedPreconditionError(f"the store has tables {unknown} that no slot uses; make it for these slots only")


def save(worker: StoreWorker, placed: Mapping[str, PlacedSlot]) -> dict[str, Any]:
    """Returns plain values, which `torch.load(weights_only=True)` reads."""
    slots = {name: _whereabouts(slot) for name, slot in placed.items()}
    return {"format": _FORMAT, "global_step": worker.global_step, "slots": slots}


def encode(saved: Mapping[str, Any], *, num_rows: int) -> Tensor:
    """Returns what `save` made as a tensor, uint8 [n], with the number of rows in the store."""
    text = json.dumps({**saved, "format": _TENSOR_FORMAT, "rows": num_rows}).encode()
    padding = -len(text) % _PADDED_TO
    return torch.frombuffer(bytearray(text + b" " * padding), dtype=torch.uint8)


def decode(state: Mapping[str, Any] | Tensor) -> Mapping[str, Any]:
    """Returns the state as plain values, in whichever form it was saved.

    Raises:
        DataLossError: it is no saved state.
        FailedPreconditionError: its format is of another version.
    """
    plain: Any = state
    if isinstance(state, Tensor):
        try:
            plain = json.loads(state.detach().cpu().numpy().tobytes())
        except (ValueError, TypeError) as error:
            raise DataLossError(f"Embeddings: the saved state is damaged: {error!r}") from error
    form = plain.get("format") if isinstance(plain, Mapping) else None
    if form not in {1, _FORMAT, _TENSOR_FORMAT}:
        raise FailedPreconditionError(
            f"Embeddings: expected a saved state of format 1 to {_TENSOR_FORMAT}, got {form!r}; it is not of an"
            " Embeddings, or of a later version"
        )
    return plain  # type: ignore[no-any-return]  # a mapping, as its format is one of ours


def require_same_slots(state: Mapping[str, Any], placed: Mapping[str, PlacedSlot]) -> None:
    """Checks that every slot is where it was. Slots may have been added or removed.

    Raises:
        FailedPreconditionError: a slot whose saved rows would not be found.
    """
    for name, saved in state["slots"].items():
        if name not in placed:
            continue
        changes = [
            f"{what} {saved[what]!r}, now {now!r}"
            for what, now in _whereabouts(placed[name]).items()
            if saved[what] != now
        ]
        if changes:
            raise FailedPreconditionError(
                f"slot {name!r}: was saved with {'; '.join(changes)}: its rows would not be found; define the slot as"
                f" it was{_advice(saved, placed[name])}; or, to start it with no rows, define it under another name or"
                f" leave it out of the restore: --leave_out MODULE.{name} of monolith train, where MODULE is the"
                " attribute that has the Embeddings"
            )


def require_rows(state: Mapping[str, Any], *, num_rows: int) -> None:
    """Rejects an empty store where the saved one was not empty.

    Raises:
        FailedPreconditionError: the rows are missing; the message names the ways to load them or to do without.
    """
    saved = state.get("rows", 0)
    if saved and not num_rows:
        raise FailedPreconditionError(
            f"load_state_dict: the model had {saved:,} embedding rows when this state was saved; they are not in it,"
            " and the store of this module is empty: every lookup would read zeros. Save rows and weights together, by"
            " ml.save(model, path) and ml.load(model, path), or by state_dict() of Embeddings(rows_in_state_dict=True);"
            " or restore the tables first; or load inside `with ml.nn.without_rows():` to start with empty tables"
        )


def _advice(saved: Mapping[str, Any], slot: PlacedSlot) -> str:
    """Returns advice for a slot without a fixed number, which changes when other slots are added or removed."""
    moved = saved["number"] is not None and saved["number"] != slot.number and slot.slot.number is None
    return f" with number={saved['number']}" if moved else ""


def _whereabouts(slot: PlacedSlot) -> dict[str, Any]:
    return {"dim": slot.dim, "table": slot.table, "number": slot.number}


EXTRA_STATE = "_extra_state"
"""The key that torch gives to the extra state of a module."""
ROWS = "embedding_rows"
"""The key of a module's rows in a state dictionary."""

_ROWS_FORMAT = 1
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
    saved_state = decode(state)
    return {**saved_state, "slots": {name: where for name, where in saved_state["slots"].items() if name not in names}}


def is_of_rows(name: str) -> bool:
    """Returns whether a key of a state dictionary describes rows instead of a weight: sizes differ by process."""
    return name.rpartition(".")[2] in {EXTRA_STATE, ROWS}


def pack_rows(cut: Cut, schema: Schema) -> Tensor:
    """Packs the rows of a cut and releases it. Blocks are appended one by one: the tensor is the only copy."""
    head = json.dumps({"format": _ROWS_FORMAT, "schema": schema.text}).encode()
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
    if form != _ROWS_FORMAT:
        raise FailedPreconditionError(f"{ROWS}: expected format {_ROWS_FORMAT}, got {form!r}; it is of a later version")
    return Schema.parse(text), _LENGTH.size + length


def _table_numbers(saved: Schema, own: Schema) -> list[int | None]:
    """Returns, by number of a saved table, its number in the store; None for a table that is skipped."""
    sides = [Schema(tuple(replace(table, wide_slots=()) for table in schema.tables)) for schema in (own, saved)]
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
