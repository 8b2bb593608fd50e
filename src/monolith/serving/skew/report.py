"""Report of a replay: number of differing scores by version, and the largest differences."""

from __future__ import annotations

import heapq
import math
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Difference", "SkewReport", "VersionSkew"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An example with a differing answer."""

    request_id: str
    example: int
    """Index in the request."""
    version: int
    output: str
    logged: float
    """Score of the server."""
    replayed: float
    """Score of the replay."""
    features: dict[str, Any]
    """Values of the request by column."""

    @property
    def size(self) -> float:
        """Absolute difference; infinite if one of them is NaN."""
        size = abs(self.logged - self.replayed)
        return math.inf if math.isnan(size) else size


@dataclass(slots=True, kw_only=True)
class VersionSkew:
    """Counts of the examples of one version."""

    version: int
    step: int
    """Step of the run at which it was exported."""
    requests: int = 0
    examples: int = 0
    """Number of compared examples."""
    equal: int = 0
    """Examples that are bitwise equal."""
    close: int = 0
    """Examples that are not equal, but within the tolerance."""
    differing: int = 0
    """Examples beyond the tolerance."""
    largest: float = 0.0
    """Largest difference."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the counts as plain values."""
        return asdict(self) | {"largest": _plain(self.largest)}


@dataclass(slots=True, kw_only=True)
class SkewReport:
    """The result of a replay."""

    tolerance: float
    versions: dict[int, VersionSkew] = field(default_factory=dict)
    not_compared: dict[str, int] = field(default_factory=dict)
    """Reason why examples were not compared -> their number."""
    differences: list[Difference] = field(default_factory=list)
    """Largest differences, in decreasing order."""

    @property
    def examples(self) -> int:
        """Number of compared examples."""
        return sum(each.examples for each in self.versions.values())

    @property
    def differing(self) -> int:
        """Number of examples beyond the tolerance."""
        return sum(each.differing for each in self.versions.values())

    @property
    def skew(self) -> float:
        """Fraction of compared examples that differ; 0 if none was compared."""
        return self.differing / self.examples if self.examples else 0.0

    def keep(self, difference: Difference, most: int) -> None:
        """Keeps a difference if it is one of the `most` largest."""
        self.differences = heapq.nlargest(most, [*self.differences, difference], key=lambda each: each.size)

    def leave_out(self, reason: str, examples: int) -> None:
        """Counts examples that were not compared."""
        self.not_compared[reason] = self.not_compared.get(reason, 0) + examples

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, serializable as JSON."""
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
    """Converts NaN and infinity, which JSON does not have, to None."""
    return number if math.isfinite(number) else None
