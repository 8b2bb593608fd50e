"""Columns of a batch: one config for each column, by the name of its feature."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

import numpy as np

from monolith.config import Config, config, require_at_least

INVALID_LABEL = float(np.finfo(np.float32).min)
"""Stands where a task has no label: the lowest finite float32. Losses and metrics mask it."""


@config
class Column(Config):
    """Base of all columns."""

    kind: ClassVar[int] = -1
    """Number of the kind in the core."""

    name: str = field(kw_only=False)
    """Name of the feature in the samples, and of the column in the batch."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError(f"{type(self).__name__}: name must not be empty")

    def core_columns(self) -> tuple[str, int, int, int]:
        """Returns name, kind, width and slot, in the form of the core."""
        return (self.name, self.kind, getattr(self, "width", 1), -1)


@config
class Ids(Column):
    """The ids of a feature as ``Ragged`` int64; v1 ids become v2 ids. A sample without the feature has an empty row.

    Ids of columns of strings are hashes, those of integers the numbers themselves.
    """

    kind: ClassVar[int] = 0

    slot: int | None = None
    """Put into every id. Needed where ids have no slot: of a ``tf.train.Example`` the integer v becomes v2(slot, v),
    the real number x becomes v2(slot, floor(log2(|x| + 1)))."""
    length: int | None = None
    """Makes the column a padded int64 [rows, length] instead: longer rows lose their end, short ones get 0."""
    separator: str | None = None
    """Stands between the values of a text, such as ``"|"`` in ``Action|Comedy``; for columns of texts only."""
    texts_of: str | None = None
    """The column with which equal strings share ids, such as the item's for a history of items; default: itself. For
    columns of strings only."""

    def __post_init__(self) -> None:
        Column.__post_init__(self)
        if self.separator == "" or self.texts_of == "":
            raise ValueError(f"Ids: {'separator' if self.separator == '' else 'texts_of'} must not be empty")
        if self.slot is not None and not 0 <= self.slot < 1 << 15:
            raise ValueError(f"Ids: slot must be from 0 to 32767, got {self.slot}")
        if self.length is not None and self.length < 0:
            raise ValueError(f"Ids: length must be >= 0, got {self.length}")

    def core_columns(self) -> tuple[str, int, int, int]:
        """Returns name, kind, width and slot, in the form of the core."""
        return (self.name, self.kind, 1, -1 if self.slot is None else self.slot)


@config
class Ints(Column):
    """The integers of a feature as ``Ragged`` int64."""

    kind: ClassVar[int] = 1


@config
class Floats(Column):
    """The real numbers of a feature as ``Ragged`` float32; doubles are narrowed."""

    kind: ClassVar[int] = 2


@config
class NestedIds(Column):
    """Lists of id lists as rows of rows: a ``Ragged`` whose values are ``Ragged`` int64."""

    kind: ClassVar[int] = 3


@config
class DenseColumn(Column):
    """The numbers of a feature as [rows, width]: short rows are filled with 0, long ones lose their end."""

    width: int = 1
    dtype: str = "float32"
    """``"float32"`` (from floats or doubles) or ``"int64"`` (from integers)."""

    def __post_init__(self) -> None:
        Column.__post_init__(self)
        require_at_least(self, 1, "width")
        if self.dtype not in {"float32", "int64"}:
            raise ValueError(f"DenseColumn: dtype must be 'float32' or 'int64', got {self.dtype!r}")

    def core_columns(self) -> tuple[str, int, int, int]:
        """Returns name, kind, width and slot, in the form of the core."""
        return (self.name, 4 if self.dtype == "float32" else 5, self.width, -1)


@config
class FirstBytes(Column):
    """The first byte string of a feature, as a list of ``bytes``; empty where there is none."""

    kind: ClassVar[int] = 6


@config
class Label(Column):
    """The labels as float32 [rows, width]; `INVALID_LABEL` where a sample has none, in every format.

    Of samples with typed labels the name is only that of the column: the values are those of the typed field, then
    those of the feature ``__LABEL__``. Of a ``tf.train.Example`` it is the feature of that name, integers or reals.
    """

    kind: ClassVar[int] = 7

    name: str = field(default="label", kw_only=False)
    width: int = 1
    """Number of tasks."""

    def __post_init__(self) -> None:
        Column.__post_init__(self)
        require_at_least(self, 1, "width")


@config
class Weight(Column):
    """The weight of each sample as float32 [rows]; 1 where it is absent or not positive.

    It is that of the feature ``instance_weight``, or else that of the typed field.
    """

    kind: ClassVar[int] = 8

    name: str = field(default="instance_weight", kw_only=False)


@config
class LineIdField(Column):
    """A field of LineId, out of the feature ``__LINE_ID__`` or else of the typed field.

    Integers are int64 [rows], 0 where absent; ``sample_rate`` is float32 [rows], 1 where absent; ``actions``,
    ``pre_actions`` and ``special_strategies`` are ``Ragged`` int64; texts are lists of ``bytes``.
    """

    kind: ClassVar[int] = 9
