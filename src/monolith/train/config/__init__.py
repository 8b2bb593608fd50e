"""Settings of a training run: `TrainerConfig` and the settings of jobs, synchronous training and input."""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
