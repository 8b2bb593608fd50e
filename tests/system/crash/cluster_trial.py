"""A job of real processes that are killed, stopped and disconnected at random times, and checks of its counts."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from monolith.checkpoint import load
from monolith.cluster.discovery import HostServiceDiscovery, ServiceDiscoveryType
from monolith.errors import OpError
from monolith.launch.role import Role
from monolith.train import RunnerConfig
from monolith.train.roles.distributed_runner import distributed_train
from system.crash.batch_limit import BatchLimit
from system.crash.child import Child, import_what_torch_puts_off
from system.crash.cluster_task import ClusterCountingTask, ClusterInput, Disturbed
from system.crash.network import Network
from system.crash.trial import is_inside_save

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from system.crash.child import Tell

__all__ = ["CLUSTER_SCENARIOS", "ClusterFault", "ClusterScenario", "ClusterTrial", "run_cluster_trial"]

_POLL_SECONDS = 0.002
_PLACES_PER_FAULT = 12
"""Batches of each worker between two faults."""
_MOST_AHEAD = 25
"""Batches that a worker may be beyond the next fault, so that a fast machine does not outrun the faults."""
_SHARE_IN_SAVES = 0.4
_MOST_DELAY_SECONDS = 0.05
_LONGEST_WAIT_FOR_SAVE = 3.0
_MOST_PLACES_FOR_SAVE = 60
"""Batches of each worker while the trial waits for a save."""
_LEASE_SECONDS = 10.0
_START_AGAIN = 75
_PARENT_DEATH_SIGNAL = 1

Lost = dict[tuple[int, int], int]
"""Worker and server -> number of updates."""
FaultKind = Literal["kill", "pause", "cut"]
_KINDS: tuple[FaultKind, ...] = ("kill", "pause", "kill", "cut")
"""Kinds of faults, cycled; their times and targets are random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterScenario:
    """Setup of a job."""

    name: str
    partial_recovery: bool = False
    has_shared_files: bool = False
    """Whether workers take files from a queue; else each generates its own batches."""
    options: dict[str, Any] = field(default_factory=dict)
    """Additional options of the run."""
    num_ps: int = 2
    num_workers: int = 2
    must: str = "every example once"


CLUSTER_SCENARIOS = (
    ClusterScenario(name="all go back"),
    ClusterScenario(
        name="all go back, files of a queue",
        has_shared_files=True,
        num_workers=3,
        options={"embedding_prefetch_capacity": 2, "enable_embedding_postpush": True},
    ),
    ClusterScenario(name="servers restore themselves", partial_recovery=True, must="all but what the job calls lost"),
    ClusterScenario(
        name="servers restore themselves, read ahead",
        partial_recovery=True,
        num_ps=3,
        options={"embedding_prefetch_capacity": 2, "enable_embedding_postpush": True},
        must="all but what the job calls lost",
    ),
)


@dataclass(slots=True, kw_only=True)
class ClusterFault:
    """A fault of a process, and the recovery of the job."""

    kind: str
    role: str
    inside_save: bool
    seconds: float
    """Duration of the fault; 0 for a kill."""
    recovery_seconds: float = 0.0
    """From its end until every worker has made a step, or has ended."""


@dataclass(slots=True)
class ClusterTrial:
    """One job, and its results."""

    scenario: ClusterScenario
    seed: int
    faults: list[ClusterFault] = field(default_factory=list)
    lost: Lost = field(default_factory=dict)
    """Updates that rows have lost, as workers reported."""
    problems: list[str] = field(default_factory=list)
    has_cuts: bool = True
    """Whether the machine allows networks that can be cut; else processes are paused instead."""

    @property
    def is_good(self) -> bool:
        """Whether every lost update was reported, and none counted twice."""
        return not self.problems


