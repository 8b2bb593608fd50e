"""Calls of a store that all ranks make together, or follow: one method per kind, run in the line of every rank."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from monolith.collective.lock_step import Call, LockStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.collective.lock_step import Agreed
    from monolith.collective.serial_executor import SerialExecutor
    from monolith.collective.wire import Wire

__all__ = ["RankCalls"]


class RankCalls:
    """The calls of one line by their kinds. Thread-safe.

    A method gets the arguments, which are the same on all ranks, and the data of this rank (None at a rank that
    follows). It makes the same exchanges on all ranks, and raises its errors on all of them (`RaisedByAllError`).
    """

    def __init__(self, line: SerialExecutor, name: str) -> None:
        self.lock_step = LockStep(line)
        self._name = name
        self._methods: dict[str, Callable[[bytes, Any], Any]] = {}

    @property
    def wire(self) -> Wire:
        """Wire of the line, for the methods."""
        return self.lock_step.line.wire

    def define(self, kind: str, method: Callable[[bytes, Any], Any]) -> None:
        """Registers the method of a kind of call."""
        self._methods[kind] = method

    def run(self, kind: str, arguments: bytes = b"", own: Any = None) -> Any:
        """Makes a call, and returns its result."""
        method = self._methods[kind]
        return self.lock_step.run(
            Call(f"{kind} {self._name}", arguments=arguments), work=lambda _: method(arguments, own)
        )

    def followers(self) -> dict[str, Callable[[Agreed, bytes], object]]:
        """Returns the handlers of an idle rank for the calls of the other ranks, for `LockStep.follow`."""
        return {f"{kind} {self._name}": partial(_follow, method) for kind, method in self._methods.items()}


def _follow(method: Callable[[bytes, Any], Any], _: Agreed, arguments: bytes) -> object:
    return method(arguments, None)
