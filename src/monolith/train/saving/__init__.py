"""Checkpoints of a run: savers of ranks and jobs, and the state from which a run resumes."""

from __future__ import annotations

__all__: list[str] = []
