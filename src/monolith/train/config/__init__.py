"""Settings of a training run: `TrainerConfig` and the settings of jobs, synchronous training and input."""

from __future__ import annotations

__all__: list[str] = []
