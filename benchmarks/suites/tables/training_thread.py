"""Training in a thread concurrently with what is measured, with the time of every step on record."""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from monolith.cli._bench.timing import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from monolith.cli._bench.workload import WorkloadBatch


class Step(NamedTuple):
    """One training step, on the clock of `time.perf_counter`."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


class TrainingThread:
    """Repeats a step over batches until the block ends. The core releases the GIL, so the caller runs concurrently."""

    def __init__(self, step: Callable[[WorkloadBatch], object], batches: Sequence[WorkloadBatch]) -> None:
        self._step = step
        self._batches = batches
        self._steps: list[Step] = []
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._train, name="bench-training", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        if error is None and self._error is not None:
            raise self._error

    def steps_between(self, begin: float, end: float) -> list[Step]:
        """Returns the finished steps that lie inside a span of time."""
        return [step for step in list(self._steps) if begin <= step.begin and step.end <= end]

    def steps_touching(self, begin: float, end: float) -> list[Step]:
        """Returns the finished steps that overlap a span of time."""
        return [step for step in list(self._steps) if step.begin <= end and step.end >= begin]

    def _train(self) -> None:
        try:
            while not self._stopping.is_set():
                begin = time.perf_counter()
                self._step(self._batches[len(self._steps) % len(self._batches)])
                self._steps.append(Step(begin, time.perf_counter()))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that owns this one
            self._error = error


def median_step(steps: Sequence[Step]) -> float:
    """Median seconds of some steps."""
    return statistics.median(step.seconds for step in steps)


def p99_step(steps: Sequence[Step]) -> float:
    """Seconds that 99 % of the steps do not exceed."""
    return percentile([step.seconds for step in steps], 99)
