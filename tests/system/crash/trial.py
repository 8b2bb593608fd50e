"""A trial: processes of one topology under faults, one after another, and checks of what is left in the end.

`run_trial` is the loop of every trial: draw a fault, inject it, wait for progress, and judge in the end. A `Topology`
has the processes, the faults and the judgement.
"""

from __future__ import annotations

import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

_MANIFEST = re.compile(r"model\.ckpt-(\d+)\.manifest$")

S = TypeVar("S")
"""Setup of the processes."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """A fault of a process, and the recovery from it."""

    kind: str
    role: str = ""
    """The process."""
    inside_save: bool = False
    seconds: float = 0.0
    """Its duration; 0 for a kill."""
    recovery_seconds: float = 0.0
    """Until the processes made progress again, without the duration."""
    details: dict[str, Any] = field(default_factory=dict)
    """Additional values of one topology."""

    def as_json(self) -> dict[str, Any]:
        """Returns plain values."""
        values = asdict(self)
        details: dict[str, Any] = values.pop("details")
        return values | details


@dataclass(slots=True)
class Trial(Generic[S]):
    """One run under faults, and its results."""

    scenario: S
    seed: int
    faults: list[Fault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Additional results of one topology."""

    @property
    def is_good(self) -> bool:
        """Whether all checks passed."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Returns plain values."""
        faults = [fault.as_json() for fault in self.faults]
        return {"seed": self.seed, "faults": faults, **self.facts, "problems": self.problems}


class StuckError(Exception):
    """Processes hang, or one of them has failed."""


class ProgressWatch(ABC):
    """Waits for processes as long as they make progress.

    Args:
        longest_seconds: Time without progress after which the processes count as hung.
        poll_seconds: Time between two looks.
    """

    def __init__(self, longest_seconds: float, *, poll_seconds: float = 0.002) -> None:
        self._longest_seconds = longest_seconds
        self._poll_seconds = poll_seconds

    @abstractmethod
    def look(self) -> None:
        """Checks the processes.

        Raises:
            StuckError: a process has failed.
        """

    @abstractmethod
    def progress(self) -> object:
        """Returns a value that changes with every step."""

    def state(self) -> str:
        """Returns what the report of a hang says about the processes."""
        return f"reported: {self.progress()}"

    def wait(self, is_there: Callable[[], bool], what: str) -> None:
        """Waits for a condition.

        Raises:
            StuckError: it did not hold in time, or a process has failed.
        """
        begun, before = time.monotonic(), self.progress()
        while not is_there():
            self.look()
            if (now := self.progress()) != before:
                begun, before = time.monotonic(), now
            if time.monotonic() - begun > self._longest_seconds:
                raise StuckError(f"{what}: no progress for {self._longest_seconds:g} s; {self.state()}")
            time.sleep(self._poll_seconds)

    def let_pass(self, seconds: float) -> None:
        """Waits for some time.

        Raises:
            StuckError: a process has failed.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(self._poll_seconds)


class Topology(ProgressWatch, Generic[S]):
    """The processes of a trial, their faults, and the checks of their results.

    Args:
        trial: Receives the results.
        draw: Draws the faults.
        longest_seconds: Time without progress after which the processes count as hung.
        poll_seconds: Time between two looks.
    """

    def __init__(
        self, trial: Trial[S], draw: random.Random, longest_seconds: float, *, poll_seconds: float = 0.002
    ) -> None:
        super().__init__(longest_seconds, poll_seconds=poll_seconds)
        self._trial = trial
        self._scenario = trial.scenario
        self._draw = draw

    @abstractmethod
    def start(self) -> None:
        """Starts the processes, and waits until they make progress."""

    @abstractmethod
    def due(self, number: int) -> Fault | None:
        """Waits until a fault is due; returns it, or None if the processes have ended before."""

    @abstractmethod
    def inject(self, fault: Fault) -> None:
        """Does the harm."""

    def recover(self, fault: Fault) -> float:
        """Waits until the processes make progress after a fault; returns when they did, on the monotonic clock."""
        return time.monotonic()

    @abstractmethod
    def finish(self) -> None:
        """Lets the processes run to their end."""

    @abstractmethod
    def judge(self) -> Sequence[str]:
        """Checks the results; returns the problems."""

    def dump(self) -> None:
        """Writes what helps to analyse a hang; by default nothing."""
        return

    @abstractmethod
    def close(self) -> None:
        """Ends all processes."""


def run_trial(topology: Topology[S], trial: Trial[S], *, num_faults: int) -> Trial[S]:
    """Starts the processes, injects the faults, lets the processes end, and judges."""
    try:
        topology.start()
        while len(trial.faults) < num_faults and (fault := topology.due(len(trial.faults))) is not None:
            trial.faults.append(fault)
            begun = time.monotonic()
            topology.inject(fault)
            fault.recovery_seconds = round(topology.recover(fault) - begun - fault.seconds, 6)
        topology.finish()
        trial.problems += topology.judge()
    except StuckError as stuck:
        trial.problems.append(str(stuck))
        topology.dump()
    finally:
        topology.close()
    return trial


def draw_for(seed: int, what: str) -> random.Random:
    """Returns a generator of repeatable times and targets."""
    return random.Random(f"{seed} {what}")  # noqa: S311 - repeatable times, not secrets


def newest(model_dir: Path) -> int | None:
    """Returns the step of the newest committed checkpoint, or None."""
    steps = [int(match[1]) for path in _names(model_dir) if (match := _MANIFEST.match(path))]
    return max(steps, default=None)


def is_inside_save(model_dir: Path) -> bool:
    """Returns whether a save has begun and not ended."""
    return any(name.endswith(".saving") for name in _names(model_dir))


def _names(model_dir: Path) -> list[str]:
    try:
        return [path.name for path in model_dir.iterdir()]
    except FileNotFoundError:
        return []
