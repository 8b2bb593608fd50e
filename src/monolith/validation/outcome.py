"""Results of a progressive validation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.validation.sync_rule import SyncRule
    from monolith.validation.windows import Scores, Window

__all__ = ["CopyOutcome", "ValidationOutcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOutcome:
    """Metrics of one serving copy."""

    rule: SyncRule
    windows: tuple[Window, ...]
    """In the order of time; windows without an example are omitted."""
    total: Scores
    """Metrics over all measured examples. Its AUC is over all pairs, including those of different windows, in 65,536
    bins."""
    num_takes: int
    """Number of times rows were loaded."""
    bytes_taken: int
    """Size of the loaded rows and tombstones, as encoded in a log."""

    @property
    def mean_auc(self) -> float:
        """Mean of the windows' AUCs, as reported in the paper; windows without one are ignored."""
        known = [window.auc for window in self.windows if math.isfinite(window.auc)]
        return sum(known) / len(known) if known else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values; undefined ones are None."""
        return {
            "rule": _plain(self.rule.to_dict()),
            "mean_auc": _number(self.mean_auc),
            "total": _plain(asdict(self.total)),
            "num_takes": self.num_takes,
            "bytes_taken": self.bytes_taken,
            "windows": [_plain(asdict(window)) for window in self.windows],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOutcome(Mapping[str, CopyOutcome]):
    """Results of one trained model: its serving copies by name. `str` returns a table of them."""

    copies: dict[str, CopyOutcome]
    examples: int
    """Number of trained examples."""
    rows: int
    """Rows of the trained tables: the maximum over the ends of the windows."""
    memory_bytes: int
    """Memory of the trained tables, likewise: rows, indexes and filters."""
    evicted: int
    """Number of expired rows that were removed."""

    def __getitem__(self, name: str) -> CopyOutcome:
        return self.copies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.copies)

    def __len__(self) -> int:
        return len(self.copies)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, serializable as JSON."""
        return {
            "examples": self.examples,
            "rows": self.rows,
            "memory_bytes": self.memory_bytes,
            "evicted": self.evicted,
            "copies": {name: each.to_dict() for name, each in self.copies.items()},
        }

    def __str__(self) -> str:
        return table_of(self.copies)


def table_of(copies: Mapping[str, CopyOutcome]) -> str:
    """Returns a table with a line for each copy."""
    width = max(map(len, copies), default=0)
    lines = [f"{'':<{width}}  mean AUC  total AUC  log loss  calibration  take-overs        MB"]
    lines += [
        f"{name:<{width}}  {each.mean_auc:8.4f}  {each.total.auc:9.4f}  {each.total.log_loss:8.4f}"
        f"  {each.total.calibration:11.3f}  {each.num_takes:10,}  {each.bytes_taken / 1e6:8.1f}"
        for name, each in copies.items()
    ]
    return "\n".join(lines)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _number(value) if isinstance(value, float) else value for name, value in values.items()}


def _number(value: float) -> float | str | None:
    if math.isinf(value):
        return "infinite"
    return None if math.isnan(value) else value
