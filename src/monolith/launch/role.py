"""The role of a process of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Role", "RoleKind"]

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
