"""Processes that this one did not start, identified so that a reused process id is noticed."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal

__all__ = ["KnownProcess", "descendants_of"]

_STATE, _BIRTH = 0, 19
"""Field indices in /proc/PID/stat, counted after the name of the process."""
_ENDED = frozenset({"Z", "X"})


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """A process of this machine, which may have ended."""

    pid: int
    birth: str
    """Start time, in clock ticks of the machine."""

    @classmethod
    def of(cls, pid: int) -> KnownProcess | None:
        """Returns the process that has this id now, or None."""
        fields = _stat(pid)
        return None if fields is None else cls(pid, fields[_BIRTH])

    def send(self, number: signal.Signals) -> None:
        """Sends a signal. Does nothing if the process has ended, even if another process has its id by now."""
        if self.is_there():
            with suppress(OSError):
                os.kill(self.pid, number)

    def is_there(self) -> bool:
        """Returns whether the process runs or is stopped; False for a zombie."""
        fields = _stat(self.pid)
        return fields is not None and fields[_BIRTH] == self.birth and fields[_STATE] not in _ENDED


def descendants_of(pid: int) -> list[KnownProcess]:
    """Returns the children of a process, their children, and so on."""
    children: list[int] = []
    with suppress(OSError):  # the process, or a thread of it, has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text(encoding="ascii").split())
    known = [each for child in children if (each := KnownProcess.of(child)) is not None]
    return known + [each for child in children for each in descendants_of(child)]


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
