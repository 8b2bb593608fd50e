"""What a program of one's own changes of how a job is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cluster.manager import Incomplete

__all__ = ["JobSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Beside the options of a job, which its command line has."""

    query_failure_handler: Callable[[Incomplete], None] | None = None
    """Called between two looks for processes that are missing, instead of five seconds of sleep; may raise."""
    benchmark_seconds: float = 120.0
    """How long servers are measured, where there are extra ones."""
    shut_down_servers: bool = True
    """Whether the chief ends the servers with the job; False: whoever started them does."""
    on_stop: Callable[[], None] | None = None
    """Called in the end when this process, or its whole job, was told to stop before all was trained; whoever started
    it may want to start it again."""
    max_steps: int | None = None
    """The last global step; None: as the task says."""
    deterministic: bool = False
    """Take time from the data alone and begin with a fixed seed."""
