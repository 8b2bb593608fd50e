"""A synchronous run under torchrun whose ranks are killed, stopped and resized while they count.

After every fault the run resumes from its last checkpoint, and in the end every example has counted once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from monolith import environment
from monolith.checkpoint import load
from system.crash.cluster_task import ClusterCountingTask, ClusterInput
from system.crash.processes import KnownProcess, descendants_of
from system.crash.trial import Fault, StuckError, Topology, Trial, draw_for, is_inside_save, newest, run_trial

RankFaultKind = Literal["kill", "kill in save", "pause", "hang", "resize"]

_PROGRAM = "system.crash.rank_program"
_SHORT_FOLDER = "/tmp"  # noqa: S108 - for sockets, whose paths may have 107 bytes; a folder of its own is made there
_POLL_SECONDS = 0.001
_MOST_DELAY_SECONDS = 0.3
_MOST_PAUSE_SECONDS = 0.5
_BATCHES_PER_FAULT = 12
"""Batches of the input, in order, between two faults."""
_BATCHES_PER_FILE = 5
_SAVE_STEPS = 4
_OPTIONS = "options.json"
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


@dataclass(frozen=True, slots=True)
class RankFolder:
    """Files by which ranks report their progress, and receive its limit."""

    path: Path

    @property
    def model_dir(self) -> Path:
        """Model directory of the run."""
        return self.path / "model"

    def begin(self, options: dict[str, Any], params: dict[str, Any], *, timeout_seconds: float) -> None:
        """Sets the folder up, before the first start."""
        (self.path / "told").mkdir(parents=True)
        content = {"options": options, "params": params, "timeout_seconds": timeout_seconds}
        (self.path / _OPTIONS).write_text(json.dumps(content), encoding="utf-8")

    def allow(self, place: int) -> None:
        """Allows ranks to train batches below this position of the input."""
        new = self.path / "limit.new"
        new.write_text(str(place), encoding="utf-8")
        new.rename(self.path / "limit")

    def allowed(self) -> int:
        """Returns the limit of the ranks."""
        return int((self.path / "limit").read_text(encoding="utf-8"))

    def read_options(self) -> dict[str, Any]:
        """Returns the options given to `begin`."""
        content: dict[str, Any] = json.loads((self.path / _OPTIONS).read_text(encoding="utf-8"))
        return content

    def log_of(self, launch: int, restart: int, rank: int) -> Path:
        """Returns the path of the reports of a rank."""
        return self.path / "told" / f"{launch:04d}-{restart:04d}-{rank:02d}.jsonl"


def run_rank_trial(
    scenario: RankScenario, *, num_faults: int, seed: int, folder: Path, longest_seconds: float = 300.0
) -> Trial[RankScenario]:
    """Runs a scenario with `num_faults` faults to its end, and checks the counts.

    The trial has one fact, ``sizes``: the numbers of ranks of all launches.

    Args:
        scenario: Setup of the run.
        num_faults: Number of faults of all kinds.
        seed: Seed of the data and of the times of faults.
        folder: Folder of the run; empty.
        longest_seconds: Time without a step after which the run counts as hung, which is a problem.
    """
    trial = Trial(scenario, seed, facts={"sizes": []})
    return run_trial(_Ranks(trial, folder, num_faults, longest_seconds), trial, num_faults=num_faults)


class _Ranks(Topology[RankScenario]):
    def __init__(self, trial: Trial[RankScenario], folder: Path, num_faults: int, longest_seconds: float) -> None:
        super().__init__(trial, draw_for(trial.seed, "ranks"), longest_seconds, poll_seconds=_POLL_SECONDS)
        self._num_faults = num_faults
        self._input = ClusterInput(
            seed=trial.seed, num_workers=3, num_batches=_BATCHES_PER_FAULT * (num_faults + 2), batch_size=4
        )
        self._folder = RankFolder(folder)
        self._scratch = tempfile.TemporaryDirectory(prefix="ranks-", dir=_SHORT_FOLDER, ignore_cleanup_errors=True)
        self._launch = -1
        self._torchrun: subprocess.Popen[bytes] | None = None
        self._may_end = False
        """Whether an end of torchrun is no failure."""
        self._ranks: dict[int, KnownProcess] = {}
        """Rank -> process, at the time of the current fault."""
        self._before = (-1, -1)
        """The newest start of ranks at that time."""

    # Course of the trial

    def start(self) -> None:
        """Starts the first ranks, and waits for a step."""
        files = self._folder.path / "files"
        files.mkdir()
        self._input.write(files, batches_per_file=_BATCHES_PER_FILE)
        options = {"enable_dynamic_sharding": True, "save_checkpoints_steps": _SAVE_STEPS, **self._scenario.options}
        self._folder.begin(
            options,
            {"counted": asdict(self._input), "folder": str(files)},
            timeout_seconds=self._scenario.timeout_seconds,
        )
        self._folder.allow(_BATCHES_PER_FAULT)
        self._start(self._scenario.num_ranks)

    def due(self, number: int) -> Fault:
        """Waits for a step, and for a save or some time."""
        kind = self._scenario.kinds[number % len(self._scenario.kinds)]
        self.wait(lambda: self._reached() is not None, "a step")
        self._folder.allow(_BATCHES_PER_FAULT * (number + 2))
        self._ranks = self._running()
        rank = self._draw.choice(sorted(self._ranks))
        if kind == "kill in save":
            last = self._folder.allowed() - 1
            self.wait(lambda: is_inside_save(self._folder.model_dir) or (self._reached() or 0) >= last, "a save")
        else:
            time.sleep(self._draw.uniform(0.0, _MOST_DELAY_SECONDS))
        self._before = self._newest_start()
        inside = is_inside_save(self._folder.model_dir)
        details = {"rank": rank, "num_ranks": len(self._ranks)}
        return Fault(kind=kind, role=f"rank-{rank}", inside_save=inside, details=details)

    def inject(self, fault: Fault) -> None:
        """Kills or stops a rank, or starts another number of ranks."""
        rank = fault.details["rank"]
        if fault.kind == "resize":
            self._resize()
        elif fault.kind == "pause":
            self._ranks[rank].send(signal.SIGSTOP)
            time.sleep(self._draw.uniform(0.0, _MOST_PAUSE_SECONDS))
            self._ranks[rank].send(signal.SIGCONT)
        elif fault.kind == "hang":
            self._hang(self._ranks, rank)
        else:
            self._ranks[rank].send(signal.SIGKILL)

    def recover(self, fault: Fault) -> float:
        """Waits for a step: of a new start, or after a pause of the old one."""
        start, steps, last = self._newest_start(), self._steps(), self._folder.allowed() - 1

        def is_there() -> bool:
            if fault.kind == "pause":
                return self._steps() > steps or self._newest_start() != start or (self._reached() or 0) >= last
            return self._newest_start() > self._before and self._reached() is not None

        self.wait(is_there, f"a step after a {fault.kind}")
        return time.monotonic()

    def finish(self) -> None:
        """Processes the rest of the input."""
        self._folder.allow(self._input.num_batches + 1)
        self._may_end = True
        self.wait(self._has_ended, "the end of the run")

    def judge(self) -> list[str]:
        """Compares the counts of the last checkpoint with the input."""
        assert self._torchrun is not None
        status = self._torchrun.returncode
        problems = [f"torchrun ended with {status}"] if status else []
        if newest(self._folder.model_dir) is None:
            return [*problems, "nothing was saved"]
        task = ClusterCountingTask.counting(self._input)
        load(task.make_model(), self._folder.model_dir)
        return [*problems, *task.miscounts()[:5]]

    def close(self) -> None:
        """Ends all processes."""
        self._kill_launch()
        self._scratch.cleanup()

    # Faults

    def _hang(self, ranks: dict[int, KnownProcess], rank: int) -> None:
        """Stops a rank until the others count it as lost; torchrun kills ranks that do not end."""
        ranks[rank].send(signal.SIGSTOP)
        others = [process for each, process in ranks.items() if each != rank]
        if others:
            self.wait(lambda: not any(each.is_there() for each in others), "the end of the others")
        if self._draw.random() < 0.5 or not others:  # else torchrun kills it after half a minute
            ranks[rank].send(signal.SIGCONT)
        if not others:
            ranks[rank].send(signal.SIGKILL)

    def _resize(self) -> None:
        """Restarts with another number of ranks: after a request to torchrun to end, or by killing all processes."""
        assert self._torchrun is not None
        if self._draw.random() < 0.5:
            self._torchrun.send_signal(signal.SIGTERM)
            self._may_end = True
            self.wait(self._has_ended, "the end of torchrun")
        self._kill_launch()
        sizes = self._scenario.sizes
        self._start(sizes[(len(self._trial.facts["sizes"]) - 1) % len(sizes)])

    # Processes

    def _start(self, num_ranks: int) -> None:
        self._launch += 1
        self._trial.facts["sizes"].append(num_ranks)
        self._may_end = False
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
        command += ["--monitor-interval", "0.1", "--max-restarts", str(self._num_faults + _SPARE_RESTARTS)]
        command += ["-m", _PROGRAM, str(self._folder.path), str(self._launch)]
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
        ended = [*self._running().values()]
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

    def _running(self) -> dict[int, KnownProcess]:
        """Returns rank -> process."""
        told = self._told().items()
        return {rank: KnownProcess(each["pid"], each["birth"]) for rank, each in told if "pid" in each}

    def _reached(self) -> int | None:
        """Returns the furthest position of the input at which this start began a step, or None."""
        return max((told["place"] for told in self._told().values() if "place" in told), default=None)

    def _steps(self) -> int:
        return sum(told.get("steps", 0) for told in self._told().values())

    # Waiting

    def look(self) -> None:
        """Checks that the run has not ended.

        Raises:
            StuckError: it has.
        """
        if self._has_ended() and not self._may_end:
            raise StuckError(f"the run has ended; {self.state()}")

    def progress(self) -> object:
        """Returns the sizes of the reports, which grow with every step."""
        return sorted((path.name, path.stat().st_size) for path in (self._folder.path / "told").iterdir())

    def state(self) -> str:
        """Returns the end of the log."""
        log = self._folder.path / f"launch-{self._launch}.log"
        return f"the log in {log} ends with: " + log.read_text(encoding="utf-8", errors="replace")[-1500:]
