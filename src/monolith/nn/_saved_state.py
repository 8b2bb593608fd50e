"""What a module keeps of its rows' whereabouts: checks against a store, a saved state, and copies."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from monolith.nn._merge import MergedTable, PlacedSlot
    from monolith.nn._worker import StoreWorker
    from monolith.tables.schema import Schema
    from monolith.tables.table_config import TableConfig

    M = TypeVar("M", bound=nn.Module)

_FORMAT = 2
"""1 had the numbers of batches and updates, which the store knows better."""


def require_tables(schema: Schema, configs: Mapping[str, TableConfig], merged: Sequence[MergedTable]) -> None:
    """Refuses a store that was made for other slots.

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
    if len(found) != len(merged):
        unknown = sorted(found.keys() - configs.keys())
        raise FailedPreconditionError(f"the store has tables {unknown} that no slot uses; make it for these slots only")


def save(worker: StoreWorker, placed: Mapping[str, PlacedSlot]) -> dict[str, Any]:
    """Plain values, which `torch.load(weights_only=True)` reads."""
    slots = {name: _whereabouts(slot) for name, slot in placed.items()}
    return {"format": _FORMAT, "global_step": worker.global_step, "slots": slots}


def load(state: Mapping[str, Any], worker: StoreWorker, placed: Mapping[str, PlacedSlot]) -> None:
    """Takes over the step, once every slot is where it was. Slots may have been added or removed.

    Raises:
        FailedPreconditionError: a slot whose saved rows would not be found.
    """
    if state.get("format") not in {1, _FORMAT}:
        raise FailedPreconditionError(
            f"Embeddings: expected a saved state of format 1 or {_FORMAT}, got {state.get('format')!r}"
        )
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
                f" it was{_advice(saved, placed[name])}, or under another name to start anew"
            )
    worker.leave()
    worker.global_step = int(state["global_step"])


def copy_module(module: M, memo: dict[int, Any], **own: object) -> M:
    """A copy with its own buffers, hooks and `own` attributes that shares everything else, as rows cannot be copied."""
    copied = type(module).__new__(type(module))
    memo[id(module)] = copied
    copied.__dict__.update(module.__dict__)
    for name, value in module.__dict__.items():
        if isinstance(value, dict | set):  # what torch keeps for every module: parameters, buffers, hooks
            copied.__dict__[name] = copy.deepcopy(value, memo) if name == "_buffers" else copy.copy(value)
    copied.__dict__.update(own)
    return copied


def _advice(saved: Mapping[str, Any], slot: PlacedSlot) -> str:
    """Another slot that came or went may have changed a number that the slot does not name."""
    moved = saved["number"] is not None and saved["number"] != slot.number and slot.slot.number is None
    return f" with number={saved['number']}" if moved else ""


def _whereabouts(slot: PlacedSlot) -> dict[str, Any]:
    return {"dim": slot.dim, "table": slot.table, "number": slot.number}
