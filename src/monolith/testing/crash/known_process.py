"""Processes that somebody else has started, by what tells them from later ones that have their number."""

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
"""Places in /proc/PID/stat, behind the name of the process."""
_ENDED = frozenset({"Z", "X"})


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """A process of this machine, which may have ended."""

    pid: int
    birth: str
    """When it began, in ticks of the machine."""

    @classmethod
    def of(cls, pid: int) -> KnownProcess | None:
        """The one that has this number now; None: nobody."""
        fields = _stat(pid)
        return None if fields is None else cls(pid, fields[_BIRTH])

    def send(self, number: signal.Signals) -> None:
        """A signal; one that is gone gets none, nor does another process that has its number by now."""
        if self.is_there():
            with suppress(OSError):
                os.kill(self.pid, number)

    def is_there(self) -> bool:
        """Whether it runs, or is stopped; one that has ended and waits for its parent does not."""
        fields = _stat(self.pid)
        return fields is not None and fields[_BIRTH] == self.birth and fields[_STATE] not in _ENDED


def descendants_of(pid: int) -> list[KnownProcess]:
    """The children of a process, theirs, and so on."""
    children: list[int] = []
    with suppress(OSError):  # it, or a thread of it, has ended
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
