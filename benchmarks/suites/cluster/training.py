"""Steps of a complete job of one worker and one server, against the bare loop of a session on a server."""

from __future__ import annotations

import itertools
import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.suites.cluster.jobs import running_job
from benchmarks.suites.processes import on_cores
from benchmarks.suites.ps.servers import running_servers
from benchmarks.suites.ps.training import CORES, PIPELINE, DeepFm, training_batches
from monolith.cli._bench import machine, ours
from monolith.cli._bench.measurement import Measurement, median_ratio, spread
from monolith.cli._bench.timing import TimedStep, quiet_collector
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.ps import PsCluster, PsStore
from monolith.train import Session, SingleProcess

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

LIMIT = 0.95


def measure(setting: Setting) -> list[Measurement]:
    """Measures alternately, on the same two cores; the idle contestant is paused."""
    ours.use_threads(CORES)
    bare, whole = list[float](), list[float]()
    with ExitStack() as running:
        running.enter_context(on_cores(CORES))
        folder = running.enter_context(machine.scratch_folder(setting.directory, needed_bytes=100_000_000))
        job = running.enter_context(
            running_job(setting, folder / "job", num_ps=1, num_workers=1, intra_op_parallelism_threads=CORES)
        )
        job.wait_for_steps(2 * setting.num_batches)  # every id has its row
        job.pause()
        loop = _bare_loop(setting, running)
        with quiet_collector():
            for _ in range(setting.rounds):
                bare.append(loop.turn(setting.seconds))
                whole.append(job.turn(setting.seconds))
    return [
        Measurement(
            row="job_training",
            measure=f"training steps of a DeepFM by a job of a worker and a server on {CORES} cores",
            figure=statistics.median(whole),
            unit="steps/s",
            peer="a bare session on a server",
            peer_figure=statistics.median(bare),
            ratio=median_ratio(whole, bare),
            limit=LIMIT,
            note=f"job {spread(whole)}, bare {spread(bare)}; rows and dense weights are on the server for both",
        )
    ]


def _bare_loop(setting: Setting, running: ExitStack) -> TimedStep[None]:
    servers = running.enter_context(running_servers(1, threads=CORES))
    cluster = running.enter_context(PsCluster(servers.addresses))
    task = DeepFm()
    task.slots = [f"slot_{number}" for number in range(setting.features)]
    batches = training_batches(setting, task.slots)
    with use_table_defaults(TableDefaults(store=lambda configs: PsStore(configs, servers=cluster))):
        session = running.enter_context(Session(task, pipeline=PIPELINE, strategy=SingleProcess(cluster)))
    feed = running.enter_context(session.feed(itertools.cycle(batches)))
    for _ in range(2 * len(batches)):
        session.run_next(feed)
    return TimedStep(lambda _: session.run_next(feed), [None])
