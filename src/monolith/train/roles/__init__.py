"""What one process of a job runs: worker, parameter server or rank, and the runners that choose the role."""

from __future__ import annotations

__all__: list[str] = []
