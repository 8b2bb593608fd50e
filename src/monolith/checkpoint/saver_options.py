"""Options of a saver."""

from __future__ import annotations

from dataclasses import field

from monolith.checkpoint.restore.options import RestoreConfig
from monolith.clock import Clock, SystemClock
from monolith.config import Config, config

__all__ = ["BACKGROUND_BYTES_PER_SECOND", "CheckpointConfig", "SaverConfig"]

BACKGROUND_BYTES_PER_SECOND = 108e6
"""A rate that hardly slows training."""


@config
class CheckpointConfig(Config):
    """How checkpoints are written and which ones are kept: common options of a saver and of a trainer's config."""

    max_to_keep: int | None = 10
    """Number of newest checkpoints to keep, exempt ones not counted; None: all."""
    keep_every_hours: float | None = None
    """Every this many hours one checkpoint that would be deleted is kept for good; None: none is."""
    background: bool = False
    """Write in a thread while training continues."""


@config
class SaverConfig(CheckpointConfig):
    """Keyword arguments of `Saver`."""

    basename: str = "model.ckpt"
    """First part of all prefixes."""
    dense_only: bool = False
    """Omit the tables."""
    pad_step_number: bool = False
    """Eight digits: ``model.ckpt-00000060``."""
    skip_save: bool = False
    """Makes `save` do nothing, for runs that must not write."""
    write_meta: bool = True
    """Write `<prefix>.meta`, a description of the model."""
    write_info: bool = True
    """Write `ckpt.info-<step>`, the rows of each slot."""
    rate_bytes_per_second: float | None = BACKGROUND_BYTES_PER_SECOND
    """Highest rate of writing in the background; None: as fast as the disk takes it. A blocking save has no limit."""
    restoring: RestoreConfig = RestoreConfig()
    """What may differ between the run that was saved and the one that is restored."""
    clock: Clock = field(default_factory=SystemClock)
    """Source of the current time."""
