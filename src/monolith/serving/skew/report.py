"""What a replay has found: how many scores differ, by version, and where they do the most."""

from __future__ import annotations

import heapq
import math
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Difference", "SkewReport", "VersionSkew"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An example that was answered differently."""

    request_id: str
    example: int
    """Its number in the request."""
    version: int
    output: str
    logged: float
    """What the server answered."""
    replayed: float
    """What the model answers."""
    features: dict[str, Any]
    """What was asked: values by column."""

    @property
    def size(self) -> float:
        """How far they are apart; infinite where one of them is no number."""
        size = abs(self.logged - self.replayed)
        return math.inf if math.isnan(size) else size


@dataclass(slots=True, kw_only=True)
class VersionSkew:
    """The examples of one version."""

    version: int
    step: int
    """Of the run, at which it was exported."""
    requests: int = 0
    examples: int = 0
    """That were compared."""
    equal: int = 0
    """Bit for bit."""
    close: int = 0
    """Not equal, and within the tolerance."""
    differing: int = 0
    """Beyond it."""
    largest: float = 0.0
    """Difference."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"largest": _plain(self.largest)}


@dataclass(slots=True, kw_only=True)
class SkewReport:
    """The outcome of a replay."""

    tolerance: float
    versions: dict[int, VersionSkew] = field(default_factory=dict)
    not_compared: dict[str, int] = field(default_factory=dict)
    """Why examples were not compared -> how many."""
    differences: list[Difference] = field(default_factory=list)
    """The largest ones, largest first."""

    @property
    def examples(self) -> int:
        """That were compared."""
        return sum(each.examples for each in self.versions.values())

    @property
    def differing(self) -> int:
        """Of those, beyond the tolerance."""
        return sum(each.differing for each in self.versions.values())

    @property
    def skew(self) -> float:
        """The share of compared examples that differ; 0 where none was compared."""
        return self.differing / self.examples if self.examples else 0.0

    def keep(self, difference: Difference, most: int) -> None:
        """Takes a difference in if it is one of the largest."""
        self.differences = heapq.nlargest(most, [*self.differences, difference], key=lambda each: each.size)

    def leave_out(self, reason: str, examples: int) -> None:
        """Counts examples that were not compared."""
        self.not_compared[reason] = self.not_compared.get(reason, 0) + examples

    def to_dict(self) -> dict[str, Any]:
        """As plain values, which JSON takes."""
        return {
            "examples": self.examples,
            "differing": self.differing,
            "skew": self.skew,
            "tolerance": self.tolerance,
            "versions": [each.to_dict() for _, each in sorted(self.versions.items())],
            "not_compared": self.not_compared,
            "differences": [
                {
                    "request_id": each.request_id,
                    "example": each.example,
                    "version": each.version,
                    "output": each.output,
                    "logged": _plain(each.logged),
                    "replayed": _plain(each.replayed),
                    "features": each.features,
                }
                for each in self.differences
            ],
        }

    def __str__(self) -> str:
        lines = [
            f"version {each.version}, step {each.step}: {each.examples:,} examples of {each.requests:,} requests: "
            f"{each.equal:,} equal, {each.close:,} within {self.tolerance:g}, {each.differing:,} differ"
            + (f" (largest {each.largest:.4g})" if each.close + each.differing else "")
            for _, each in sorted(self.versions.items())
        ]
        lines += [f"not compared: {count:,} examples: {reason}" for reason, count in self.not_compared.items()]
        if self.differences:
            lines.append("largest differences:")
        for each in self.differences:
            asked = ", ".join(f"{name} {values}" for name, values in each.features.items())
            lines.append(
                f"  request {each.request_id}, example {each.example}: {each.output} {each.logged:.6g} logged,"
                f" {each.replayed:.6g} replayed; {asked}"
            )
        return "\n".join(lines) or "the log has no requests"


def _plain(number: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return number if math.isfinite(number) else None
