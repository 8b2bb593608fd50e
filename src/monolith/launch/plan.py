"""The plan of a job: its roles, the command of each, and the restart policy."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monolith.launch.role import Resources, RestartConfig, Role, RoleKind
from monolith.train import RunnerConfig
from monolith.train.compat import Origin
from monolith.train.parameters import flags

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_THE_LAUNCHER = frozenset({"task", "server_type", "index", "is_local"})
"""Options that the command of a role specifies itself."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """The processes of a job. All launchers start from a plan, so that a job is the same wherever it runs.

    >>> plan = LaunchPlan(task="ranker:Ranker", options=RunnerConfig(num_ps=1, num_workers=2, model_dir="/m"))
    >>> [str(role) for role in plan.roles]
    ['ps 0', 'worker 0', 'worker 1']
    >>> plan.arguments(Role("worker", 1))
    ['worker', 'ranker:Ranker', '--num_ps', '1', '--num_workers', '2', '--model_dir', '/m', '--index', '1']
    """

    task: str
    """``module:Class`` of the task, or its registered name."""
    options: RunnerConfig
    """Options of the run; those that are set are passed to every role."""
    max_steps: int | None = None
    """Global step at which the job ends; None: as the task specifies, or at the end of the data."""
    deterministic: bool = False
    """Whether every role fixes its seed, and takes the time from the data."""
    program: tuple[str, ...] = (sys.executable, "-m", "monolith")
    """Program whose subcommands are the roles."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of every role, in addition to those of the launcher."""
    restarts: RestartConfig = field(default_factory=RestartConfig)
    """When a role that died is restarted."""
    resources: Mapping[RoleKind, Resources] = field(default_factory=dict)
    """Resources of a role by kind; see `resources_of`."""

    def __post_init__(self) -> None:
        """Rejects jobs that cannot run.

        Raises:
            ValueError: names the option and the expected value.
        """
        options = self.options
        if not options.model_dir:
            raise ValueError("--model_dir: set the directory of the model, such as --model_dir /tmp/my_model")
        if options.num_workers < 1:
            raise ValueError(f"--num_workers: a job has 1 worker or more, got {options.num_workers}")
        if options.num_ps < 1:
            raise ValueError(
                f"--num_ps: workers of several processes share rows on parameter servers, got {options.num_ps} of them"
                f" for {options.num_workers} workers; give --num_ps 1 or more"
            )
        if options.enable_partial_sync_training:
            raise ValueError(
                "--enable_partial_sync_training: torchrun or mpirun starts the workers of such a job, and no launcher"
                " of this package does; start servers by monolith ps, and workers by torchrun"
                " (docs/how-to/torchrun.md)"
            )
        for name in ("num_extra_ps", "num_redundant_ps"):
            if getattr(options, name) < 0:
                raise ValueError(f"--{name}: must be >= 0, got {getattr(options, name)}")

    @property
    def roles(self) -> tuple[Role, ...]:
        """All processes, servers first."""
        return (*self.roles_of("ps"), *self.roles_of("worker"))

    def roles_of(self, kind: RoleKind) -> tuple[Role, ...]:
        """Returns the processes of a kind."""
        options = self.options
        servers = options.num_ps + options.num_extra_ps + options.num_redundant_ps
        return tuple(Role(kind, index) for index in range(servers if kind == "ps" else options.num_workers))

    def resources_of(self, kind: RoleKind) -> Resources:
        """Returns the resources of each process of a kind; by default one processor for each of torch's threads."""
        if kind in self.resources:
            return self.resources[kind]
        name = "intra_op_parallelism_threads"
        threads = getattr(self.options, name) if self.options.is_set(name) else 1
        return Resources(cpus=float(max(threads, 1)))

    def arguments(self, role: Role) -> list[str]:
        """Returns the command line of a role, without the program."""
        return [*self.arguments_of(role.kind), "--index", str(role.index)]

    def arguments_of(self, kind: RoleKind) -> list[str]:
        """Returns the command line of all roles of a kind, where the scheduler adds the index."""
        said = [str(kind), self.task]
        for name in flags.flag_names(RunnerConfig):
            if name not in _OF_THE_LAUNCHER and self.options.is_set(name):
                said += [f"--{name}", text_of(getattr(self.options, name))]
        if self.max_steps is not None:
            said += ["--max_steps", str(self.max_steps)]
        return said + (["--deterministic"] if self.deterministic else [])

    def command(self, role: Role) -> list[str]:
        """Returns the command of a role."""
        return [*self.program, *self.arguments(role)]

    def with_options(self, values: Mapping[str, Any]) -> LaunchPlan:
        """Returns the same job with options of its launcher, for those that are not set."""
        options = RunnerConfig().update(
            {name: value for name, value, origin in self.options.describe() if origin is not Origin.DEFAULT},
            Origin.FLAG,
        )
        options.update({name: value for name, value in values.items() if not options.is_set(name)}, Origin.FLAG)
        return dataclasses.replace(self, options=options)


def text_of(value: Any) -> str:
    """Returns the value of an option as the text of a flag.

    >>> text_of(True), text_of(None), text_of({"a": "b"})
    ('true', 'none', '{"a": "b"}')
    """
    if isinstance(value, bool | None):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return value.name.lower()
    return json.dumps(value) if isinstance(value, dict) else str(value)
