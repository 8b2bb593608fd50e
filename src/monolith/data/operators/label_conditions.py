"""Rows by their labels."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import torch

from monolith.config import config
from monolith.data.columns import INVALID_LABEL
from monolith.data.operators.column_access import labels_of
from monolith.data.operators.conditions import Condition

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.data.batch import Batch

__all__ = ["HasValidLabel", "LabelAbove"]


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
