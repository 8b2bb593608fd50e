"""Queues that hand out input files to workers, and what each worker has read."""

from __future__ import annotations

__all__: list[str] = []
