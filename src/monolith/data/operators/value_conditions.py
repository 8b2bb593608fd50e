"""Rows by the value of a column: comparisons of numbers and texts, set tests of lists of integers, and ids."""

from __future__ import annotations

import operator as compare
from dataclasses import field
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import fsspec
import numpy as np
import torch
from torch import Tensor

from monolith import ids as id_layout
from monolith.config import config
from monolith.data.operators.column_access import (
    PackedTexts,
    column_of,
    describe_column,
    ids_of,
    rows_with_all,
    rows_with_any,
)
from monolith.data.operators.conditions import AllOf, Condition
from monolith.data.protos.example_pb2 import FilterValues
from monolith.errors import DataLossError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from monolith.data.batch import Batch

Operand: TypeAlias = int | float | str | bytes

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "gt": compare.gt,
    "ge": compare.ge,
    "eq": compare.eq,
    "lt": compare.lt,
    "le": compare.le,
    "neq": compare.ne,
}
_TEXT_PARTS = ("startswith", "endswith")
_SET_TESTS = ("any", "all", "diff")
_OPS = (*_COMPARISONS, "between", "in", "not-in", *_TEXT_PARTS, *_SET_TESTS)


@config
class Value(Condition):
    """Tests the value of a column in each row.

    | op | holds where the value is | columns |
    |---|---|---|
    | gt, ge, eq, lt, le, neq | so compared to the operand | numbers, texts |
    | between | in [first operand, second operand) | numbers, texts |
    | in, not-in | one of the operands, none of them | numbers, texts |
    | startswith, endswith | so with one of the operands | texts |
    | any, all, diff | a list that has one, all, none of the operands | lists of integers |

    Numbers are [B], [B, 1], or lists of one element; an empty list counts as `keep_empty`, whatever the op. NaN equals
    nothing: of all ops only neq and not-in hold for it.

    >>> from monolith.data import Batch
    >>> Value("age", op="between", operand=(18, 30)).holds(Batch({"age": torch.tensor([17, 18, 30])}, num_rows=3))
    tensor([False,  True, False])

    Raises:
        ValueError: an unknown op, or a number of operands that does not fit it.
        TypeError: operands of mixed kinds, or of another kind than the column.
    """

    column: str = field(kw_only=False)
    op: str
    operand: Operand | tuple[Operand, ...]
    """The operands; one may be given as it is."""
    keep_empty: bool = False
    _operands: tuple[Operand, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.op not in _OPS:
            raise ValueError(f"Value: op must be one of {', '.join(_OPS)}, got {self.op!r}")
        operand = (self.operand,) if isinstance(self.operand, int | float | str | bytes) else tuple(self.operand)
        expected = 1 if self.op in _COMPARISONS else 2 if self.op == "between" else None
        if expected is not None and len(operand) != expected:
            raise ValueError(f"Value: op {self.op!r} takes {expected} operands, got {len(operand)}: {operand}")
        texts = [isinstance(value, str | bytes) for value in operand]
        if len(set(texts)) > 1 or any(isinstance(value, bool) for value in operand):
            raise TypeError(f"Value: operands must all be numbers or all be texts, got {operand}")
        if self.op in _TEXT_PARTS and not all(texts):
            raise TypeError(f"Value: op {self.op!r} takes texts, got {operand}")
        object.__setattr__(self, "operand", operand)
        object.__setattr__(self, "_operands", operand)

    def holds(self, batch: Batch) -> Tensor:
        """Returns the rows for which it holds, bool [B]."""
        values = column_of(batch, self.column, self)
        if isinstance(values, list):
            return self._test_texts(values)
        if self.op in _TEXT_PARTS:
            raise self._misfit("texts", describe_column(values))
        if self.op in _SET_TESTS:
            return self._test_sets(values)
        if isinstance(values, Ragged):
            return self._test_single(values)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1:
            raise self._misfit("one number for each row", describe_column(values))
        return self._test_numbers(values)

    def _test_numbers(self, values: Tensor) -> Tensor:
        operand = self._operand_like(values)
        if self.op in _COMPARISONS:
            held: Tensor = _COMPARISONS[self.op](values, operand[0])
            return held
        if self.op == "between":
            return (values >= operand[0]) & (values < operand[1])
        is_operand = torch.isin(values, operand)
        return ~is_operand if self.op == "not-in" else is_operand

    def _test_single(self, values: Ragged) -> Tensor:
        lengths = values.lengths()
        if values.ndim != 2 or bool((lengths > 1).any()):
            longest = int(lengths.max())
            raise self._misfit("lists of one number", f"one of {longest}; any, all and diff test longer ones")
        held = torch.full((values.num_rows,), self.keep_empty, device=values.device)
        held[lengths == 1] = self._test_numbers(values.flat_values)
        return held

    def _test_sets(self, values: Tensor | Ragged) -> Tensor:
        if not isinstance(values, Ragged) or values.dtype != torch.int64 or values.ndim != 2:
            raise self._misfit("a Ragged of int64", describe_column(values))
        operands = torch.unique(self._operand_like(values.flat_values))
        if self.op == "all":
            held = rows_with_all([values], operands)
        else:
            held = rows_with_any(values, operands) ^ (self.op == "diff")
        return torch.where(values.lengths() == 0, self.keep_empty, held)

    def _test_texts(self, values: list[bytes]) -> Tensor:
        if self.op in _SET_TESTS:
            raise self._misfit("a Ragged of int64", "a list of bytes")
        texts = [text for text in self._operands if isinstance(text, str | bytes)]
        operand = [text.encode() if isinstance(text, str) else text for text in texts]
        if len(operand) != len(self._operands):
            raise self._misfit("numbers", "a list of bytes")
        if self.op in _TEXT_PARTS:
            packed = PackedTexts(values)
            test = packed.start_with if self.op == "startswith" else packed.end_with
            return torch.from_numpy(np.any([np.zeros(len(values), dtype=bool), *map(test, operand)], axis=0))
        # The built-in functions run for each text without a line of Python.
        if self.op in {"in", "not-in"}:
            return _bools(map(frozenset(operand).__contains__, values), len(values)) ^ (self.op == "not-in")
        if self.op == "between":
            above = _bools(map(compare.ge, values, repeat(operand[0])), len(values))
            return above & _bools(map(compare.lt, values, repeat(operand[1])), len(values))
        return _bools(map(_COMPARISONS[self.op], values, repeat(operand[0])), len(values))

    def _operand_like(self, values: Tensor) -> Tensor:
        are_texts = any(isinstance(value, str | bytes) for value in self._operands)
        if are_texts or not (values.is_floating_point() or all(isinstance(value, int) for value in self._operands)):
            raise self._misfit(f"operands that compare with {values.dtype}", f"{self._operands}")
        try:
            return torch.tensor(self._operands, dtype=values.dtype, device=values.device)
        except (RuntimeError, ValueError, OverflowError):
            raise ValueError(f"Value: operands must fit {values.dtype}, got {self._operands}") from None

    def _misfit(self, expected: str, got: str) -> TypeError:
        return TypeError(f"Value: {self.op!r} on column {self.column!r} needs {expected}, got {got}")


def _bools(results: Iterable[bool], count: int) -> Tensor:
    return torch.from_numpy(np.fromiter(results, dtype=bool, count=count))


def load_operand(path: str) -> tuple[Operand, ...]:
    """Returns the operands of a file that holds a serialized ``FilterValues``; any fsspec path.

    Raises:
        DataLossError: the file holds something else.
    """
    with fsspec.open(path, "rb") as file:
        data: bytes = file.read()
    try:
        message = FilterValues.FromString(data)
    except Exception as error:
        raise DataLossError(f"{path}: no FilterValues message: {error}") from error
    kind = message.WhichOneof("type")
    if kind is None:
        raise DataLossError(f"{path}: FilterValues without a list")
    values: Sequence[Operand] = getattr(message, kind).value
    return tuple(values)


@config
class _Contains(Condition):
    """Base of conditions that search values in columns of ids."""

    columns: str | tuple[str, ...] = field(kw_only=False)
    """Columns to search; one name may be a string."""
    _values: Tensor = field(init=False, repr=False, compare=False)

    def _set_up(self, name: str, values: Sequence[int]) -> None:
        columns = _names(self.columns)
        if not columns:
            raise ValueError(f"{type(self).__name__}: at least one column must be named, got none")
        numbers = tuple(_signed(value, f"{type(self).__name__}: {name}") for value in values)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, name, numbers)
        object.__setattr__(self, "_values", torch.tensor(sorted(set(numbers)), dtype=torch.int64))

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
        has_id = torch.zeros(batch.num_rows, dtype=torch.bool)
        for rows in self._rows(batch):
            has_id = rows_with_any(rows, self._values) | has_id.to(rows.device)
        return has_id


@config
class HasAllIds(_Contains):
    """Holds where every one of the ids is in one of the columns or another; of no ids: everywhere."""

    ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._set_up("ids", self.ids)

    def holds(self, batch: Batch) -> Tensor:
        """Returns the rows for which it holds, bool [B]."""
        return rows_with_all(self._rows(batch), self._values)


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
        return rows_with_all(slots, self._values)


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
