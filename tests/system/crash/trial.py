"""One run that is killed and resumed until it ends, and its checks."""

from __future__ import annotations

import random
import re
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from system.crash.child import Child, import_what_torch_puts_off

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from system.crash.child import Tell
    from system.crash.scenarios import Scenario

_POLL_SECONDS = 0.0005
_SHARE_IN_SAVES = 0.6
_MOST_DELAY_IN_SAVE = 0.03
_MANIFEST = re.compile(r"model\.ckpt-(\d+)\.manifest$")


@dataclass(frozen=True, slots=True)
class Kill:
    """State of a run at a SIGKILL."""

    committed: int | None
    """Step of the newest checkpoint; None: there was none."""
    inside_save: bool


@dataclass(slots=True)
class Trial:
    """A run that was killed several times."""

    scenario: Scenario
    seed: int
    kills: list[Kill] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, doubled or changed."""
        return not self.problems


def run_trials(
    scenario: Scenario,
    *,
    num_kills: int,
    seed: int,
    folder: Path | None = None,
    report: Callable[[Trial], None] = lambda _: None,
) -> list[Trial]:
    """Kills runs of one scenario `num_kills` times in all, several times each; every run then ends and is checked.

    Args:
        scenario: How the runs train and save.
        num_kills: SIGKILLs that hit a running process; those that come too late are not counted.
        seed: Seed of the times of kills and of the data.
        folder: Folder on the disk to save to; None: a temporary one.
        report: Called with each checked run.
    """
    draw = random.Random(f"{seed} {scenario.name}")  # noqa: S311 - repeatable times, not secrets
    import_what_torch_puts_off()
    trials, left = [], num_kills
    while left > 0:
        trial = Trial(scenario, seed=draw.randrange(1 << 31))
        with tempfile.TemporaryDirectory(prefix="monolith-crash-", dir=folder) as own_folder:
            _Runner(trial, Path(own_folder), draw).run(min(left, draw.randint(2, 8)))
        left -= len(trial.kills)
        trials.append(trial)
        report(trial)
    return trials


class _Runner:
    def __init__(self, trial: Trial, folder: Path, draw: random.Random) -> None:
        self._trial = trial
        self._model_dir = folder / "killed"
        self._reference_dir = folder / "uninterrupted"
        self._draw = draw

    def run(self, num_kills: int) -> None:
        """Trains once without and once with kills, and checks the result."""
        begun = time.monotonic()
        expected = self._to_end(self._reference_dir)
        usual_seconds = time.monotonic() - begun
        while len(self._trial.kills) < num_kills and self._attempt(usual_seconds):
            pass
        self._judge(self._to_end(self._model_dir), expected)
        # The final state on disk equals the one in memory: a new process finds no work left.
        self._judge(self._to_end(self._model_dir), expected)

    def _attempt(self, usual_seconds: float) -> bool:
        """Starts the run and kills it; returns False if it ended first."""
        child = self._start(self._model_dir)
        try:
            for _ in self._moments(child, usual_seconds):
                time.sleep(_POLL_SECONDS)
            if child.has_ended():
                child.told()
                return False
            child.kill()
            self._trial.kills.append(Kill(newest(self._model_dir), is_inside_save(self._model_dir)))
            child.told()
            return True
        finally:
            child.close()

    def _moments(self, child: Child, usual_seconds: float) -> Iterator[None]:
        """Iterates until the time of the kill: some time after the start, or during a save."""
        start = time.monotonic()
        if self._draw.random() >= _SHARE_IN_SAVES:
            until = start + self._draw.uniform(0.0, usual_seconds / 2)
            while time.monotonic() < until and not child.has_ended():
                yield
            return
        for _ in range(self._draw.randint(1, 4)):
            while is_inside_save(self._model_dir) and not child.has_ended():
                yield
            while not is_inside_save(self._model_dir) and not child.has_ended():
                yield
        until = time.monotonic() + self._draw.uniform(0.0, _MOST_DELAY_IN_SAVE)
        while time.monotonic() < until and is_inside_save(self._model_dir) and not child.has_ended():
            yield

    def _to_end(self, model_dir: Path) -> dict[str, Any]:
        child = self._start(model_dir)
        try:
            child.wait()
            result: dict[str, Any] = child.told()["result"]
        finally:
            child.close()
        return result

    def _start(self, model_dir: Path) -> Child:
        scenario, seed, committed = self._trial.scenario, self._trial.seed, newest(model_dir)

        def work(tell: Tell) -> dict[str, Any]:
            def started(step: int) -> None:
                if step != (committed or 0):
                    raise RuntimeError(f"resumed from step {step}, but the newest checkpoint is of step {committed}")
                tell({"resumed": step})

            return scenario.train(str(model_dir), seed, started)

        return Child(work)

    def _judge(self, got: dict[str, Any], expected: dict[str, Any]) -> None:
        problems = self._trial.problems
        if got["step"] != expected["step"]:
            problems.append(f"ended at step {got['step']}, an uninterrupted run at {expected['step']}")
        problems += [*got.get("wrong", []), *expected.get("wrong", [])]
        parts = expected.get("fingerprint", {})
        problems += [f"{name} differs" for name, digest in parts.items() if got["fingerprint"].get(name) != digest]


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
