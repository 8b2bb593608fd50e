"""What became of the examples of a stream: every one is counted under what happened to it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["StreamCounts"]


@dataclass(slots=True)
class StreamCounts:
    """In the life of a process."""

    examples: int = 0
    """Handed out to be trained."""
    repeated: int = 0
    """Left out: their numbers came before; a stream that was rewound brings them again."""
    missing: int = 0
    """Numbers that never came, where the stream was told to go on without them."""
    too_old: int = 0
    """Left out: they could be known longer than `max_lag_seconds`."""
    ahead: int = 0
    """Trained, but their times lie in the future, and the clock's was taken."""
    bad: int = 0
    """Left out: messages without a number."""

    def to_dict(self) -> dict[str, int]:
        """As plain numbers."""
        return asdict(self)
