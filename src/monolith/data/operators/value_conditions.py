"""Rows by the value of a column: comparisons of numbers and texts, and set tests of lists of integers."""

from __future__ import annotations

import operator as compare
from dataclasses import field
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import fsspec
import numpy as np
import torch
from torch import Tensor

from monolith.config import config
from monolith.data.operators.column_access import column_of, describe_column
from monolith.data.operators.conditions import Condition
from monolith.data.operators.packed_texts import PackedTexts
from monolith.data.operators.row_sets import rows_with_all, rows_with_any
from monolith.data.protos.example_pb2 import FilterValues
from monolith.errors import DataLossError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from monolith.data.batch import Batch

__all__ = ["Value", "load_operand"]

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
        texts = [isinstance(each, str | bytes) for each in operand]
        if len(set(texts)) > 1 or any(isinstance(each, bool) for each in operand):
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
        found = torch.isin(values, operand)
        return ~found if self.op == "not-in" else found

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
        wanted = torch.unique(self._operand_like(values.flat_values))
        if self.op == "all":
            held = rows_with_all([values], wanted)
        else:
            held = rows_with_any(values, wanted) ^ (self.op == "diff")
        return torch.where(values.lengths() == 0, self.keep_empty, held)

    def _test_texts(self, values: list[bytes]) -> Tensor:
        if self.op in _SET_TESTS:
            raise self._misfit("a Ragged of int64", "a list of bytes")
        operand = [each.encode() if isinstance(each, str) else each for each in self._operands if _is_text(each)]
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
        whole = all(isinstance(each, int) for each in self._operands)
        if any(isinstance(each, str | bytes) for each in self._operands) or (
            not values.is_floating_point() and not whole
        ):
            raise self._misfit(f"operands that compare with {values.dtype}", f"{self._operands}")
        try:
            return torch.tensor(self._operands, dtype=values.dtype, device=values.device)
        except (RuntimeError, ValueError, OverflowError):
            raise ValueError(f"Value: operands must fit {values.dtype}, got {self._operands}") from None

    def _misfit(self, expected: str, got: str) -> TypeError:
        return TypeError(f"Value: {self.op!r} on column {self.column!r} needs {expected}, got {got}")


def _is_text(value: Operand) -> TypeGuard[str | bytes]:
    return isinstance(value, str | bytes)


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
