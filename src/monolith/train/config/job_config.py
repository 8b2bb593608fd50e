"""Configs of runs of several processes, beyond those of their trainers: jobs with servers, and synchronous ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monolith.config import Config, config, require_at_least, require_positive
from monolith.files import is_name, join

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cluster import Incomplete

MOST_RETRIES_OF_PARTIAL_RECOVERY = 6
"""Default number of times that a job with partial recovery continues with another cluster."""


@config
class JobConfig(Config):
    """How the processes of a job discover each other and recover; not used by a run of one process."""

    uuid: str = ""
    """Name of the run, under which its processes find each other."""
    num_extra_ps: int = 0
    """Servers beyond those that are used; the slowest are sent away after a measurement."""
    num_redundant_ps: int = 0
    """Servers beyond those that are used, which stand by."""
    host: str | None = None
    """Interface to listen on and to advertise; None: that of `cluster.get_local_host`."""
    token_file: str | None = field(default=None, repr=False)
    """File with a secret that all processes of the job share."""
    partial_recovery: bool = False
    """A restarted server restores itself, and the others keep their state; False: all roll back to the last checkpoint
    together."""
    recovery_interval_seconds: float = 10.0
    """Seconds between a server's writes of its changes, for partial recovery; 0: never."""
    recovery_dir: str | None = None
    """Directory of these writes; None: ``recovery`` in the model directory."""
    memory_limit_bytes: int = 1 << 62
    """Resident memory of a server above which training stops until it is below again."""
    chief_timeout_seconds: float = 1800.0
    """Seconds that the chief waits at its end for workers that still train."""
    session_creation_timeout_seconds: float = 7200.0
    """Seconds that a worker waits for servers and chief until it can train."""
    operation_timeout_seconds: float | None = None
    """Timeout of one call to a server; None: a minute, after which the server is looked up again."""
    max_retry_times: int = 0
    """How often a job may continue with other servers than before; 0: six times with partial recovery, else never."""
    retry_wait_seconds: float = 30.0
    """Pause before a new attempt."""
    slow_start_steps: int = 0
    """Worker i begins when the job has made int(this * ln(1 + i)) steps."""
    max_slow_start_wait_minutes: float = 10.0
    """Longest wait of that kind."""
    max_pending_seconds_for_barrier: float = 30.0
    """Seconds that a save waits for the workers to reach the barrier."""
    barrier_at_dense_saves: bool = False
    """Whether workers wait at the barrier for checkpoints without tables, too."""
    keep_servers: bool = False
    """Let the servers live on when the job has ended, as runs on live traffic do."""
    force_shutdown_ps: bool = False
    """End them also then."""

    def __post_init__(self) -> None:
        require_at_least(self, 0, "num_extra_ps", "num_redundant_ps", "max_retry_times", "slow_start_steps")
        for name in (
            "recovery_interval_seconds",
            "chief_timeout_seconds",
            "session_creation_timeout_seconds",
            "retry_wait_seconds",
            "max_slow_start_wait_minutes",
            "max_pending_seconds_for_barrier",
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"JobConfig: {name} must be >= 0, got {getattr(self, name)}")
        if self.operation_timeout_seconds is not None and not self.operation_timeout_seconds > 0:
            raise ValueError(
                f"JobConfig: operation_timeout_seconds must be > 0 or None, got {self.operation_timeout_seconds}"
            )
        if self.memory_limit_bytes < 1:
            raise ValueError(f"JobConfig: memory_limit_bytes must be >= 1, got {self.memory_limit_bytes}")

    @property
    def most_retries(self) -> int:
        """Returns how often the cluster may change."""
        return self.max_retry_times or (MOST_RETRIES_OF_PARTIAL_RECOVERY if self.partial_recovery else 0)

    @property
    def ends_servers(self) -> bool:
        """Returns whether servers are stopped when training has ended."""
        return self.force_shutdown_ps or not self.keep_servers


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgramConfig:
    """Settings of a job in addition to the options of its command line."""

    query_failure_handler: Callable[[Incomplete], None] | None = None
    """Called between two polls for missing processes, instead of a sleep of five seconds; may raise."""
    benchmark_seconds: float = 120.0
    """Seconds that servers are measured, if there are extra ones."""
    shut_down_servers: bool = True
    """Whether the chief stops the servers with the job; False: their launcher does."""
    on_stop: Callable[[], None] | None = None
    """Called at the end if this process or its job was requested to stop before all data was trained, so that the
    launcher may restart it."""
    max_steps: int | None = None
    """The last global step; None: that of the task."""
    deterministic: bool = False
    """Take time from the data alone and begin with a fixed seed."""


@config
class SyncConfig(Config):
    """Every rank has a batch of its own for each step; rows are shared out among the ranks, dense weights are copies.

    All of it is the same on every rank.
    """

    combine: str = "sum"
    """How the gradients of a row of several ranks are combined: ``sum``, or ``mean`` over the ranks that had a batch,
    as dense gradients always are."""
    own_folders: str | None = None
    """The folder of the model directory in which each rank saves what it has into a directory of its own,
    ``index-<rank>``; empty: the model directory itself. None: all ranks save into one directory."""
    alltoall_metrics: bool = False
    """Whether rank 0 shows how ids and rows are spread over the ranks, in its log and in event files, as often as
    other records; a run of one exchanges nothing."""
    alltoall_metrics_slot: str | None = None
    """A table whose ids are counted there as ``<slot>_size``."""
    timeout_seconds: float = 1800.0
    """Timeout of calls between ranks; a rank that waits longer exits. In a program that has called
    `monolith.collective.init` itself, the timeout given there holds."""

    def __post_init__(self) -> None:
        require_positive(self, "timeout_seconds")
        if self.combine not in {"sum", "mean"}:
            raise ValueError(f"SyncConfig: combine must be 'sum' or 'mean', got {self.combine!r}")
        if self.alltoall_metrics_slot is not None and not self.alltoall_metrics:
            raise ValueError(
                f"SyncConfig: alltoall_metrics_slot={self.alltoall_metrics_slot!r} counts nothing without"
                " alltoall_metrics=True; set it, too"
            )
        if self.own_folders and not is_name(self.own_folders):
            raise ValueError(
                f"SyncConfig: own_folders must be the name of a folder, or empty, got {self.own_folders!r}"
            )

    def checkpoint_dir(self, model_dir: str) -> str:
        """Returns the directory of the checkpoints of the run, or of the directories of its ranks."""
        return join(model_dir, self.own_folders) if self.own_folders else model_dir
