"""What a row measures, how it is judged, and what a row prints and raises while it runs."""

from __future__ import annotations

import dataclasses
import enum
import statistics
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class RowSkippedError(Exception):
    """A requirement of a row is missing; the message names it, and how to install it."""


class Sense(enum.StrEnum):
    """Which side of the limit is the good one."""

    AT_LEAST = ">="
    AT_MOST = "<="


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """A measurement of ours and of the peer in the same run, and the limit to reach.

    The ratio is judged when there is one, else the figure. A measurement without a limit is information.
    """

    row: str
    measure: str
    figure: float | None = None
    unit: str = ""
    peer: str = ""
    peer_figure: float | None = None
    ratio: float | None = None
    limit: float | None = None
    sense: Sense = Sense.AT_LEAST
    note: str = ""

    @property
    def judged(self) -> float | None:
        """The number that is compared with the limit."""
        return self.figure if self.ratio is None and not self.peer else self.ratio

    @property
    def ok(self) -> bool | None:
        """Whether the limit is reached; None when nothing was measured or nothing is required."""
        if self.limit is None or self.judged is None:
            return None
        return self.judged >= self.limit if self.sense is Sense.AT_LEAST else self.judged <= self.limit

    @property
    def requirement(self) -> str:
        """The limit in words, with the unit where the figure itself is judged."""
        if self.limit is None:
            return ""
        unit = f" {self.unit}" if not self.peer else " x"
        return f"{self.sense} {self.limit:.4g}{unit}".rstrip()

    def to_json(self) -> dict[str, Any]:
        """Returns every field and the verdict as JSON values."""
        return {**dataclasses.asdict(self), "requirement": self.requirement, "ok": self.ok}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Measurement:
        """Returns the measurement that `to_json` described."""
        names = {field.name for field in dataclasses.fields(cls)}
        kept = {name: value for name, value in fields.items() if name in names}
        return cls(**{**kept, "sense": Sense(kept["sense"])})


def median_ratio(ours: Sequence[float], peers: Sequence[float]) -> float:
    """Returns the median over rounds of ours / peer: both sides of a quotient are close in time, so drift cancels."""
    return statistics.median(ours_figure / peer for ours_figure, peer in zip(ours, peers, strict=True))


def spread(values: Sequence[float]) -> str:
    """Returns the range of some repeats, for a note."""
    return f"{min(values):.4g}..{max(values):.4g}"


def tell(text: str) -> None:
    """Prints one progress line to standard error: a row takes minutes and must not look like a hang."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
