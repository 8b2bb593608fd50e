"""Labels clamped, rescaled, and moved to the task of their row. Where a task has no label it stays so."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.config import config, require_at_least
from monolith.data.batch_rows import with_columns
from monolith.data.columns import INVALID_LABEL
from monolith.data.operators.column_access import labels_of, numbers_of
from monolith.data.operators.conditions import Operator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.data.batch import Batch

__all__ = ["LabelNormalization", "LabelUpperBound", "RankLabel", "ScatterLabel", "place_labels"]

_METHODS = ("log", "scale", "scale2int", "pow", "repow", "scalelog")


@config
class LabelUpperBound(Operator):
    """Clamps the label of each task from above.

    >>> from monolith.data import Batch
    >>> LabelUpperBound((10.0,))(Batch({"label": torch.tensor([[3.0, 99.0], [99.0, 99.0]])}, num_rows=2))["label"]
    tensor([[ 3., 99.],
            [10., 99.]])
    """

    bounds: tuple[float, ...] = field(kw_only=False)
    """Bounds of the first tasks; further tasks have none."""
    label: str = "label"

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", tuple(map(float, self.bounds)))
        if any(bound != bound for bound in self.bounds):  # noqa: PLR0124 - NaN is what differs from itself
            raise ValueError(f"LabelUpperBound: bounds must be numbers, got {self.bounds}")

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with clamped labels."""
        labels = labels_of(batch, self.label, self, width=len(self.bounds))
        bounds = torch.full((labels.shape[1],), torch.inf, dtype=labels.dtype, device=labels.device)
        bounds[: len(self.bounds)] = torch.tensor(self.bounds, dtype=labels.dtype)
        return with_columns(batch, {self.label: torch.minimum(labels, bounds)})


@config
class LabelNormalization(Operator):
    """Rescales every label by a chain of methods, each with its value v.

    | method | l becomes |
    |---|---|
    | log | ln(max(l + v, 0)) |
    | scale | l / v |
    | scale2int | l / v without its fraction |
    | pow | (l + 1) ** v |
    | repow | l ** v where l > 0, else 0 |
    | scalelog | ln(max(l / v + 1, 0)) |

    `INVALID_LABEL` is unchanged; ByteDance Monolith rescaled it too. The logarithm of 0 is -inf, by the formula.
    """

    methods: tuple[str, ...] = field(kw_only=False)
    values: tuple[float, ...] = field(kw_only=False)
    label: str = "label"

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", tuple(self.methods))
        object.__setattr__(self, "values", tuple(map(float, self.values)))
        if len(self.methods) != len(self.values):
            got = f"{len(self.methods)} and {len(self.values)}"
            raise ValueError(f"LabelNormalization: methods and values must be of one length, got {got}")
        for method, value in zip(self.methods, self.values, strict=True):
            if method not in _METHODS:
                raise ValueError(f"LabelNormalization: method must be one of {', '.join(_METHODS)}, got {method!r}")
            if method.startswith("scale") and value == 0:
                raise ValueError(f"LabelNormalization: the value of {method!r} must not be 0")

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with rescaled labels."""
        labels = labels_of(batch, self.label, self)
        scaled = labels
        for method, value in zip(self.methods, self.values, strict=True):
            scaled = _normalize(scaled, method, value)
        return with_columns(batch, {self.label: torch.where(labels == INVALID_LABEL, labels, scaled)})


@config
class ScatterLabel(Operator):
    """Moves the first label to the task of the row's channel; all other tasks have none.

    Rows of a channel that is not listed are left without a label.
    """

    index_of: Mapping[int, int] = field(kw_only=False)
    """Channel to task."""
    column: str = "chnid"
    label: str = "label"

    def __post_init__(self) -> None:
        index_of = {int(channel): int(index) for channel, index in self.index_of.items()}
        if not index_of or min(index_of.values()) < 0:
            raise ValueError(f"ScatterLabel: tasks must be numbered from 0, got {index_of}")
        object.__setattr__(self, "index_of", index_of)

    @classmethod
    def from_text(cls, text: str, **options: Any) -> ScatterLabel:
        """Parses ``"channel:index,..."``, as given by flags."""
        try:
            pairs = [part.split(":") for part in text.split(",") if part.strip()]
            return cls({int(channel): int(index) for channel, index in pairs}, **options)
        except ValueError:
            raise ValueError(f"ScatterLabel: text must be 'channel:index,...', got {text!r}") from None

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with each label in its place."""
        first = labels_of(batch, self.label, self)[:, 0]
        channels = numbers_of(batch, self.column, self)
        tasks = torch.full_like(channels, -1)
        for channel, index in self.index_of.items():
            tasks[channels == channel] = index
        return with_columns(batch, {self.label: place_labels(first, tasks, max(self.index_of.values()) + 1)})


@config
class RankLabel(Operator):
    """Appends a label for ranking: where the row stood, or which kind it was.

    ``"draw"``: ``is_draw`` as 0 or 1. ``"chnid"``: channels 0 and 1 as they are, all others 2. ``"rank"``: ``rank``, at
    most ``rank_num - 1``. Upstream calls it ``fill_multi_rank_output``.
    """

    source: str = field(kw_only=False)
    rank_num: int = 18
    label: str = "label"

    def __post_init__(self) -> None:
        if self.source not in {"draw", "chnid", "rank"}:
            raise ValueError(f"RankLabel: source must be 'draw', 'chnid' or 'rank', got {self.source!r}")
        require_at_least(self, 1, "rank_num")

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with one more label."""
        labels = labels_of(batch, self.label, self, width=0)
        numbers = numbers_of(batch, {"draw": "is_draw"}.get(self.source, self.source), self).to(torch.int64)
        if self.source == "draw":
            numbers = (numbers != 0).to(torch.int64)
        elif self.source == "chnid":
            numbers = torch.where((numbers == 0) | (numbers == 1), numbers, 2)
        else:
            numbers = numbers.clamp(max=self.rank_num - 1)
        return with_columns(batch, {self.label: torch.cat([labels, numbers[:, None].to(labels)], dim=1)})


def place_labels(labels: Tensor, tasks: Tensor, num_tasks: int) -> Tensor:
    """Returns each label in the column of its task, `INVALID_LABEL` elsewhere, [B, num_tasks]; task -1: none."""
    placed = labels.new_full((len(labels), num_tasks + 1), INVALID_LABEL)
    placed.scatter_(1, torch.where(tasks < 0, num_tasks, tasks)[:, None], labels[:, None])
    return placed[:, :num_tasks].contiguous()


def _normalize(labels: Tensor, method: str, value: float) -> Tensor:
    if method == "log":
        return (labels + value).clamp(min=0).log()
    if method == "scale":
        return labels / value
    if method == "scale2int":
        return (labels / value).trunc()
    if method == "pow":
        return (labels + 1).pow(value)
    if method == "repow":
        return torch.where(labels > 0, labels.pow(value), torch.where(labels.isnan(), labels, 0.0))
    return (labels / value + 1).clamp(min=0).log()
