"""A session that trains a small tower, as one rank of several, or alone with the batches of all of them."""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.suites.sync.task import SyncTower, batches_of, slot_names
from monolith import collective
from monolith.train import CpuTrainingConfig, Ranks, Session, SingleProcess, TrainerConfig
from monolith.train.compat.derive_config import trainer_config_of
from monolith.train.config.job_config import SyncConfig

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
    strategy, rank = _joined() if is_rank else (SingleProcess(), 0)
    task = SyncTower()
    task.slots = slot_names(setting)
    batches = batches_of(setting, [rank] if is_rank else range(num_shares))
    pipeline = dataclasses.replace(config.pipeline, wait_for_batches=True)
    with (
        Session(task, pipeline=pipeline, strategy=strategy, worker_index=rank) as session,
        session.feed(itertools.cycle(batches)) as feed,
    ):
        for _ in batches:
            session.run_next(feed)
        yield {"step": lambda _: session.run_next(feed)}


def _joined() -> tuple[Ranks, int]:
    """Returns the ranks of the launcher's run, and the rank of this process."""
    sync, ranks = SyncConfig(), Ranks()
    collective.init(timeout_seconds=sync.timeout_seconds)
    rank = collective.rank()
    ranks.join(TrainerConfig(sync=sync, worker_index=rank, num_workers=collective.size()))
    return ranks, rank
