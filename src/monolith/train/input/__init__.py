"""Input of a run: the share of each worker or rank, and the batches that a session is fed."""

from __future__ import annotations

__all__: list[str] = []
