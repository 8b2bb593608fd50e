"""The hook by which a run publishes what it trains, if enabled by its config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.deltalog import DeltaLog
from monolith.files import join
from monolith.hooks.publish import DeltaPublishHook

if TYPE_CHECKING:
    from monolith.hook import Hook
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.rank_part import RankPart

__all__ = ["DELTA_LOG", "publishing_hooks", "require_publishing"]

DELTA_LOG = "delta_log"
"""The folder of the log in the model directory."""


def require_publishing(config: TrainerConfig, caller: str) -> None:
    """Refuses a run that pushes without publishing, as pushes are read from its log.

    Raises:
        ValueError: the run does not publish.
    """
    if config.publishing is None:
        raise ValueError(
            f"{caller}: a sync_backend pushes what the run publishes, and it publishes nothing; turn publishing on"
        )


def publishing_hooks(config: TrainerConfig, ranks: RankPart | None) -> list[Hook]:
    """Returns the hooks of the chief, which makes servers publish their rows, or of a rank that has rows itself."""
    wanted = config.publishing
    is_first = config.worker_index == 0 if ranks is None else ranks.is_first
    if wanted is None or not (is_first or (ranks is not None and ranks.shares_rows)):
        return []
    place = wanted.log if wanted.log is not None else join(config.model_dir or "", DELTA_LOG)
    log = DeltaLog(place, base_folder=wanted.base_folder)
    return [
        DeltaPublishHook(log, publish_dense=is_first, interval=wanted.interval, dense_interval=wanted.dense_interval)
    ]
