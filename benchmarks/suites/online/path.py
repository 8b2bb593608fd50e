"""From a training step to the rows of a follower in another process, and the cost of publishing for training."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.suites import table_steps
from benchmarks.suites.online.followed_tables import TABLE, table_config, thread_ms
from benchmarks.suites.online.follower_process import follower_process
from monolith.cli._bench import ours, workload
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread
from monolith.cli._bench.timing import percentile, quiet_collector
from monolith.deltalog.publish import Trained
from monolith.online import DeltaPublisher, Follower
from monolith.tables import LocalStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.suites.online.follower_process import Arrival
    from monolith.cli._bench.setting import Setting
    from monolith.cli._bench.workload import WorkloadBatch

EVENTS_PER_SECOND = 5_000
EVENTS_PER_STEP = 250
INTERVAL = 0.1
TURNS = 4
"""Turns of training, in `seconds` of the setting, of each span that is measured."""
LIMIT_MS, LIMIT_SHARE, LEAST_BESIDE, LEAST_CATCH_UP = 200.0, 6.0, 0.95, 20.0
_THREAD = "monolith-delta-publisher"


class Steps(NamedTuple):
    """Some steps of training at the pace of the events."""

    begun: list[float]
    """When each began, on `time.monotonic`."""
    processor_seconds: float
    """Of the thread that trains, for one step."""
    seconds: float
    """Of the clock, for one step."""


class PacedTraining:
    """Table steps, as many in a second as there are events. One thread owns it."""

    def __init__(self, store: LocalStore, batches: Sequence[WorkloadBatch], setting: Setting) -> None:
        self._steps = table_steps.TableSteps(store, 0, table_steps.gradient_of(setting))
        self._batches = batches
        self.num_steps = 0

    def train(self, seconds: float, publisher: DeltaPublisher | None = None) -> Steps:
        """Trains for `seconds`; notifies the publisher of trained steps."""
        begun, processor, wall = list[float](), 0.0, 0.0
        first = time.monotonic()
        while not begun or time.monotonic() < first + seconds:
            time.sleep(max(0.0, first + len(begun) * EVENTS_PER_STEP / EVENTS_PER_SECOND - time.monotonic()))
            begun.append(time.monotonic())
            own = time.thread_time()
            self._steps.train(self._batches[self.num_steps % len(self._batches)])
            processor += time.thread_time() - own
            wall += time.monotonic() - begun[-1]
            self.num_steps += 1
            if publisher is not None:
                now_ms = int(1000 * time.time())
                publisher.tally.add(Trained(EVENTS_PER_STEP, now_ms, now_ms, self.num_steps))
        return Steps(begun, processor / len(begun), wall / len(begun))


def measure(setting: Setting) -> list[Measurement]:
    """Measures latency and CPU share of the publisher, training with and without it, and catching up."""
    ours.use_threads(1)
    small = replace(setting, examples=EVENTS_PER_STEP)
    store = LocalStore({TABLE: table_config(serving=False)})
    table_steps.fill(store, setting.small_rows)
    training = PacedTraining(store, workload.zipf_batches(small, setting.small_rows), small)
    training.train(setting.seconds)
    with tempfile.TemporaryDirectory(dir=setting.directory) as folder, quiet_collector():
        beside = _measure_beside(setting, store, training, f"{folder}/beside")
        *path, catching_up = _measure_path(setting, store, training, f"{folder}/log")
        return [*path, beside, catching_up]


def _measure_path(setting: Setting, store: LocalStore, training: PacedTraining, log: str) -> list[Measurement]:
    publisher = DeltaPublisher(store, log, interval=INTERVAL)
    publisher.publish()  # all rows there are
    late = Follower(LocalStore({TABLE: table_config(serving=True)}), log)
    late.catch_up()
    first, seconds = training.num_steps, TURNS * setting.rounds * setting.seconds
    with follower_process(log) as arrivals, publisher:
        steps = training.train(seconds, publisher)
        share = 100 * _publisher_seconds() / (time.monotonic() - steps.begun[0])
    delays = _delays(steps, first, arrivals)
    own_ms, _ = thread_ms(late.catch_up)
    late.close()
    name = f"{EVENTS_PER_SECOND:,} events/s of {setting.features} ids, an increment every {1e3 * INTERVAL:.0f} ms"
    return [
        Measurement(
            row="online_path",
            measure=f"a step to a follower in another process, {name}: p99",
            figure=percentile(delays, 99),
            unit="ms",
            limit=LIMIT_MS,
            sense=Sense.AT_MOST,
            note=f"p50 {percentile(delays, 50):.0f} ms; {len(steps.begun)} steps of {EVENTS_PER_STEP} events,"
            f" {setting.small_rows:,} rows, each increment on disk",
        ),
        Measurement(
            row="online_path",
            measure="the publisher there: share of a core",
            figure=share,
            unit="%",
            limit=LIMIT_SHARE,
            sense=Sense.AT_MOST,
            note="processor time of its thread",
        ),
        Measurement(
            row="online_path",
            measure="a follower that catches up, against the time in which it was written",
            figure=1e3 * seconds / own_ms,
            unit="x",
            limit=LEAST_CATCH_UP,
            note=f"{seconds:.3g} s of log in {own_ms:.0f} ms of processor time",
        ),
    ]


def _measure_beside(setting: Setting, store: LocalStore, training: PacedTraining, log: str) -> Measurement:
    """Measures alternating spans with and without a publisher; without one changes of rows are not tracked."""
    alone, beside = list[Steps](), list[Steps]()
    for number in range(setting.rounds):
        alone.append(training.train(TURNS * setting.seconds / 2))
        with DeltaPublisher(store, f"{log}-{number}", interval=INTERVAL) as publisher:
            publisher.publish()  # all rows there are
            beside.append(training.train(TURNS * setting.seconds / 2, publisher))
    own = [1e3 * each.processor_seconds for each in beside]
    without = [1e3 * each.processor_seconds for each in alone]
    wall = median_ratio([each.seconds for each in alone], [each.seconds for each in beside])
    return Measurement(
        row="online_path",
        measure="a training step while the publisher runs there",
        figure=statistics.median(own),
        unit="ms of processor time",
        peer="without it",
        peer_figure=statistics.median(without),
        ratio=median_ratio(without, own),
        limit=LEAST_BESIDE,
        note=f"table steps alone, without a model; {spread(own)}; by the clock {wall:.3f} x",
    )


def _publisher_seconds() -> float:
    """Processor time of the thread that publishes, since it began."""
    (thread,) = (each for each in threading.enumerate() if each.name == _THREAD)
    assert thread.ident is not None  # noqa: S101 - it runs
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def _delays(steps: Steps, first: int, arrivals: Sequence[Arrival]) -> list[float]:
    """Returns the milliseconds from the start of each step until the follower had it."""
    at, delays = 0, list[float]()
    for number, begun in enumerate(steps.begun, first + 1):
        while at < len(arrivals) and arrivals[at].step < number:
            at += 1
        if at == len(arrivals):
            raise RuntimeError(f"step {number} did not come to the follower; it has {len(arrivals)} increments")
        delays.append(1e3 * (arrivals[at].moment - begun))
    return delays
