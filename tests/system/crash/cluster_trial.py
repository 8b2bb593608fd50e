"""A job of real processes that are killed, stopped and disconnected at random times, and checks of its counts."""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from monolith.checkpoint import load
from monolith.cluster.discovery import HostServiceDiscovery, ServiceDiscoveryType
from monolith.errors import OpError
from monolith.launch.role import Role
from monolith.train import RunnerConfig
from monolith.train.roles.distributed_runner import distributed_train
from system.crash.cluster_task import ClusterCountingTask, ClusterInput, Disturbed
from system.crash.network import Network
from system.crash.processes import BatchLimit, Child, Tell, begin_role, import_what_torch_puts_off
from system.crash.trial import Fault, StuckError, Topology, Trial, draw_for, is_inside_save, run_trial

_BATCHES_PER_FAULT = 12
"""Batches of each worker between two faults."""
_MOST_AHEAD = 25
"""Batches that a worker may be beyond the next fault, so that a fast machine does not outrun the faults."""
_SHARE_IN_SAVES = 0.4
_MOST_DELAY_SECONDS = 0.05
_LONGEST_WAIT_FOR_SAVE = 3.0
_MOST_BATCHES_FOR_SAVE = 60
"""Batches of each worker while the trial waits for a save."""
_LEASE_SECONDS = 10.0
_START_AGAIN = 75

Lost = dict[tuple[int, int], int]
"""Worker and server -> number of updates."""
_KINDS = ("kill", "pause", "kill", "cut")
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


