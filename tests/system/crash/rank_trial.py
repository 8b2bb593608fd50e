"""A synchronous run under torchrun whose ranks are killed, stopped and resized while they count.

After every fault the run resumes from its last checkpoint, and in the end every example has counted once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from monolith import environment
from monolith.checkpoint import load
from system.crash.cluster_task import ClusterCountingTask, ClusterInput
from system.crash.known_process import KnownProcess, descendants_of
from system.crash.rank_folder import RankFolder
from system.crash.trial import is_inside_save, newest

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RankFault", "RankScenario", "RankTrial", "run_rank_trial"]

RankFaultKind = Literal["kill", "kill in save", "pause", "hang", "resize"]

_PROGRAM = "system.crash.rank_program"
_FORKING_TORCHRUN = f"""
import multiprocessing
from torch.distributed.run import main
multiprocessing.set_forkserver_preload(["{_PROGRAM}", "torch._dynamo"])
main()
"""
"""torchrun whose ranks are forked from a process that has imported their modules."""
_SHORT_FOLDER = "/tmp"  # noqa: S108 - for sockets, whose paths may have 107 bytes; a folder of its own is made there
_POLL_SECONDS = 0.001
_MOST_DELAY_SECONDS = 0.3
_MOST_PAUSE_SECONDS = 0.5
_PLACES_PER_FAULT = 12
"""Batches of the input, in order, between two faults."""
_BATCHES_PER_FILE = 5
_SAVE_STEPS = 4
_SPARE_RESTARTS = 5
"""Restarts of torchrun in addition to those of the faults: on a slow machine a slow rank may count as lost."""
_KINDS: tuple[RankFaultKind, ...] = ("kill", "kill in save", "resize", "kill", "pause", "kill in save", "hang")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankScenario:
    """Setup of a run, and its faults."""

    num_ranks: int = 2
    """Initial number of ranks."""
    sizes: tuple[int, ...] = (3, 1, 2)
    """Numbers of ranks after each resize, cycled."""
    kinds: tuple[RankFaultKind, ...] = _KINDS
    """Kinds of faults, cycled; their times and targets are random."""
    options: dict[str, Any] = field(default_factory=dict)
    """Additional options of the run."""
    timeout_seconds: float = 20.0
    """After which ranks count another rank that does not answer as lost."""
    forks: bool = False
    """Whether ranks are forked, so that a start takes no seconds; else they start as for a user."""


@dataclass(slots=True, kw_only=True)
class RankFault:
    """A fault of a run, and its recovery."""

    kind: RankFaultKind
    rank: int
    num_ranks: int
    """Number of ranks at the time of the fault."""
    inside_save: bool
    recovery_seconds: float = 0.0
    """From its beginning until the next step."""


@dataclass(slots=True)
class RankTrial:
    """One run, and its results."""

    scenario: RankScenario
    seed: int
    faults: list[RankFault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Numbers of ranks of all launches."""

    @property
    def is_good(self) -> bool:
        """Whether every example has counted once."""
        return not self.problems


def run_rank_trial(
    scenario: RankScenario, *, num_faults: int, seed: int, folder: Path, longest_seconds: float = 300.0
) -> RankTrial:
    """Runs a scenario with `num_faults` faults to its end, and checks the counts.

    Args:
        scenario: Setup of the run.
        num_faults: Number of faults of all kinds.
        seed: Seed of the data and of the times of faults.
        folder: Folder of the run; empty.
        longest_seconds: Time without a step after which the run counts as hung, which is a problem.
    """
    trial = RankTrial(scenario, seed)
    run = _Run(trial, folder, num_faults, longest_seconds)
    try:
        run.disturb()
    finally:
        run.close()
    return trial


class _StuckError(Exception):
    pass


