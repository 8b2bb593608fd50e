"""Counts the examples of a stream by their outcome."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["StreamCounts"]


@dataclass(slots=True)
class StreamCounts:
    """Counts during the lifetime of a process."""

    examples: int = 0
    """Examples returned for training."""
    repeated: int = 0
    """Skipped, since their numbers were already seen, for example after the stream was rewound."""
    missing: int = 0
    """Numbers that never arrived, if the stream is configured to count them."""
    too_old: int = 0
    """Skipped, since they could be known for longer than `max_lag_seconds`."""
    ahead: int = 0
    """Trained, but with a time in the future, which was replaced by that of the clock."""
    bad: int = 0
    """Skipped messages without a number."""

    def to_dict(self) -> dict[str, int]:
        """Returns the counts as plain numbers."""
        return asdict(self)