def run_cluster_trial(
    scenario: ClusterScenario, *, num_faults: int, seed: int, longest_seconds: float, folder: Path | None = None
) -> Trial[ClusterScenario]:
    """Runs a job with faults to its end, and checks it. The caller must have one thread.

    Facts of the trial:

    - ``lost``: number of updates that rows have lost, as workers reported
    - ``has_cuts``: whether the machine allows networks that can be cut; else processes are paused instead

    Args:
        scenario: Setup of the job.
        num_faults: Number of faults, one after another.
        seed: Seed of the faults and of the data.
        longest_seconds: Time without a step of any worker after which the job counts as hung.
        folder: Folder of the model and the logs, which is kept; None: a temporary one.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="monolith-cluster-") as own:
            return run_cluster_trial(
                scenario, num_faults=num_faults, seed=seed, longest_seconds=longest_seconds, folder=Path(own)
            )
    trial = Trial(scenario, seed, facts={"lost": 0, "has_cuts": True})
    job = _Job(trial, folder, num_faults=num_faults, longest_seconds=longest_seconds)
    run_trial(job, trial, num_faults=num_faults)
    trial.facts["lost"] = sum(_lost_updates(folder)[0].values())
    return trial


class _Job(Topology[ClusterScenario]):
    def __init__(self, trial: Trial[ClusterScenario], folder: Path, *, num_faults: int, longest_seconds: float) -> None:
        super().__init__(trial, draw_for(trial.seed, trial.scenario.name), longest_seconds)
        self._folder = folder
        self._model_dir = folder / "model"
        self._limit = BatchLimit()
        batches = (num_faults + 1) * (2 * _BATCHES_PER_FAULT + _MOST_AHEAD + _MOST_BATCHES_FOR_SAVE)
        self._input = ClusterInput(seed=trial.seed, num_workers=self._scenario.num_workers, num_batches=batches)
        self._roles = [
            *(Role("ps", index) for index in range(self._scenario.num_ps)),
            *(Role("worker", index) for index in range(self._scenario.num_workers)),
        ]
        self._options: dict[str, Any] = {}
        self._network: Network | None = None
        self._processes: dict[Role, Child] = {}
        self._lives: Counter[Role] = Counter()
        self._ended: set[Role] = set()
        self._target: Role = self._roles[0]
        """Of the current fault."""

    def start(self) -> None:
        """Starts all processes, and waits for a step of every worker."""
        self._prepare()
        import_what_torch_puts_off()
        for role in self._roles:
            self._start(role)
        self._await_steps()

    def _prepare(self) -> None:
        scenario = self._scenario
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
            self._trial.facts["has_cuts"] = False

    # Processes

    def _workers(self) -> list[Role]:
        return [role for role in self._roles if role.kind == "worker" and role not in self._ended]

    def _start(self, role: Role) -> None:
        self._lives[role] += 1
        number = self._roles.index(role)
        address = "127.0.0.1" if self._network is None else self._network.address(number)
        options = self._options | {"server_type": role.kind, "index": role.index, "host": address}

        def enter() -> None:
            if self._network is not None:
                self._network.enter(number)

        self._processes[role] = Child(partial(_run_role, options, self._log(role), self._limit, enter))

    def _log(self, role: Role) -> Path:
        return self._folder / f"{role.kind}-{role.index}.log"

    def look(self) -> None:
        """Restarts processes that have ended and are to be restarted.

        Raises:
            StuckError: a process has failed.
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
                raise StuckError(f"{role} ended with status {status}: {self._last_words(role)}")

    def progress(self) -> object:
        """Returns the incarnation of each worker, and its last reported position."""
        return [(self._lives[role], self._processes[role].told().get("place", -1)) for role in self._workers()]

    def state(self) -> str:
        """Returns the processes that have ended."""
        return f"ended: {sorted(map(str, self._ended))}"

    def _await_steps(self) -> None:
        """Waits until each worker has made a step from now on, or has ended."""
        before = {role: self._heard(role) for role in self._workers()}

        def has_stepped(role: Role) -> bool:
            if role in self._ended:
                return True
            (life, steps), (life_before, steps_before) = self._heard(role), before[role]
            # The current step may end whatever has happened, but not the next one.
            return steps >= (2 if life > life_before else steps_before + 2)

        self.wait(lambda: all(map(has_stepped, before)), f"after {self._last_fault()}")

    def _heard(self, role: Role) -> tuple[int, int]:
        """Returns the incarnation of a worker, and the steps begun in it."""
        return self._lives[role], self._processes[role].told().get("steps", 0)

    # Faults

    def due(self, number: int) -> Fault:
        """Waits for some batches, and perhaps for a save."""
        due = self._furthest() + _BATCHES_PER_FAULT
        self._limit.set(due + _MOST_AHEAD)
        self.wait(lambda: self._furthest() >= due or not self._workers(), f"before batch {due}")
        inside = self._draw.random() < _SHARE_IN_SAVES and self._await_save(due + _MOST_AHEAD)
        time.sleep(self._draw.uniform(0.0, _MOST_DELAY_SECONDS))
        self._target = self._draw.choice([role for role in self._roles if role not in self._ended])
        self.look()
        kind = _KINDS[number % len(_KINDS)]
        seconds = 0.0 if kind == "kill" else self._draw.choice((0.2, 1.0, 1.0, 3.0, _LEASE_SECONDS + 2.0))
        return Fault(kind=kind, role=str(self._target), inside_save=inside, seconds=seconds)

    def inject(self, fault: Fault) -> None:
        """Kills, disconnects or stops a process."""
        where = " in a save" if fault.inside_save else ""
        sys.stderr.write(f"{len(self._trial.faults)}: {fault.kind} {fault.role}, {fault.seconds:g} s{where}\n")
        if fault.kind == "kill":
            self._processes[self._target].kill()
        elif fault.kind == "cut" and self._network is not None:
            self._cut(self._network, fault.seconds)
        else:
            self._processes[self._target].send(signal.SIGSTOP)
            self.let_pass(fault.seconds)
            self._processes[self._target].send(signal.SIGCONT)

    def _cut(self, network: Network, seconds: float) -> None:
        """Disconnects a process from all others, or from one of them."""
        number = self._roles.index(self._target)
        other = self._draw.choice([None, *(each for each in range(len(self._roles)) if each != number)])
        network.cut(number, other)
        try:
            self.let_pass(seconds)
        finally:
            network.mend(number, other)

    def recover(self, fault: Fault) -> float:
        """Waits for a step of every worker."""
        # The positions up to the next fault: enough that every worker can make a step.
        self._limit.set(self._furthest() + _BATCHES_PER_FAULT + _MOST_AHEAD)
        self._await_steps()
        return time.monotonic()

    def _await_save(self, limit: int) -> bool:
        """Lets workers step until the chief saves; returns False if it did not."""
        for batch in range(_MOST_BATCHES_FOR_SAVE):
            self._limit.set(limit + batch)
            end = time.monotonic() + _LONGEST_WAIT_FOR_SAVE / _MOST_BATCHES_FOR_SAVE
            while time.monotonic() < end:
                if is_inside_save(self._model_dir):
                    return True
                self.look()
                time.sleep(self._poll_seconds)
        return False

    def _furthest(self) -> int:
        return max((child.told().get("place", -1) for child in self._processes.values()), default=-1)

    def _last_fault(self) -> str:
        if not self._trial.faults:
            return "the start"
        last = self._trial.faults[-1]
        return f"fault {len(self._trial.faults)}, {last.kind} of {last.role} for {last.seconds:g} s"

    # The end

    def finish(self) -> None:
        """Lets workers read the rest of their input."""
        self._limit.set(1 << 62)
        self.wait(lambda: len(self._ended) == len(self._roles), "the end of the job")

    def dump(self) -> None:
        """Makes every process write the stacks of its threads to its log."""
        for role, child in self._processes.items():
            if role not in self._ended:
                child.send(signal.SIGCONT)
                child.send(signal.SIGUSR1)
        time.sleep(0.5)
        sys.stderr.write(f"logs and stacks: {self._folder}\n")

    def close(self) -> None:
        """Kills running processes."""
        for child in self._processes.values():
            child.close()

    def _last_words(self, role: Role) -> str:
        return " | ".join(self._log(role).read_text(encoding="utf-8").splitlines()[-3:])

    def judge(self) -> list[str]:
        """Compares the counts of the last checkpoint with the input."""
        task = ClusterCountingTask.counting(self._input)
        load(task.make_model(), self._model_dir)
        return task.problems(*_lost_updates(self._folder), num_ps=self._scenario.num_ps)[:5]


def _run_role(
    options: dict[str, Any], log: Path, limit: BatchLimit, enter: Callable[[], None], tell: Tell
) -> dict[str, Any]:
    """Runs a role until it ends; in the child."""
    enter()
    begin_role(log)
    Disturbed.limit, Disturbed.tell = limit, tell
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
