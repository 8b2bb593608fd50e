"""The saved state of a module with rows: location of rows and progress, and its checks against a store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.errors import DataLossError, FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.nn.embeddings.merge import MergedTable, PlacedSlot
    from monolith.nn.embeddings.worker import StoreWorker
    from monolith.tables.schema import Schema
    from monolith.tables.table_config import TableConfig

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
    found = {table.name: table for table in schema.tables}
    for table in merged:
        slots = ", ".join(map(repr, table.slots))
        if table.name not in found:
            raise FailedPreconditionError(
                f"slots {slots}: the store has no table {table.name!r} for them, it has {list(found)}; it was made for"
                " slots of another dim or row optimizer"
            )
        expected = [(each.dim, each.optimizer.kernel()[0]) for each in configs[table.name].segments]
        got = [(each.dim, each.optimizer) for each in found[table.name].segments]
        if got != expected:
            raise FailedPreconditionError(
                f"slots {slots}: table {table.name!r} of the store has segments {got}, the slots need {expected}"
            )
        wide = list(found[table.name].wide_slots)
        if wide != table.wide_slots:
            raise FailedPreconditionError(
                f"slots {slots}: table {table.name!r} of the store takes any int64 for slots of the numbers {wide}, and"
                f" the slots need it for {table.wide_slots}; make the store for these slots"
            )
    if len(found) != len(merged):
        unknown = sorted(found.keys() - configs.keys())
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
    found: Any = state
    if isinstance(state, Tensor):
        try:
            found = json.loads(state.detach().cpu().numpy().tobytes())
        except (ValueError, TypeError) as error:
            raise DataLossError(f"Embeddings: the saved state is damaged: {error!r}") from error
    form = found.get("format") if isinstance(found, Mapping) else None
    if form not in {1, _FORMAT, _TENSOR_FORMAT}:
        raise FailedPreconditionError(
            f"Embeddings: expected a saved state of format 1 to {_TENSOR_FORMAT}, got {form!r}; it is not of an"
            " Embeddings, or of a later version"
        )
    return found  # type: ignore[no-any-return]  # a mapping, as its format is one of ours


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