def run_cluster_trial(
    scenario: ClusterScenario, *, num_faults: int, seed: int, longest_seconds: float, folder: Path | None = None
) -> ClusterTrial:
    """Runs a job with faults to its end, and checks it. The caller must have one thread.

    Args:
        scenario: Setup of the job.
        num_faults: Number of faults, one after another.
        seed: Seed of the faults and of the data.
        longest_seconds: Time without a step of any worker after which the job counts as hung.
        folder: Folder of the model and the logs, which is kept; None: a temporary one.
    """
    trial = ClusterTrial(scenario, seed)
    if folder is not None:
        _Job(trial, folder, longest_seconds).run(num_faults)
        return trial
    with tempfile.TemporaryDirectory(prefix="monolith-cluster-") as own:
        _Job(trial, Path(own), longest_seconds).run(num_faults)
    return trial


class _Hang(Exception):  # noqa: N818 - never leaves this module
    """No worker made a step for too long, or a process failed."""


class _Job:
    """The processes of one trial."""

    def __init__(self, trial: ClusterTrial, folder: Path, longest_seconds: float) -> None:
        self._trial = trial
        self._scenario = trial.scenario
        self._draw = random.Random(f"{trial.seed} {trial.scenario.name}")  # noqa: S311 - repeatable times, not secrets
        self._folder = folder
        self._longest = longest_seconds
        self._model_dir = folder / "model"
        self._limit = BatchLimit()
        self._input = ClusterInput(seed=trial.seed, num_workers=self._scenario.num_workers)
        self._roles = [
            *(Role("ps", index) for index in range(self._scenario.num_ps)),
            *(Role("worker", index) for index in range(self._scenario.num_workers)),
        ]
        self._options: dict[str, Any] = {}
        self._network: Network | None = None
        self._processes: dict[Role, Child] = {}
        self._lives: Counter[Role] = Counter()
        self._ended: set[Role] = set()

    def run(self, num_faults: int) -> None:
        """Starts the job, injects faults, waits for its end and checks it."""
        self._prepare(num_faults)
        import_what_torch_puts_off()
        try:
            for role in self._roles:
                self._start(role)
            self._await_steps(self._workers())
            for number in range(num_faults):
                self._befall(_KINDS[number % len(_KINDS)])
            self._limit.set(1 << 62)
            self._wait(lambda: len(self._ended) == len(self._roles), "the job did not end")
        except _Hang as hang:
            self._trial.problems.append(str(hang))
            self._dump_stacks()
        finally:
            for child in self._processes.values():
                child.close()
        self._trial.lost, lost_dense = _lost_updates(self._folder)
        if self._trial.is_good:
            self._judge(lost_dense)

    def _prepare(self, num_faults: int) -> None:
        scenario = self._scenario
        places = (num_faults + 1) * (2 * _PLACES_PER_FAULT + _MOST_AHEAD + _MOST_PLACES_FOR_SAVE)
        self._input = ClusterInput(seed=self._trial.seed, num_workers=scenario.num_workers, num_batches=places)
        params: dict[str, Any] = {"counted": asdict(self._input)}
        options = {
            "num_ps": scenario.num_ps,
            "num_workers": scenario.num_workers,
            "model_dir": str(self._model_dir),
            "discovery_type": ServiceDiscoveryType.HOST,
            "discovery_dir": str(self._folder / "discovery"),
            "save_checkpoints_secs": 1,
            "partial_recovery": scenario.partial_recovery,
            "recovery_interval_seconds": 0.5,
            "retry_wait_in_secs": 0,
            "serve_controller": False,  # a killed chief would not remove its socket
            **scenario.options,
        }
        if scenario.has_shared_files:
            files = self._folder / "files"
            files.mkdir()
            self._input.write(files, batches_per_file=10)
            params["folder"] = str(files)
            options["enable_dynamic_sharding"] = True
        self._options = options | {"params_override": json.dumps(params)}
        self._limit.set(_MOST_AHEAD)
        try:
            self._network = Network(len(self._roles))
        except (PermissionError, OSError) as refused:
            sys.stderr.write(f"no network can be cut here, processes are paused instead: {refused}\n")
            self._trial.has_cuts = False

    # Processes

    def _workers(self) -> list[Role]:
        return [role for role in self._roles if role.kind == "worker" and role not in self._ended]

    def _place(self, role: Role) -> int:
        return self._roles.index(role)

    def _start(self, role: Role) -> None:
        self._lives[role] += 1
        address = "127.0.0.1" if self._network is None else self._network.address(self._place(role))
        log = self._folder / f"{role.kind}-{role.index}.log"
        options = self._options | {"server_type": role.kind, "index": role.index, "host": address}
        work = partial(_run_role, options, log, self._limit, partial(self._enter, role))
        self._processes[role] = Child(work)

    def _enter(self, role: Role) -> None:
        """Enters the network namespace; runs in the child."""
        if self._network is not None:
            self._network.enter(self._place(role))

    def _look(self) -> None:
        """Restarts processes that have ended and are to be restarted.

        Raises:
            _Hang: a process has failed.
        """
        for role, child in list(self._processes.items()):
            if role in self._ended or not child.has_ended():
                continue
            status = child.told().get("result", {}).get("status")
            child.close()
            del self._processes[role]
            if status in {None, _START_AGAIN}:
                self._start(role)
                continue
            self._ended.add(role)
            if status != 0:
                raise _Hang(f"{role} ended with status {status}: {self._last_words(role)}")

    def _wait(self, is_over: Callable[[], bool], what: str) -> None:
        told, since = self._told_places(), time.monotonic()
        while not is_over():
            self._look()
            time.sleep(_POLL_SECONDS)
            if (now := self._told_places()) != told:
                told, since = now, time.monotonic()
            if time.monotonic() - since > self._longest:
                raise _Hang(f"{what}: no step for {self._longest:g} s; ended: {sorted(map(str, self._ended))}")

    def _told_places(self) -> list[tuple[int, int]]:
        """Returns the incarnation of each worker, and its last reported position."""
        return [
            (self._lives[role], child.told().get("place", -1))
            for role, child in self._processes.items()
            if role.kind == "worker" and role not in self._ended
        ]

    def _await_steps(self, workers: Sequence[Role]) -> None:
        """Waits until each worker has made a step from now on, or has ended."""
        before = {role: self._heard(role) for role in workers}

        def has_stepped(role: Role) -> bool:
            if role in self._ended:
                return True
            (life, steps), (life_before, steps_before) = self._heard(role), before[role]
            # The current step may end whatever has happened, but not the next one.
            return steps >= (2 if life > life_before else steps_before + 2)

        def have_stepped() -> bool:
            return all(has_stepped(role) for role in workers)

        self._wait(have_stepped, f"after {self._last_fault()}")

    def _heard(self, role: Role) -> tuple[int, int]:
        """Returns the incarnation of a worker, and the steps begun in it."""
        return self._lives[role], self._processes[role].told().get("steps", 0)

    # Faults

    def _befall(self, kind: FaultKind) -> None:
        due = self._furthest() + _PLACES_PER_FAULT
        self._limit.set(due + _MOST_AHEAD)
        self._wait(lambda: self._furthest() >= due or not self._workers(), f"before place {due}")
        inside = self._draw.random() < _SHARE_IN_SAVES and self._await_save(due + _MOST_AHEAD)
        time.sleep(self._draw.uniform(0.0, _MOST_DELAY_SECONDS))
        role = self._draw.choice([role for role in self._roles if role not in self._ended])
        self._look()
        seconds = 0.0 if kind == "kill" else self._draw.choice((0.2, 1.0, 1.0, 3.0, _LEASE_SECONDS + 2.0))
        fault = ClusterFault(kind=kind, role=str(role), inside_save=inside, seconds=seconds)
        self._trial.faults.append(fault)
        sys.stderr.write(f"{len(self._trial.faults)}: {kind} {role}, {seconds:g} s{' in a save' if inside else ''}\n")
        if kind == "kill":
            self._processes[role].kill()
        elif kind == "cut" and self._network is not None:
            self._cut(role, seconds)
        else:
            self._processes[role].send(signal.SIGSTOP)
            self._let_pass(seconds)
            self._processes[role].send(signal.SIGCONT)
        begun = time.monotonic()
        # The positions up to the next fault: enough that every worker can make a step.
        self._limit.set(self._furthest() + _PLACES_PER_FAULT + _MOST_AHEAD)
        self._await_steps(self._workers())
        fault.recovery_seconds = time.monotonic() - begun

    def _cut(self, role: Role, seconds: float) -> None:
        """Disconnects a process from all others, or from one of them."""
        assert self._network is not None
        place = self._place(role)
        other = self._draw.choice([None, *(each for each in range(len(self._roles)) if each != place)])
        self._network.cut(place, other)
        try:
            self._let_pass(seconds)
        finally:
            self._network.mend(place, other)

    def _let_pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._look()
            time.sleep(_POLL_SECONDS)

    def _await_save(self, limit: int) -> bool:
        """Lets workers step until the chief saves; returns False if it did not."""
        for place in range(_MOST_PLACES_FOR_SAVE):
            self._limit.set(limit + place)
            end = time.monotonic() + _LONGEST_WAIT_FOR_SAVE / _MOST_PLACES_FOR_SAVE
            while time.monotonic() < end:
                if is_inside_save(self._model_dir):
                    return True
                self._look()
                time.sleep(_POLL_SECONDS)
        return False

    def _furthest(self) -> int:
        return max((child.told().get("place", -1) for child in self._processes.values()), default=-1)

    def _last_fault(self) -> str:
        if not self._trial.faults:
            return "the start"
        last = self._trial.faults[-1]
        return f"fault {len(self._trial.faults)}, {last.kind} of {last.role} for {last.seconds:g} s"

    # The end

    def _dump_stacks(self) -> None:
        for role, child in self._processes.items():
            if role not in self._ended:
                child.send(signal.SIGCONT)
                child.send(signal.SIGUSR1)
        time.sleep(0.5)
        sys.stderr.write(f"logs and stacks: {self._folder}\n")

    def _last_words(self, role: Role) -> str:
        lines = (self._folder / f"{role.kind}-{role.index}.log").read_text(encoding="utf-8").splitlines()
        return " | ".join(lines[-3:])

    def _judge(self, lost_dense: Lost) -> None:
        params = ClusterCountingTask.params()
        params.counted = asdict(self._input)
        task = ClusterCountingTask(params)
        load(task.make_model(), self._model_dir)
        self._trial.problems += task.problems(self._trial.lost, lost_dense, num_ps=self._scenario.num_ps)[:5]


def _run_role(
    options: dict[str, Any], log: Path, limit: BatchLimit, enter: Callable[[], None], tell: Tell
) -> dict[str, Any]:
    """Runs a role until it ends; in the child."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    enter()
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    faulthandler.register(signal.SIGUSR1, file=out, all_threads=True)
    torch.set_num_threads(1)
    Disturbed.limit, Disturbed.tell = limit, tell
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    try:
        distributed_train(
            RunnerConfig(**options), HostServiceDiscovery(options["discovery_dir"]), ClusterCountingTask.params()
        )
    except OpError:
        logging.getLogger(__name__).exception("the role has failed")
        return {"status": _START_AGAIN}
    return {"status": 0}


_LOST = re.compile(r"worker (\d+): server (\d+) recovered without (\d+) of its updates( of dense weights)?")


def _lost_updates(folder: Path) -> tuple[Lost, Lost]:
    """Returns the lost updates that workers have logged: of rows, and of dense weights."""
    found: tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]] = (Counter(), Counter())
    for log in folder.glob("worker-*.log"):
        for match in _LOST.finditer(log.read_text(encoding="utf-8", errors="replace")):
            found[bool(match[4])][int(match[1]), int(match[2])] += int(match[3])
    return dict(found[0]), dict(found[1])
