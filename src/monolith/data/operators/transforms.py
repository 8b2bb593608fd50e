"""Operators out of a ``TransformConfig`` message, and counts of what operators let through."""

from __future__ import annotations

import logging
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch

from monolith.clock import SystemClock
from monolith.config import config
from monolith.data.columns import INVALID_LABEL
from monolith.data.operators.add_label import AddLabel, TaskLabel
from monolith.data.operators.column_access import labels_of
from monolith.data.operators.conditions import Compose, Condition, Operator
from monolith.data.operators.value_conditions import HasAnyId, Value, filter_by_fids, load_operand
from monolith.data.rows import keep_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from monolith.clock import Clock
    from monolith.data.batch import Batch
    from monolith.data.protos.transform_config_pb2 import BasicTransformConfig, FilterByValueConfig, TransformConfig

_logger = logging.getLogger(__name__)


@config
class LogicalOr(Operator):
    """Keeps the rows that one of two operators keeps. Both run, so one that edits does so for all rows it sees.

    Of two conditions it is what ``|`` makes. An operator that edits keeps every row.
    """

    x: Operator = field(kw_only=False)
    y: Operator = field(kw_only=False)

    def __post_init__(self) -> None:
        for operator in (self.x, self.y):
            if not isinstance(operator, Condition | AddLabel):
                raise TypeError(f"LogicalOr: operands must be conditions or AddLabel, got {operator!r}")

    def __call__(self, batch: Batch) -> Batch | None:
        """Returns the rows that one of the operands keeps."""
        kept = None
        for operator in (self.x, self.y):
            if isinstance(operator, Condition):
                rows = operator.holds(batch)
                kept = rows if kept is None else kept | rows
            elif isinstance(operator, AddLabel):
                batch = operator(batch)
        edits = any(isinstance(operator, AddLabel) for operator in (self.x, self.y))
        return batch if edits or kept is None else keep_rows(batch, kept)


class Counted:
    """An operator that counts its input and output rows, and logs both periodically.

    Args:
        operator: The operator to run.
        name: Name in the log; default: the operator's class.
        every_seconds: Seconds between two lines of the log.
        clock: Clock of the interval.
    """

    def __init__(
        self,
        operator: Callable[[Batch], Batch | None],
        *,
        name: str | None = None,
        every_seconds: float = 300.0,
        clock: Clock | None = None,
    ) -> None:
        self._operator = operator
        self._name = type(operator).__name__ if name is None else name
        self._every_seconds = every_seconds
        self._clock = SystemClock() if clock is None else clock
        self._last = self._clock.monotonic()
        self.rows_in = 0
        self.rows_out = 0

    def __call__(self, batch: Batch) -> Batch | None:
        """Returns what the operator returns."""
        transformed = self._operator(batch)
        self.rows_in += batch.num_rows
        self.rows_out += 0 if transformed is None else transformed.num_rows
        if self._clock.monotonic() - self._last >= self._every_seconds:
            self._last = self._clock.monotonic()
            text = "%s: %d rows in, %d out, %.4f kept"
            _logger.info(text, self._name, self.rows_in, self.rows_out, self.retention_ratio)
        return transformed

    @property
    def retention_ratio(self) -> float:
        """Rows out per row in; 0 before the first row."""
        return self.rows_out / self.rows_in if self.rows_in else 0.0


def operators_of(transforms: TransformConfig, *, id_columns: Sequence[str], **options: Any) -> Compose:
    """Returns the operators that a ``TransformConfig`` message describes, one after another.

    Args:
        transforms: The message.
        id_columns: Where filters by id look.
        options: Of every `AddLabel`: its label column, seed and keys.

    Raises:
        ValueError: an entry without a kind, or with values that its operator refuses.
    """
    operators: list[Operator] = []
    for number, entry in enumerate(transforms.configs):
        kind = entry.WhichOneof("type")
        if kind == "basic_config":
            operators.append(_operator_of(entry.basic_config, id_columns, options))
        elif kind == "logical_or_config":
            sides = (entry.logical_or_config.x, entry.logical_or_config.y)
            operators.append(LogicalOr(*(_operator_of(side, id_columns, options) for side in sides)))
        else:
            raise ValueError(f"TransformConfig: configs[{number}] has no kind")
    return Compose(tuple(operators))


