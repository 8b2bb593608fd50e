"""The race: traffic in time order, every model judged before it learns, measured by `RaceWindow`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from monolith.cli._demo.contestants import FROZEN, HASHED, MEASURING, ONLINE, TRAFFIC, Frozen, Hashed, Online, Stopwatch
from monolith.clock import SystemClock
from monolith.data import ClickStream, SyntheticClicks
from monolith.metrics import ExactAUC

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from monolith.clock import Clock
    from monolith.data import Batch

WORLD: Final = SyntheticClicks(
    num_users=10_000, num_items=3_000, num_tags=200, examples_per_day=40_000, visitors=0.5, zipf=1.0, drift_days=80.0
)
MEMORY_BYTES: Final = 5_500_000
"""What the hashed model gets; the online one stays below, rows, keys, index and filter together."""
FREEZE_AFTER: Final = 5 * WORLD.examples_per_day
"""Examples that the frozen model learns from, or `FREEZE_SHARE` of a race if that is less."""
FREEZE_SHARE: Final = 1 / 6
BATCH_SIZE: Final = 2_000
MODELS: Final = ("online", "hashed", "frozen", "best")
"""Whose AUC is measured; ``best`` is that of the planted probabilities, which no model can pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceConfig:
    """A race ends with its last example; a limit in seconds stops it before, and then nothing is compared."""

    examples: int
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ValueError(f"--examples must be at least 1, got {self.examples}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError(f"--seconds must be above 0 and finite, got {self.seconds}")

    @property
    def window(self) -> int:
        """Number of examples of a window: a day, or less in a short race."""
        day = WORLD.examples_per_day
        if self.examples >= 10 * day:
            return day
        return max(BATCH_SIZE, self.examples // 10 // BATCH_SIZE * BATCH_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceWindow:
    """What was measured over some consecutive examples, and where things stood at their end."""

    day: float
    """Event time at the end, since the first example."""
    examples: int
    seconds: float
    auc: dict[str, float]
    """By the names in `MODELS`; NaN where there were no clicks, or nothing but clicks."""
    rows: int
    memory_bytes: int
    inserted: int
    """Rows that came into being in this window."""
    expired: int


@dataclass(slots=True)
class RaceProgress:
    """Progress of a race."""

    limits: RaceConfig
    seed: int
    windows: list[RaceWindow] = field(default_factory=list)
    examples: int = 0
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    """Where the seconds went, by the names in `STAGES`."""
    frozen_day: float | None = None
    """When the frozen model stopped learning; None: not yet."""
    hashed_rows: int = 0
    kept_out: int = 0

    @property
    def online_seconds(self) -> float:
        """Of `seconds`: what the online model took, to predict and to learn."""
        return sum(self.stages.get(stage, 0.0) for stage in ONLINE)

    @property
    def day(self) -> float:
        """Event time, since the first example."""
        return self.examples / WORLD.examples_per_day

    @property
    def done(self) -> float:
        """Share of the race that is over."""
        return min(1.0, self.examples / self.limits.examples)

    @property
    def is_complete(self) -> bool:
        """Whether all examples were seen; only then are the models compared."""
        return self.examples >= self.limits.examples

    @property
    def is_time_to_freeze(self) -> bool:
        """Whether the frozen model has learned for long enough."""
        return self.examples >= FREEZE_AFTER or self.done >= FREEZE_SHARE

    @property
    def examples_per_second(self) -> float:
        """Throughput of the race, including generation of traffic, three models, and measurements."""
        return self.examples / self.seconds if self.seconds else 0.0

    @property
    def last_quarter(self) -> list[RaceWindow]:
        """The windows that the result is the mean of."""
        return self.windows[-max(1, len(self.windows) // 4) :]

    def final_auc(self) -> dict[str, float]:
        """Means over the last quarter of the windows."""
        last = self.last_quarter
        return {name: sum(window.auc[name] for window in last) / len(last) if last else math.nan for name in MODELS}


class Race:
    """Three models on one stream. Belongs to one thread."""

    def __init__(self, limits: RaceConfig, *, seed: int, clock: Clock | None = None) -> None:
        self.progress = RaceProgress(limits=limits, seed=seed)
        self._clock = SystemClock() if clock is None else clock
        self._watch = Stopwatch(self._clock)
        self.progress.stages = self._watch.seconds
        self._online = Online(seed, self._watch.end)
        self._hashed = Hashed(MEMORY_BYTES, WORLD, seed)
        self._frozen: Frozen | None = None
        self._auc = {name: ExactAUC() for name in MODELS}
        self._in_window = 0
        self._counted = (0, 0)
        self.progress.hashed_rows = self._hashed.num_rows

    def run(self, after_batch: Callable[[RaceProgress], bool]) -> RaceProgress:
        """Races until a limit, or until `after_batch` returns False."""
        progress, limits = self.progress, self.progress.limits
        start = self._clock.monotonic()
        self._watch.begin()
        stream = ClickStream(limits.examples, batch_size=BATCH_SIZE, seed=progress.seed, world=WORLD, truth=True)
        with stream.read() as reading:
            for batch in reading:
                self._watch.end(TRAFFIC)
                self._step(batch)
                progress.seconds = self._clock.monotonic() - start
                if self._in_window >= limits.window:
                    self._end_window()
                self._watch.end(MEASURING)
                is_late = limits.seconds is not None and progress.seconds >= limits.seconds
                if not after_batch(progress) or is_late:
                    break
        if self._in_window and (2 * self._in_window >= limits.window or not progress.windows):
            self._end_window()
        return progress

    def _step(self, batch: Batch) -> None:
        progress = self.progress
        if self._frozen is None and progress.examples and progress.is_time_to_freeze:
            self._frozen = Frozen(self._online, progress.seed)
            progress.frozen_day = progress.day
        self._watch.end(MEASURING)
        online = self._online.judge(batch)
        hashed = self._hashed.judge(batch)
        self._watch.end(HASHED)
        frozen = online if self._frozen is None else self._frozen.judge(batch)
        self._watch.end(FROZEN)
        scores = {
            "online": online,
            "hashed": hashed,
            "frozen": frozen,
            "best": cast("Tensor", batch["probability"]).view(-1),
        }
        clicks = cast("Tensor", batch["label"]).view(-1)
        for name, score in scores.items():
            self._auc[name].update(score, clicks)
        progress.examples += batch.num_rows
        progress.kept_out = self._online.kept_out
        self._in_window += batch.num_rows

    def _end_window(self) -> None:
        progress, online = self.progress, self._online
        stats = online.model.embeddings.store.stats()
        inserted, expired = self._counted
        self._counted = (online.inserted, stats.evicted)
        progress.windows.append(
            RaceWindow(
                day=progress.day,
                examples=progress.examples,
                seconds=progress.seconds,
                auc={name: metric.compute() for name, metric in self._auc.items()},
                rows=stats.rows,
                memory_bytes=stats.memory_bytes,
                inserted=online.inserted - inserted,
                expired=stats.evicted - expired,
            )
        )
        for metric in self._auc.values():
            metric.reset()
        self._in_window = 0