class _Run:
    def __init__(self, trial: RankTrial, folder: Path, num_faults: int, longest_seconds: float) -> None:
        self._trial = trial
        self._scenario = trial.scenario
        self._longest_seconds = longest_seconds
        self._num_faults = num_faults
        self._draw = random.Random(f"{trial.seed} ranks")  # noqa: S311 - repeatable times, not secrets
        self._input = ClusterInput(
            seed=trial.seed, num_workers=3, num_batches=_PLACES_PER_FAULT * (num_faults + 2), batch_size=4
        )
        self._folder = RankFolder(folder)
        files = folder / "files"
        files.mkdir()
        self._input.write(files, batches_per_file=_BATCHES_PER_FILE)
        options = {"enable_dynamic_sharding": True, "save_checkpoints_steps": _SAVE_STEPS, **trial.scenario.options}
        self._folder.begin(
            options,
            {"counted": asdict(self._input), "folder": str(files)},
            timeout_seconds=trial.scenario.timeout_seconds,
        )
        self._folder.allow(_PLACES_PER_FAULT)
        self._scratch = tempfile.TemporaryDirectory(prefix="ranks-", dir=_SHORT_FOLDER, ignore_cleanup_errors=True)
        self._launch = -1
        self._torchrun: subprocess.Popen[bytes] | None = None
        self._start(trial.scenario.num_ranks)

    # Course of the trial

    def disturb(self) -> None:
        """Injects all faults, processes the rest of the input, and checks the result."""
        try:
            for number in range(self._num_faults):
                kind = self._scenario.kinds[number % len(self._scenario.kinds)]
                self._wait(lambda: self._reached() is not None, "a step")
                self._folder.allow(_PLACES_PER_FAULT * (number + 2))
                self._befall(kind)
            self._folder.allow(self._input.num_batches + 1)
            self._wait(self._has_ended, "its end", while_reached=True)
        except _StuckError as stuck:
            self._trial.problems.append(str(stuck))
            return
        assert self._torchrun is not None
        if self._torchrun.returncode:
            self._trial.problems.append(f"torchrun ended with {self._torchrun.returncode}")
        self._judge()

    def close(self) -> None:
        """Ends all processes."""
        self._kill_launch()
        self._scratch.cleanup()

    def _befall(self, kind: RankFaultKind) -> None:
        ranks = self._ranks()
        rank = self._draw.choice(sorted(ranks))
        if kind == "kill in save":
            self._await_save()
        else:
            time.sleep(self._draw.uniform(0.0, _MOST_DELAY_SECONDS))
        fault = RankFault(
            kind=kind, rank=rank, num_ranks=len(ranks), inside_save=is_inside_save(self._folder.model_dir)
        )
        begun = time.monotonic()
        before = self._newest_start()
        if kind == "resize":
            self._resize()
        elif kind == "pause":
            ranks[rank].send(signal.SIGSTOP)
            time.sleep(self._draw.uniform(0.0, _MOST_PAUSE_SECONDS))
            ranks[rank].send(signal.SIGCONT)
        elif kind == "hang":
            self._hang(ranks, rank)
        else:
            ranks[rank].send(signal.SIGKILL)
        if kind == "pause":
            self._wait_for_more_steps()
        else:
            self._wait(lambda: self._newest_start() > before and self._reached() is not None, f"a step after a {kind}")
        fault.recovery_seconds = round(time.monotonic() - begun, 3)
        self._trial.faults.append(fault)

    def _hang(self, ranks: dict[int, KnownProcess], rank: int) -> None:
        """Stops a rank until the others count it as lost; torchrun kills ranks that do not end."""
        ranks[rank].send(signal.SIGSTOP)
        others = [process for each, process in ranks.items() if each != rank]
        if others:
            self._wait(lambda: not any(each.is_there() for each in others), "the end of the others")
        if self._draw.random() < 0.5 or not others:  # else torchrun kills it after half a minute
            ranks[rank].send(signal.SIGCONT)
        if not others:
            ranks[rank].send(signal.SIGKILL)

    def _resize(self) -> None:
        """Restarts with another number of ranks: after a request to torchrun to end, or by killing all processes."""
        assert self._torchrun is not None
        if self._draw.random() < 0.5:
            self._torchrun.send_signal(signal.SIGTERM)
            self._wait(lambda: self._torchrun is not None and self._torchrun.poll() is not None, "the end of torchrun")
        self._kill_launch()
        sizes = self._scenario.sizes
        self._start(sizes[(len(self._trial.sizes) - 1) % len(sizes)])

    def _await_save(self) -> None:
        """Returns inside a save, if one happens before the position up to which ranks may go."""
        last = self._folder.allowed() - 1
        self._wait(lambda: is_inside_save(self._folder.model_dir) or (self._reached() or 0) >= last, "a save")

    # Processes

    def _start(self, num_ranks: int) -> None:
        self._launch += 1
        self._trial.sizes.append(num_ranks)
        forks = self._scenario.forks
        command = [sys.executable, *(["-c", _FORKING_TORCHRUN] if forks else ["-m", "torch.distributed.run"])]
        command += ["--standalone", "--nproc-per-node", str(num_ranks), "--monitor-interval", "0.1"]
        command += ["--max-restarts", str(self._num_faults + _SPARE_RESTARTS)]
        if forks:
            command += ["--start-method", "forkserver", "--run-path", str(Path(__file__).with_name("rank_program.py"))]
        else:
            command += ["-m", _PROGRAM]
        command += [str(self._folder.path), str(self._launch)]
        surroundings = environment.starting_with("") | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "TMPDIR": self._scratch.name,
        }
        with (self._folder.path / f"launch-{self._launch}.log").open("ab") as log:
            self._torchrun = subprocess.Popen(command, stdout=log, stderr=log, env=surroundings)

    def _kill_launch(self) -> None:
        """Kills torchrun and its ranks."""
        if self._torchrun is None:
            return
        ended = [*self._ranks().values()]
        if self._torchrun.poll() is None:
            self._torchrun.send_signal(signal.SIGSTOP)  # so that it starts no new rank
            ended += descendants_of(self._torchrun.pid)
            self._torchrun.kill()
        for each in ended:
            each.send(signal.SIGKILL)
        self._torchrun.wait()
        while any(each.is_there() for each in ended):
            time.sleep(_POLL_SECONDS)

    def _has_ended(self) -> bool:
        return self._torchrun is not None and self._torchrun.poll() is not None

    # Reports of the ranks

    def _newest_start(self) -> tuple[int, int]:
        names = sorted(path.name for path in (self._folder.path / "told").iterdir())
        return (int(names[-1][:4]), int(names[-1][5:9])) if names else (-1, -1)

    def _told(self) -> dict[int, dict[str, Any]]:
        """Returns rank -> its last reported values, in the newest start of the newest launch."""
        launch, restart = self._newest_start()
        told: dict[int, dict[str, Any]] = {}
        if launch != self._launch:
            return told
        for path in (self._folder.path / "told").glob(f"{launch:04d}-{restart:04d}-*.jsonl"):
            lines = path.read_bytes().split(b"\n")[:-1]  # a killed rank may stop in the middle of a line
            told[int(path.stem[-2:])] = {key: value for line in lines for key, value in json.loads(line).items()}
        return told

    def _ranks(self) -> dict[int, KnownProcess]:
        """Returns rank -> process."""
        told = self._told().items()
        return {rank: KnownProcess(each["pid"], each["birth"]) for rank, each in told if "pid" in each}

    def _reached(self) -> int | None:
        """Returns the furthest position of the input at which this start began a step, or None."""
        return max((told["place"] for told in self._told().values() if "place" in told), default=None)

    def _steps(self) -> int:
        return sum(told.get("steps", 0) for told in self._told().values())

    def _wait_for_more_steps(self) -> None:
        start, steps = self._newest_start(), self._steps()
        last = self._folder.allowed() - 1
        self._wait(
            lambda: self._steps() > steps or self._newest_start() != start or (self._reached() or 0) >= last,
            "a step after a pause",
        )

    def _wait(self, is_there: Callable[[], bool], what: str, *, while_reached: bool = False) -> None:
        """Waits for a condition.

        Raises:
            _StuckError: the condition did not hold in time; or the run has ended.
        """
        begun, steps = time.monotonic(), (self._newest_start(), 0)
        while not is_there():
            if self._has_ended() and "torchrun" not in what:
                if is_there():
                    return
                raise _StuckError(f"the run ended while {what} was waited for; {self._tail()}")
            if while_reached and (now := (self._newest_start(), self._steps())) != steps:
                begun, steps = time.monotonic(), now
            if time.monotonic() - begun > self._longest_seconds:
                raise _StuckError(f"{what} did not come within {self._longest_seconds:g} s; {self._tail()}")
            time.sleep(_POLL_SECONDS)

    def _tail(self) -> str:
        log = self._folder.path / f"launch-{self._launch}.log"
        return f"the log in {log} ends with: " + log.read_text(encoding="utf-8", errors="replace")[-1500:]

    # Checks

    def _judge(self) -> None:
        if newest(self._folder.model_dir) is None:
            self._trial.problems.append("nothing was saved")
            return
        params = ClusterCountingTask.params()
        params.counted = asdict(self._input)
        task = ClusterCountingTask(params)
        load(task.make_model(), self._folder.model_dir)
        self._trial.problems += task.miscounts()[:5]
