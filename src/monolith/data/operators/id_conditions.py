"""Rows by the ids, slots and actions they have."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from monolith import ids as id_layout
from monolith.config import config
from monolith.data.operators.column_access import ids_of
from monolith.data.operators.conditions import AllOf, Condition
from monolith.data.operators.row_sets import rows_with_all, rows_with_any
from monolith.data.operators.value_conditions import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.data.batch import Batch
    from monolith.tensors import Ragged

__all__ = ["HasAllIds", "HasAllSlots", "HasAnyId", "filter_by_fids"]


@config
class _Contains(Condition):
    """Base of conditions that search values in columns of ids."""

    columns: str | tuple[str, ...] = field(kw_only=False)
    """Columns to search; one name may be a string."""
    _wanted: Tensor = field(init=False, repr=False, compare=False)

    def _set_up(self, name: str, values: Sequence[int]) -> None:
        columns = _names(self.columns)
        if not columns:
            raise ValueError(f"{type(self).__name__}: at least one column must be named, got none")
        numbers = tuple(_signed(value, f"{type(self).__name__}: {name}") for value in values)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, name, numbers)
        object.__setattr__(self, "_wanted", torch.tensor(sorted(set(numbers)), dtype=torch.int64))

    def _rows(self, batch: Batch) -> list[Ragged]:
        return [ids_of(batch, name, self) for name in _names(self.columns)]


@config
class HasAnyId(_Contains):
    """Holds where one of the ids is in one of the columns; of no ids: nowhere. It is also a test of actions.

    >>> from monolith.data import Batch
    >>> from monolith.tensors import Ragged
    >>> batch = Batch({"actions": Ragged.from_lists([[1, 2], [], [3]])}, num_rows=3)
    >>> HasAnyId("actions", ids=(2, 3)).holds(batch)
    tensor([ True, False,  True])
    """

    ids: tuple[int, ...] = ()
    """Ids are signed or unsigned readings of the same 64 bits."""

    def __post_init__(self) -> None:
        self._set_up("ids", self.ids)

    def holds(self, batch: Batch) -> Tensor:
        """Returns the rows for which it holds, bool [B]."""
        found = torch.zeros(batch.num_rows, dtype=torch.bool)
        for rows in self._rows(batch):
            found = rows_with_any(rows, self._wanted) | found.to(rows.device)
        return found


@config
class HasAllIds(_Contains):
    """Holds where every one of the ids is in one of the columns or another; of no ids: everywhere."""

    ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._set_up("ids", self.ids)

    def holds(self, batch: Batch) -> Tensor:
        """Returns the rows for which it holds, bool [B]."""
        return rows_with_all(self._rows(batch), self._wanted)


@config
class HasAllSlots(_Contains):
    """Holds where there is an id of every one of the slots, by the v2 layout, in one of the columns or another."""

    slots: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._set_up("slots", self.slots)
        if any(not 0 <= slot < id_layout.NUM_SLOTS_V2 for slot in self.slots):
            raise ValueError(f"HasAllSlots: slots must be from 0 to 32767, got {self.slots}")

    def holds(self, batch: Batch) -> Tensor:
        """Returns the rows for which it holds, bool [B]."""
        slots = [rows.with_values(id_layout.slot_v2(rows.flat_values)) for rows in self._rows(batch)]
        return rows_with_all(slots, self._wanted)


def filter_by_fids(
    columns: Sequence[str],
    *,
    filter_fids: Sequence[int] = (),
    has_fids: Sequence[int] = (),
    select_fids: Sequence[int] = (),
    select_slots: Sequence[int] = (),
    has_actions: Sequence[int] = (),
    req_time_min: int = 0,
) -> Condition:
    """Returns the tests of ByteDance Monolith's ``filter_by_fids`` as one condition; tests not given are skipped.

    Args:
        columns: Columns to search for ids.
        filter_fids: None of these ids may be present.
        has_fids: At least one of these ids must be present.
        select_fids: All of these ids must be present.
        select_slots: An id of each of these slots must be present.
        has_actions: The column ``actions`` must have one of them.
        req_time_min: The column ``req_time`` must be this or later.
    """
    columns = tuple(columns)
    tests: list[Condition] = []
    if req_time_min > 0:
        tests.append(Value("req_time", op="ge", operand=(req_time_min,)))
    if filter_fids:
        tests.append(~HasAnyId(columns, ids=tuple(filter_fids)))
    if has_fids:
        tests.append(HasAnyId(columns, ids=tuple(has_fids)))
    if select_fids:
        tests.append(HasAllIds(columns, ids=tuple(select_fids)))
    if select_slots:
        tests.append(HasAllSlots(columns, slots=tuple(select_slots)))
    if has_actions:
        tests.append(HasAnyId("actions", ids=tuple(has_actions)))
    return AllOf(tuple(tests))


def _names(columns: str | tuple[str, ...]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _signed(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{name} must be 64-bit integers, got {value!r}")
    return value - (1 << 64) if value >= 1 << 63 else value
