"""Slots of an embedding task with numbers, slices and columns, collected by running the task's `logits_fn` once.

Names are those of ByteDance Monolith: a *slot* has a number and a vocabulary, *slices* are parts of its rows
with a table each, and *columns* are features whose ids are of this slot. Columns of one slot share its tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.ids import NUM_SLOTS_V2
from monolith.nn import Slice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class Env:
    """The slots of a task: collected first, then the same for ever.

    While they are collected, lookups give zeros of one example.
    """

    def __init__(self) -> None:
        self.slots: dict[int, FeatureSlot] = {}
        """By number."""
        self.is_finalized = False
        """Whether no more slots can be added."""
        self.looked_up: Mapping[str, Tensor] | None = None
        """Feature -> its rows, summed, of the batch that is computed now."""
        self.gradient_multiplier = 1.0
        """Factor of all gradients of rows."""

    def finalize(self) -> None:
        """Ends the collection."""
        if not any(slot.columns for slot in self.slots.values()):
            raise FailedPreconditionError(
                "embedding task: logits_fn looked up no column; call self.env.slot(...).column(...).lookup()"
            )
        self.is_finalized = True

    def slot(self, number: int, *slices: Slice | int) -> FeatureSlot:
        """Returns the slot of a number, with its slices; every call for a number returns the same ones.

        Args:
            number: Number of the slot, as in the vocabulary file.
            *slices: Parts of its rows, or their dims; each has a table of its own.
        """
        requested = tuple(Slice(part) if isinstance(part, int) else part for part in slices)
        slot = self.slots.get(number)
        if slot is None:
            self._require_open(f"slot {number}")
            if not requested or not 0 <= number < NUM_SLOTS_V2:
                raise InvalidArgumentError(
                    f"slot {number}: a number from 0 to {NUM_SLOTS_V2 - 1} and at least one slice expected, got"
                    f" {len(requested)} slices"
                )
            slot = self.slots[number] = FeatureSlot(self, number, requested)
        elif requested != slot.slices:
            raise InvalidArgumentError(f"slot {number}: has slices {slot.slices}, got {requested}; give the same ones")
        return slot

    def _require_open(self, what: str) -> None:
        if self.is_finalized:
            raise InvalidArgumentError(
                f"{what}: logits_fn did not use it when slots were collected; use the same ones in every call"
            )


@dataclass(slots=True, eq=False)
class FeatureSlot:
    """A slot: one vocabulary of ids, and a table for each slice. Made by `Env.slot`."""

    env: Env
    number: int
    slices: tuple[Slice, ...]
    columns: dict[str, FeatureColumn] = field(default_factory=dict)
    """By name, in the order in which they were first used."""

    def column(self, name: str) -> FeatureColumn:
        """Returns a feature of the data whose ids are of this slot."""
        column = self.columns.get(name)
        if column is None:
            self.env._require_open(f"column {name!r}")  # noqa: SLF001 - parts of one thing
            owner = next((slot.number for slot in self.env.slots.values() if name in slot.columns), None)
            if owner is not None:
                raise InvalidArgumentError(f"column {name!r}: is of slot {owner} already, got slot {self.number}, too")
            column = self.columns[name] = FeatureColumn(self, name)
        return column


@dataclass(slots=True, eq=False)
class FeatureColumn:
    """A feature with ids. Made by `FeatureSlot.column`."""

    slot: FeatureSlot
    name: str

    def feature_name(self, slice_index: int) -> str:
        """Returns the name under which a slice of it is looked up."""
        return f"{self.name}_{slice_index}"

    def lookup(self, slice_index: int = 0) -> Tensor:
        """Returns the summed rows of each example's ids, [B, dim]."""
        if not 0 <= slice_index < len(self.slot.slices):
            raise InvalidArgumentError(
                f"column {self.name!r}: slot {self.slot.number} has slices 0 to {len(self.slot.slices) - 1}, got"
                f" {slice_index}"
            )
        env = self.slot.env
        if env.looked_up is None:
            return torch.zeros(1, self.slot.slices[slice_index].dim)
        rows = env.looked_up[self.feature_name(slice_index)]
        factor = env.gradient_multiplier
        return rows if factor == 1.0 else rows * factor + (rows * (1.0 - factor)).detach()
