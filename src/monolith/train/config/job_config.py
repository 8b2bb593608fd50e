"""Config of a job of several processes, beyond that of its trainers: standbys and timeouts."""

from __future__ import annotations

from dataclasses import field

from monolith.config import Config, config, require_at_least

__all__ = ["JobConfig"]

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
