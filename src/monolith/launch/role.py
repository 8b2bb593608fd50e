"""The role of a process of a job: its resources, its exit codes, and when it is restarted."""

from __future__ import annotations

import enum
import re
import signal
from dataclasses import dataclass
from typing import Literal, TypeAlias

from monolith.config import Config, config

RoleKind: TypeAlias = Literal["ps", "worker"]
"""Kind of role; also the name of its command."""


@dataclass(frozen=True, slots=True)
class Role:
    """A process of a job: a parameter server or a worker, by its number; worker 0 is the chief.

    >>> str(Role("ps", 1))
    'ps 1'
    """

    kind: RoleKind
    index: int

    def __str__(self) -> str:
        return f"{self.kind} {self.index}"


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@config
class Resources(Config):
    """Guaranteed resources of each process of a kind."""

    cpus: float = 1.0
    """Processors; fractions are allowed."""
    memory_bytes: int = 4 * 2**30
    """Memory; a process that uses more may be killed by its scheduler."""

    def __post_init__(self) -> None:
        if not self.cpus > 0:
            raise ValueError(f"resources: cpus must be > 0, got {self.cpus}")
        if self.memory_bytes < 1:
            raise ValueError(f"resources: memory_bytes must be >= 1, got {self.memory_bytes}")


def bytes_of(text: str) -> int:
    """Parses a number of bytes in the notation of schedulers.

    >>> bytes_of("4Gi"), bytes_of("500M"), bytes_of("1024")
    (4294967296, 500000000, 1024)

    Raises:
        ValueError: It is not a number with one of their units.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?i?)b?", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"memory: expected a number of bytes such as 4Gi, 500M or 1073741824, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


DONE = 0
INTERRUPTED = 130
"""Stopped by a signal, everything saved."""
TRY_AGAIN = 75
"""EX_TEMPFAIL of sysexits.h: the role lost its number or its peers, and requests a restart."""


class Ending(enum.Enum):
    """How a role ended."""

    DONE = "done"
    STOPPED = "stopped"
    """Stopped on request: no error, and no restart."""
    DIED = "died"
    """The role is restarted."""
    FAILED = "failed"
    """An error that a restart would repeat: the job ends."""


def ending_of(exit_code: int) -> Ending:
    """Returns the meaning of an exit code; below 0 it is the number of the signal that ended the process."""
    if exit_code == DONE:
        return Ending.DONE
    if exit_code == INTERRUPTED:
        return Ending.STOPPED
    return Ending.DIED if exit_code < 0 or exit_code == TRY_AGAIN else Ending.FAILED


def told_ending(exit_code: int) -> str:
    """Describes an exit code.

    >>> told_ending(-9), told_ending(75), told_ending(1)
    ('was ended by SIGKILL', 'requested a restart (exit code 75)', 'failed (exit code 1)')
    """
    if exit_code < 0:
        known = {number.value: number.name for number in signal.Signals}
        return f"was ended by {known.get(-exit_code, f'signal {-exit_code}')}"
    words = {DONE: "is done", INTERRUPTED: "was stopped", TRY_AGAIN: "requested a restart"}
    return f"{words.get(exit_code, 'failed')} (exit code {exit_code})" if exit_code else words[DONE]


@config
class RestartConfig(Config):
    """When a role that died is restarted; each role counts separately."""

    limit: int = 10
    """Restarts in a row: one more death ends the job. 0: no restart."""
    first_pause_seconds: float = 1.0
    """Pause before the second restart in a row; the first one is immediate, and each further pause is twice as long."""
    longest_pause_seconds: float = 30.0
    """Maximum pause."""
    healthy_seconds: float = 60.0
    """A role that ran for this long is healthy: its next death is the first of a row."""

    def __post_init__(self) -> None:
        for name in ("limit", "first_pause_seconds", "longest_pause_seconds", "healthy_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"restarts: {name} must be >= 0, got {getattr(self, name)}")

    def pause_seconds(self, deaths: int) -> float:
        """Returns the pause after `deaths` deaths in a row, from 1.

        >>> [RestartConfig().pause_seconds(deaths) for deaths in (1, 2, 3, 4, 9)]
        [0.0, 1.0, 2.0, 4.0, 30.0]
        """
        if deaths <= 1:
            return 0.0
        return min(self.first_pause_seconds * 2.0 ** min(deaths - 2, 60), self.longest_pause_seconds)
