"""A session that trains a small tower, as one rank of several, or alone with the batches of all of them."""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.suites.sync.task import SyncTower, batches_of, slot_names
from monolith.train import CpuTrainingConfig, Session
from monolith.train.compat.derive_config import trainer_config_of
from monolith.train.config.job_config import SyncConfig
from monolith.train.rank_part import RankPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.cli._bench.setting import Setting

_AHEAD = {"embedding_prefetch_capacity": 1, "enable_embedding_postpush": True}
_OF_RANKS = {"enable_pipelined_fwda2a": True, "enable_async_optimize": True, "enable_pipelined_bwda2a": True}


@contextmanager
def opened(setting: Setting, *, pipelined: bool, num_shares: int) -> Iterator[dict[str, Callable[[int], object]]]:
    """Yields the steps, with every id of its batches inserted.

    Args:
        setting: Sizes.
        pipelined: Whether all pipelines of a synchronous run are on; for one process those that it has.
        num_shares: Number of ranks whose batches this process trains, joined in each step; 1: it is a rank.
    """
    is_rank = num_shares == 1
    given: dict[str, Any] = {"enable_sync_training": is_rank}
    if pipelined:
        given |= {**_AHEAD, **(_OF_RANKS if is_rank else {})}
    config = trainer_config_of(CpuTrainingConfig(**given))
    part = RankPart.join(SyncConfig()) if is_rank else None
    task = SyncTower()
    task.slots = slot_names(setting)
    batches = batches_of(setting, range(num_shares) if part is None else [part.rank])
    pipeline = dataclasses.replace(config.pipeline, wait_for_batches=True)
    with (
        Session(task, pipeline=pipeline, ranks=part, worker_index=0 if part is None else part.rank) as session,
        session.feed(itertools.cycle(batches)) as feed,
    ):
        for _ in batches:
            session.run_next(feed)
        yield {"step": lambda _: session.run_next(feed)}
