"""A training process that is killed and resumed until it ends; the result must be that of an uninterrupted run."""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from monolith.hook import Hook, HookedSession
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.train import PipelineConfig, SavingConfig, TablesConfig, Trainer, TrainerConfig
from system.crash.fingerprint import fingerprint
from system.crash.processes import Child, Tell, import_what_torch_puts_off, result_of
from system.crash.tasks import CountingTask, CrashTask, EverythingTask
from system.crash.trial import Fault, Topology, Trial, draw_for, is_inside_save, newest, run_trial

if TYPE_CHECKING:
    from monolith.nn.table_defaults import StoreFactory  # exists for type checkers only

_POLL_SECONDS = 0.0005
_SHARE_IN_SAVES = 0.6
_MOST_DELAY_IN_SAVE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One way to train and save."""

    name: str
    task: type[CrashTask]
    saving: SavingConfig
    pipeline: PipelineConfig
    evict_every_steps: int | None = None
    """Steps between removals of expired rows; None: rows stay."""
    must: str
    """Invariant of a killed run."""
    store: StoreFactory | None = None
    """Creates the store of the rows; None: a `LocalStore`."""

    def train(self, model_dir: str, seed: int, started: Callable[[int], None]) -> dict[str, Any]:
        """Runs or resumes to the end; calls `started` with the step that it resumes from. Returns the data to check."""
        # One thread: killed and uninterrupted runs then compute alike on a machine under load.
        torch.set_num_threads(1)
        params = self.task.params()
        params.seed = seed
        task = self.task(params)
        config = TrainerConfig(
            model_dir=model_dir,
            saving=self.saving,
            pipeline=self.pipeline,
            tables=TablesConfig(evict_every_steps=self.evict_every_steps),
            deterministic=self.task is EverythingTask,
        )
        with use_table_defaults(TableDefaults(store=self.store)):
            state = Trainer(task, config, hooks=[_TellStart(started)]).train()
        if isinstance(task, CountingTask):
            return {"step": state.global_step, "wrong": task.miscounts()[:5]}
        return {"step": state.global_step, "fingerprint": fingerprint(state)}


class _TellStart(Hook):
    def __init__(self, started: Callable[[int], None]) -> None:
        self._started = started

    def after_create_session(self, session: HookedSession) -> None:
        self._started(session.global_step)


SCENARIOS = (
    Scenario(
        name="steps",
        task=EverythingTask,
        saving=SavingConfig(every_steps=4, max_to_keep=3),
        pipeline=PipelineConfig(),
        evict_every_steps=7,
        must="equal bit for bit",
    ),
    Scenario(
        name="steps, background, read ahead",
        task=EverythingTask,
        saving=SavingConfig(every_steps=5, max_to_keep=3, background=True),
        pipeline=PipelineConfig(prefetch=2, postpush=True),
        evict_every_steps=7,
        must="equal bit for bit",
    ),
    Scenario(
        name="seconds",
        task=CountingTask,
        saving=SavingConfig(every_seconds=0.05, max_to_keep=3, background=True),
        pipeline=PipelineConfig(prefetch=2, postpush=True),
        must="every example once",
    ),
)


def run_trials(
    scenario: Scenario,
    *,
    num_kills: int,
    seed: int,
    folder: Path | None = None,
    report: Callable[[Trial[Scenario]], None] = lambda _: None,
) -> list[Trial[Scenario]]:
    """Kills runs of one scenario `num_kills` times in all, several times each; every run then ends and is checked.

    Args:
        scenario: How the runs train and save.
        num_kills: SIGKILLs that hit a running process; those that come too late are not counted.
        seed: Seed of the times of kills and of the data.
        folder: Folder on the disk to save to; None: a temporary one.
        report: Called with each checked run.
    """
    draw = draw_for(seed, scenario.name)
    import_what_torch_puts_off()
    trials, left = [], num_kills
    while left > 0:
        trial = Trial(scenario, seed=draw.randrange(1 << 31))
        with tempfile.TemporaryDirectory(prefix="monolith-crash-", dir=folder) as own_folder:
            run_trial(_Run(trial, draw, Path(own_folder)), trial, num_faults=min(left, draw.randint(2, 8)))
        left -= len(trial.faults)
        trials.append(trial)
        report(trial)
    return trials


class _Run(Topology[Scenario]):
    """One process, which is started again after every kill."""

    def __init__(self, trial: Trial[Scenario], draw: random.Random, folder: Path) -> None:
        super().__init__(trial, draw, math.inf, poll_seconds=_POLL_SECONDS)
        self._model_dir = folder / "killed"
        self._reference_dir = folder / "uninterrupted"
        self._expected: dict[str, Any] = {}
        self._ends: list[dict[str, Any]] = []
        self._usual_seconds = 0.0
        self._child: Child | None = None

    def start(self) -> None:
        """Trains once without kills."""
        begun = time.monotonic()
        self._expected = result_of(self._work(self._reference_dir))
        self._usual_seconds = time.monotonic() - begun

    def look(self) -> None:
        """Does nothing: a process that has ended ends the wait."""

    def progress(self) -> object:
        """Returns nothing: the process ends, or is killed."""
        return None

    def due(self, number: int) -> Fault | None:
        """Starts the run, and waits for some time after the start, or for a time during a save."""
        self.close()
        self._child = child = Child(self._work(self._model_dir))
        if self._draw.random() >= _SHARE_IN_SAVES:
            self._await(child, after=self._draw.uniform(0.0, self._usual_seconds / 2))
        else:
            for _ in range(self._draw.randint(1, 4)):
                self._await(child, inside=False)
                self._await(child, inside=True)
            self._await(child, inside=False, after=self._draw.uniform(0.0, _MOST_DELAY_IN_SAVE))
        if child.has_ended():
            child.told()  # raises its error
            return None
        return Fault(kind="kill")

    def _await(self, child: Child, *, inside: bool | None = None, after: float = math.inf) -> None:
        """Waits for the begin or the end of a save, for some seconds, or for the end of the process."""
        end = time.monotonic() + after

        def is_over() -> bool:
            return time.monotonic() >= end or is_inside_save(self._model_dir) is inside or child.has_ended()

        self.wait(is_over, "a save")

    def inject(self, fault: Fault) -> None:
        """Kills the process."""
        assert self._child is not None
        self._child.kill()
        fault.inside_save = is_inside_save(self._model_dir)
        fault.details["committed"] = newest(self._model_dir)
        self._child.told()  # raises its error

    def finish(self) -> None:
        """Resumes the run, and lets it end; the final state on disk equals the one in memory: no work is left."""
        self._ends = [result_of(self._work(self._model_dir)) for _ in range(2)]

    def judge(self) -> list[str]:
        """Compares with the uninterrupted run."""
        problems = []
        expected = self._expected
        for got in self._ends:
            if got["step"] != expected["step"]:
                problems.append(f"ended at step {got['step']}, an uninterrupted run at {expected['step']}")
            problems += [*got.get("wrong", []), *expected.get("wrong", [])]
            parts = expected.get("fingerprint", {})
            problems += [f"{name} differs" for name, digest in parts.items() if got["fingerprint"].get(name) != digest]
        return problems

    def close(self) -> None:
        """Ends the process."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _work(self, model_dir: Path) -> Callable[[Tell], dict[str, Any]]:
        scenario, seed, committed = self._scenario, self._trial.seed, newest(model_dir)

        def work(tell: Tell) -> dict[str, Any]:
            def started(step: int) -> None:
                if step != (committed or 0):
                    raise RuntimeError(f"resumed from step {step}, but the newest checkpoint is of step {committed}")
                tell({"resumed": step})

            return scenario.train(str(model_dir), seed, started)

        return work
