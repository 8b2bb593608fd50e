"""Empty steps of many workers, all of which server 0 counts: its capacity apart from rows."""

from __future__ import annotations

import statistics
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import torch

from benchmarks.suites.ps.servers import running_servers
from benchmarks.suites.table_steps import configs
from monolith.cli._bench.measurement import Measurement, spread
from monolith.cli._bench.timing import TimedStep, take_turns
from monolith.ps import PsCluster, PsStore
from monolith.tables.batch import BatchStamp, Update

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting
    from monolith.ps.client.joined import PsWorkerSession
    from monolith.tables.batch import Applied, Pending

WORKERS = 100
LEAST_STEPS_PER_SECOND = 5_000.0
NO_IDS, NO_GRADIENT, RATES = torch.empty(0, dtype=torch.int64), torch.empty(0), torch.ones(1)
SPLITS = torch.tensor([0, 0])


def measure(setting: Setting) -> list[Measurement]:
    """Measures workers that have a connection each and wait for their push before they make the next one."""
    with ExitStack() as running:
        servers = running.enter_context(running_servers(1, threads=setting.threads))
        cluster = running.enter_context(PsCluster(servers.addresses))
        stores = [running.enter_context(closing(PsStore(configs(), servers=cluster))) for _ in range(WORKERS)]
        workers = _EmptySteps([store.join(number) for number, store in enumerate(stores)])
        rates = take_turns(
            {"workers": TimedStep(workers.step, [None])}, rounds=setting.rounds, seconds=setting.seconds
        )["workers"]
        workers.require_counted(stores[0].steps_of_others)
    steps = [WORKERS * rate for rate in rates]
    return [
        Measurement(
            row="job_home",
            measure=f"empty steps of {WORKERS} simulated workers at the home server",
            figure=statistics.median(steps),
            unit="steps/s",
            limit=LEAST_STEPS_PER_SECOND,
            note=f"{spread(steps)}; one process simulates them, and its own work is in the figure",
        )
    ]


class _EmptySteps:
    """Workers whose batches have no ids: their pushes only move the clocks."""

    def __init__(self, joined: list[PsWorkerSession]) -> None:
        self._joined = joined
        self._next = 0

    def step(self, _: None) -> None:
        """One of each worker."""
        for push in [self._begin(joined) for joined in self._joined]:
            push.result()
        self._next += 1

    def require_counted(self, others: int) -> None:
        """Checks that every step was counted once, by the last count of worker 0: others may have stepped since."""
        least, most = ((self._next - behind) * (len(self._joined) - 1) for behind in (1, 0))
        if not least <= others <= most:
            raise AssertionError(f"the server counted {others} steps of the others, expected {least} to {most}")

    def _begin(self, joined: PsWorkerSession) -> Pending[Applied]:
        plan = joined.plan(NO_IDS, SPLITS, stamp=BatchStamp(worker=joined.worker, seq=self._next))
        rule = Update(step=self._next, learning_rates=RATES, times=0, previous=self._next - 1)
        return joined.apply([(plan, NO_GRADIENT)], rule)
