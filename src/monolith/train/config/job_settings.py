"""Overrides of custom programs for how a job is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cluster.manager import Incomplete

__all__ = ["JobProgramConfig"]


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
