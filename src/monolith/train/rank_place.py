"""The rank of this process, by its launcher and by its options, which must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith import collective
from monolith.train.compat.refusal import require_one_process

if TYPE_CHECKING:
    from monolith.train.compat.options import CpuTrainingConfig

__all__ = ["take_place", "take_rank"]

_PLACE = ("index", "num_workers")
"""Options of a job that ranks have, too."""


def take_place(config: CpuTrainingConfig) -> None:
    """Sets rank and number of ranks in the options, unless they are set already.

    Also applies the option ``sync_timeout_secs`` to calls between ranks.

    Raises:
        ValueError: the options contradict the launcher, or set servers.
    """
    if not config.is_set("enable_sync_training"):
        config.enable_sync_training = True
    if not config.enable_sync_training:
        raise ValueError("synchronous training: enable_sync_training must be True, got False; leave it out")
    own_folders = () if config.merge_sync_training_ckpt else ("uuid",)  # which it names
    require_one_process(config, but=(*_PLACE, *own_folders))
    if config.num_ps:
        raise ValueError(
            f"synchronous training: num_ps must be 0, as ranks keep the rows, got {config.num_ps}; for servers use"
            " distributed_train"
        )
    take_rank(config)


def take_rank(config: CpuTrainingConfig, *, scheduled: int | None = None) -> None:
    """Sets rank and number of ranks of a job with servers.

    Args:
        config: Options of the rank.
        scheduled: The index assigned by a scheduler, which counts as set; None: no scheduler.

    Raises:
        ValueError: the options contradict the launcher.
    """
    if not config.sync_timeout_secs > 0:
        raise ValueError(f"option sync_timeout_secs must be > 0 seconds, got {config.sync_timeout_secs}")
    collective.init(timeout_seconds=config.sync_timeout_secs)
    for name, own in (("index", collective.rank()), ("num_workers", collective.size())):
        is_scheduled = name == "index" and scheduled is not None
        said = scheduled if is_scheduled else getattr(config, name)
        if (is_scheduled or config.is_set(name)) and said != own:
            word = "rank" if name == "index" else "number of ranks"
            raise ValueError(
                f"synchronous training: {name} must be the {word} that the launcher gave, {own}, got {said}; leave"
                " it out"
            )
        if getattr(config, name) != own:
            setattr(config, name, own)