def _operator_of(basic: BasicTransformConfig, id_columns: Sequence[str], options: dict[str, Any]) -> Operator:
    kind = basic.WhichOneof("type")
    if kind == "filter_by_fid":
        ids = basic.filter_by_fid
        return filter_by_fids(
            id_columns, filter_fids=ids.filter_fids, has_fids=ids.has_fids, select_fids=ids.select_fids
        )
    if kind == "filter_by_action":
        return HasAnyId("actions", ids=tuple(basic.filter_by_action.has_actions))
    if kind == "filter_by_label":
        return LabelAbove(tuple(basic.filter_by_label.thresholds))
    if kind == "filter_by_value":
        return _value_of(basic.filter_by_value)
    if kind == "add_label":
        tasks = tuple(
            TaskLabel(tuple(task.pos_actions), negative=tuple(task.neg_actions), sample_rate=task.sample_rate)
            for task in basic.add_label.task_label_configs
        )
        values = basic.add_label
        return AddLabel(tasks, negative_value=values.negative_value, new_sample_rate=values.new_sample_rate, **options)
    raise ValueError("BasicTransformConfig: no kind is set")


def _value_of(test: FilterByValueConfig) -> Value:
    operand_lists = [values for values in (test.float_operand, test.int_operand, test.string_operand) if values]
    if len(operand_lists) + bool(test.operand_filepath) != 1:
        raise ValueError(f"FilterByValueConfig of {test.field_name!r}: exactly one kind of operand must be given")
    operand: tuple[Any, ...] = load_operand(test.operand_filepath) if test.operand_filepath else tuple(operand_lists[0])
    return Value(test.field_name, op=test.op, operand=operand, keep_empty=test.keep_empty)


@config
class LabelAbove(Condition):
    """Holds where the label of some task is above that task's threshold, or at it unless `strict`.

    A label that is absent (`INVALID_LABEL`) or NaN is above no threshold. Tasks beyond the thresholds do not count.
    A sample with fewer labels than thresholds is judged by those it has; ByteDance Monolith dropped it, but in a batch
    it cannot be distinguished from one whose task has none. Upstream calls it ``filter_by_label``, and `strict`
    ``filter_equal``.

    >>> from monolith.data import Batch
    >>> batch = Batch({"label": torch.tensor([[0.0, 2.0], [1.0, 0.0]])}, num_rows=2)
    >>> LabelAbove((0.5, 5.0)).holds(batch)
    tensor([False,  True])
    """

    thresholds: tuple[float, ...] = field(kw_only=False)
    strict: bool = False
    label: str = "label"
    """Column of the labels."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "thresholds", tuple(map(float, self.thresholds)))
        if not self.thresholds:
            raise ValueError("LabelAbove: at least one threshold is needed, got none")

    def holds(self, batch: Batch) -> Tensor:
        """Returns the rows for which it holds, bool [B]."""
        width = len(self.thresholds)
        labels = labels_of(batch, self.label, self, width=width)[:, :width]
        thresholds = torch.tensor(self.thresholds, dtype=labels.dtype, device=labels.device)
        above = labels > thresholds if self.strict else labels >= thresholds
        return (above & (labels != INVALID_LABEL)).any(dim=1)


@config
class HasValidLabel(Condition):
    """Holds where at least one task has a label: one that is neither `INVALID_LABEL` nor NaN."""

    label: str = "label"

    def holds(self, batch: Batch) -> Tensor:
        """Returns the rows for which it holds, bool [B]."""
        labels = labels_of(batch, self.label, self, width=0)
        return ((labels != INVALID_LABEL) & ~labels.isnan()).any(dim=1)
