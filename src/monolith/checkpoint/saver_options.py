"""What a saver can be told."""

from __future__ import annotations

from dataclasses import field

from monolith.checkpoint.restore_options import RestoreOptions
from monolith.clock import Clock, SystemClock
from monolith.config import Config, config

__all__ = ["BACKGROUND_BYTES_PER_SECOND", "CheckpointOptions", "SaverOptions"]

BACKGROUND_BYTES_PER_SECOND = 108e6
"""A rate beside which training is hardly slower."""


@config
class CheckpointOptions(Config):
    """How checkpoints are written and which ones stay: what a saver and the config of a trainer both say."""

    max_to_keep: int | None = 10
    """Newest ones that stay, exempt ones not counted; None: all do."""
    keep_every_hours: float | None = None
    """Of those that would be deleted, one stays for good each time so many hours have passed; None: none does."""
    background: bool = False
    """Write while training goes on, in a thread."""


@config
class SaverOptions(CheckpointOptions):
    """Keyword arguments of `Saver`."""

    basename: str = "model.ckpt"
    """What prefixes begin with."""
    dense_only: bool = False
    """Leave the tables out."""
    pad_step_number: bool = False
    """Eight digits: ``model.ckpt-00000060``."""
    skip_save: bool = False
    """`save` does nothing, for runs that must not write."""
    write_meta: bool = True
    """Write `<prefix>.meta`, a description of the model."""
    write_info: bool = True
    """Write `ckpt.info-<step>`, the rows of each slot."""
    rate_bytes_per_second: float | None = BACKGROUND_BYTES_PER_SECOND
    """Highest rate of writing in the background; None: as fast as the disk takes it. A blocking save has no limit."""
    restoring: RestoreOptions = RestoreOptions()
    """What may differ between the run that was saved and the one that is restored."""
    clock: Clock = field(default_factory=SystemClock)
    """Where now comes from."""
