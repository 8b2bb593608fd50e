"""How the ranks of a synchronous run train together."""

from __future__ import annotations

from monolith.config import Config, config, require_positive

__all__ = ["SyncConfig"]


@config
class SyncConfig(Config):
    """Every rank has a batch of its own for each step; rows are shared out among the ranks, dense weights are copies.

    All of it is the same on every rank.
    """

    combine: str = "sum"
    """What becomes of the gradients of a row that several ranks have met: ``sum``, or ``mean`` over the ranks that had
    a batch, as dense gradients always are."""
    timeout_seconds: float = 1800.0
    """How long ranks may keep each other waiting, in any call."""

    def __post_init__(self) -> None:
        require_positive(self, "timeout_seconds")
        if self.combine not in {"sum", "mean"}:
            raise ValueError(f"SyncConfig: combine must be 'sum' or 'mean', got {self.combine!r}")
