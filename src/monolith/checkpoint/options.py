"""Options of saving a run, and of restoring a checkpoint into a run that differs from the one that was saved."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

from monolith.clock import Clock, SystemClock
from monolith.config import Config, config
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.checkpoint.restore.partial_recovery import PsMonitor
    from monolith.checkpoint.save_protocol import SaveProtocol

AliasRule: TypeAlias = tuple[str, str]
"""A regular expression and its replacement, as `re.sub` takes them."""


@config
class RestoreConfig(Config):
    """What may differ between the run that was saved and the one that is restored."""

    alias_map: Mapping[str, str] | None = None
    """Name of a weight now -> its name in the checkpoint; several names of parts share one and split it by rows."""
    auto_alias: bool = True
    """Find the old names of weights that the checkpoint does not have, by the rules of `aliases`."""
    alias_rules: Sequence[AliasRule] = ()
    """More rules for that, tried after the built-in ones."""
    reshape: bool = False
    """Take a weight of another shape that has as many elements."""
    leave_out: Sequence[str] = ()
    """Weights that start from their initial values, with their optimizer state, and slots that start with no rows:
    names, or patterns such as ``tower.*`` and ``emb.user``. Those that only the checkpoint has are skipped. A run
    applies it once: checkpoints that it writes afterwards are restored in full, with the same option."""
    ignore_unknown_tables: bool = False
    """Skip tables that only the checkpoint has, such as those of a removed slot, or of a slot whose dim has changed."""
    clear_nn: bool = False
    """Reset the dense part, once: later starts of this directory restore it as usual."""
    continue_training: bool = False
    """With `clear_nn`: continue from the step of the checkpoint instead of step 0."""

    def __post_init__(self) -> None:
        if self.clear_nn and self.alias_map:
            raise InvalidArgumentError(
                "restore: clear_nn resets all dense weights, so an alias map for them has no effect; give one of them"
            )
        if isinstance(self.leave_out, str):
            raise InvalidArgumentError(f"restore: leave_out takes a list of names, got the text {self.leave_out!r}")
        if self.clear_nn and self.leave_out:
            raise InvalidArgumentError(
                "restore: clear_nn resets all weights, so leave_out has no effect; give one of them"
            )
        if self.continue_training and not self.clear_nn:
            raise InvalidArgumentError(
                "restore: continue_training selects what clear_nn does to the step; it needs clear_nn"
            )


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
    ps_monitor: PsMonitor | None = None
    """Reports which devices have no state: only those are restored. None: everything is."""
    protocol: SaveProtocol | None = None
    """How the processes of a run save together; None: this process saves alone."""
    clock: Clock = field(default_factory=SystemClock)
    """Source of the current time."""
