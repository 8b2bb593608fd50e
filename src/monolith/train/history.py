"""Measurements of a training run, and how it ended."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


class History:
    """The records of one call of `Trainer.train`, at a fixed interval of steps.

    ``history["loss"]`` is a list of numbers, one for each of ``history["step"]``; ``history.records`` is a list of
    dictionaries, as ``pandas.DataFrame`` takes them.

    >>> history = History()
    >>> history.write(100, {"loss": 0.5})
    >>> history.write(200, {"loss": 0.25, "auc": 0.75})
    >>> history["step"], history["loss"], history["auc"]
    ([100.0, 200.0], [0.5, 0.25], [nan, 0.75])
    >>> history
    History(2 records up to step 200: loss 0.25, auc 0.75)
    """

    def __init__(self) -> None:
        self.records: list[dict[str, float]] = []
        """Each with its ``step``."""
        self.num_steps = 0
        """Number of trained steps."""
        self.expired_rows = 0
        """Rows that were removed because they had expired, by all workers; counted by the chief at the end."""
        self.ended_by: Literal["data", "stop"] | None = None
        """``data``: the input ended; ``stop``: the last step was reached, or a stop was requested; None: the run has
        not ended, or an error ended it."""

    @property
    def names(self) -> list[str]:
        """Returns the names of the measurements, in the order of their first appearance."""
        return list(dict.fromkeys(name for record in self.records for name in record))

    def __getitem__(self, name: str) -> list[float]:
        if name not in self.names:
            close = difflib.get_close_matches(name, self.names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(self.names) or 'nothing yet'}"
            raise KeyError(f"history has no {name!r}; {hint}")
        return [record.get(name, math.nan) for record in self.records]

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        if not self.records:
            return "History(no records)"
        last = self.records[-1]
        shown = [f"{name} {value:.4g}" for name, value in last.items() if name != "step" and "/" not in name]
        return f"History({len(self)} records up to step {last['step']:.0f}: {', '.join(shown)})"

    # A writer of records, as `RecordHook` takes it

    def open(self) -> None:
        """Does nothing."""

    def write(self, step: int, record: Mapping[str, float]) -> None:
        """Appends a record."""
        self.records.append({"step": float(step), **record})

    def close(self) -> None:
        """Does nothing: the history stays readable."""
