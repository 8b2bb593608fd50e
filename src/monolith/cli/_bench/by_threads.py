"""The rows `steps` and `threads`: the steps of a batch apart, and what more threads give."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from monolith.cli._bench import ours, workload
from monolith.cli._bench.measurement import Measurement, RowSkippedError, Sense, median_ratio, spread, tell
from monolith.cli._bench.timing import WARM_UP_STEPS, TimedStep, quiet_collector, take_turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.cli._bench.setting import Setting
    from monolith.cli._bench.workload import WorkloadBatch
    from monolith.tables import HashTable

STEPS: Final = ("plan", "read", "apply", "lookup")
"""A training step makes the first three; the last one is a complete lookup without a plan."""

PLAN_LIMIT: Final = 0.45
"""What a plan may take of the time that its rows take to be read and trained."""

THREAD_LIMITS = {(1, 2): {"A": 1.6, "B": 1.8}, (1, 8): {"A": 6.5, "B": 6.5}, (8, 16): {"A": 1.3, "B": 1.3}}
"""By fewer and more threads, each with a core of its own; other steps are shown and not judged."""

Seconds = dict[str, list[float]]
"""Seconds of each step, one for each turn."""


def measure_steps(setting: Setting) -> list[Measurement]:
    """Workload A on the small and the large table, and plans of batches of several kinds."""
    return [
        *_steps_of_table(setting, setting.small_rows),
        *_steps_of_table(setting, setting.large_rows),
        *_plans(setting),
    ]


def _steps_of_table(setting: Setting, num_rows: int) -> list[Measurement]:
    counts = setting.thread_counts or tuple(dict.fromkeys((1, setting.threads)))
    tell(f"    {num_rows:,} rows, threads {' '.join(map(str, counts))}")
    ours.use_threads(max(counts))
    table = ours.new_table()
    ours.fill(table, num_rows)
    batches = workload.zipf_batches(setting, num_rows)
    gradient = workload.output_gradient(setting.ids_per_batch, ours.DIM)
    seconds: dict[int, Seconds] = {count: {step: [] for step in STEPS} for count in counts}
    with quiet_collector():
        for number in range(setting.rounds):
            for count in counts:
                ours.use_threads(count)
                first = number * len(batches) // setting.rounds
                turned = batches[first:] + batches[:first]
                for step, median in _turn(table, turned, gradient, seconds=setting.seconds).items():
                    seconds[count][step].append(median)
    apart = [_step(step, num_rows, count, seconds) for step in STEPS for count in counts]
    return [*apart, _plan_share(num_rows, counts[0], seconds[counts[0]])]


def _turn(table: HashTable, batches: list[WorkloadBatch], gradient: Tensor, *, seconds: float) -> dict[str, float]:
    """Returns the median seconds of each step, over about `seconds` of all of them."""
    times: Seconds = {step: [] for step in STEPS}
    until = time.perf_counter() + seconds
    taken = 0
    while taken <= WARM_UP_STEPS or time.perf_counter() < until:
        batch = batches[taken % len(batches)]
        begun = time.perf_counter()
        plan = table.plan(batch.ids)
        planned = time.perf_counter()
        table.read(plan, per="id")
        read = time.perf_counter()
        table.apply(plan, gradient, per="id", time=ours.TIME)
        applied = time.perf_counter()
        table.lookup(batch.ids)
        ends = (planned, read, applied, time.perf_counter())
        for step, start, end in zip(STEPS, (begun, *ends[:-1]), ends, strict=True):
            times[step].append(end - start)
        taken += 1
    return {step: statistics.median(durations[WARM_UP_STEPS:]) for step, durations in times.items()}


def _step(step: str, num_rows: int, count: int, seconds: dict[int, Seconds]) -> Measurement:
    first = next(iter(seconds))
    rates = [1 / duration for duration in seconds[count][step]]
    base = [1 / duration for duration in seconds[first][step]]
    compared = count != first
    return Measurement(
        row="steps",
        measure=f"{step}, A, {num_rows:,} rows, {_threads(count)}",
        figure=statistics.median(rates),
        unit="batches/s",
        peer=_threads(first) if compared else "",
        peer_figure=statistics.median(base) if compared else None,
        ratio=median_ratio(rates, base) if compared else None,
        note=f"{1e3 / statistics.median(rates):.3g} ms a batch",
    )


def _plan_share(num_rows: int, count: int, seconds: Seconds) -> Measurement:
    rest = [read + apply for read, apply in zip(seconds["read"], seconds["apply"], strict=True)]
    return Measurement(
        row="steps",
        measure=f"a plan against what its rows take, A, {num_rows:,} rows, {_threads(count)}",
        figure=1e3 * statistics.median(seconds["plan"]),
        unit="ms",
        peer="read and apply",
        peer_figure=1e3 * statistics.median(rest),
        ratio=median_ratio(seconds["plan"], rest),
        limit=PLAN_LIMIT,
        sense=Sense.AT_MOST,
        note="rows are read and trained id by id",
    )


def _plans(setting: Setting) -> list[Measurement]:
    """Measures the cost of an id on one thread: with repeated ids, with hardly any, and with a plan in one part."""
    repeating = workload.zipf_batches(setting, setting.small_rows)
    some = max(setting.ids_per_batch // 8, 1)
    kinds = {
        "A": [batch.ids for batch in repeating],
        "B": [batch.ids for batch in workload.uniform_batches(setting, setting.large_rows)],
        "A, an eighth of a batch": [batch.ids[:some] for batch in repeating],
    }
    ours.use_threads(1)
    table = ours.new_table()
    contestants = {kind: TimedStep(table.plan, batches) for kind, batches in kinds.items()}
    rates = take_turns(contestants, rounds=setting.rounds, seconds=setting.seconds)
    return [
        Measurement(
            row="steps",
            measure=f"plan alone, {kind}, {len(batches[0]):,} ids, 1 thread",
            figure=statistics.median(1e9 / rate / len(batches[0]) for rate in rates[kind]),
            unit="ns/id",
            note=f"{1e3 / statistics.median(rates[kind]):.3g} ms a batch",
        )
        for kind, batches in kinds.items()
    ]


def _threads(count: int) -> str:
    return f"{count} threads" if count > 1 else "1 thread"


def measure_threads(setting: Setting) -> list[Measurement]:
    """Measures lookup and the complete step, workload A on the small and large table, B on the large and huge one."""
    counts = setting.thread_counts or (1, setting.threads)
    if len(set(counts)) < 2:
        raise RowSkippedError(
            "there is nothing to compare with one thread; give --threads 2 on a machine with two cores"
        )
    tables = [("A", setting.small_rows), ("A", setting.large_rows), ("B", setting.large_rows), ("B", setting.huge_rows)]
    return [
        measurement
        for name, rows in dict.fromkeys(tables)
        for measurement in _threads_of_table(setting, name, rows, counts)
    ]


def _threads_of_table(setting: Setting, name: str, num_rows: int, counts: Sequence[int]) -> list[Measurement]:
    tell(f"    {name}, {num_rows:,} rows, threads {' '.join(map(str, counts))}")
    ours.use_threads(max(counts))
    table = ours.Ours(ours.new_table(), workload.output_gradient(setting.ids_per_batch, ours.DIM))
    ours.fill(table.table, num_rows)
    batches = (workload.zipf_batches if name == "A" else workload.uniform_batches)(setting, num_rows)
    steps = {"lookup": table.lookup, "lookup + apply_gradients": table.train}
    measurements = []
    for step_name, step in steps.items():
        rates = _rates(setting, counts, TimedStep(step, batches))
        measure = f"threads: {step_name}, {name}, {num_rows:,} rows"
        measurements += [_compare(f"{measure}, {more}", name, rates, (fewer, more)) for fewer, more in pairwise(counts)]
    return measurements


def _rates(setting: Setting, counts: Sequence[int], contestant: TimedStep[WorkloadBatch]) -> dict[int, list[float]]:
    """Returns thousands of examples per second by number of threads, alternating."""
    rates: dict[int, list[float]] = {count: [] for count in counts}
    with quiet_collector():
        for _ in range(setting.rounds):
            for count, figures in rates.items():
                ours.use_threads(count)
                figures.append(contestant.turn(setting.seconds) * setting.examples / 1e3)
    return rates


def _compare(measure: str, name: str, rates: dict[int, list[float]], counts: tuple[int, int]) -> Measurement:
    few, many = (rates[count] for count in counts)
    return Measurement(
        row="threads",
        measure=measure,
        figure=statistics.median(many),
        unit="k examples/s",
        peer=f"{counts[0]} threads" if counts[0] > 1 else "one thread",
        peer_figure=statistics.median(few),
        ratio=median_ratio(many, few),
        limit=THREAD_LIMITS.get(counts, {}).get(name),
        note=f"{counts[1]} threads; {spread(many)}",
    )
