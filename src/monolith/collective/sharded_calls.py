"""Calls of a store that all ranks make together, or follow: one method for each kind, run in the line of every rank."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from monolith.collective.lock_step import Call, LockStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.collective.line import Line
    from monolith.collective.lock_step import Agreed
    from monolith.collective.wire import Wire

__all__ = ["RankCalls"]


class RankCalls:
    """The calls of one line by their kinds. Any thread may call it.

    A method gets the arguments, which are the same on all ranks, and what only this rank has (None at one that
    follows). It makes the same exchanges on all ranks, and what it raises it raises on all (`RaisedByAllError`).
    """

    def __init__(self, line: Line, name: str) -> None:
        self.lock_step = LockStep(line)
        self._name = name
        self._methods: dict[str, Callable[[bytes, Any], Any]] = {}

    @property
    def wire(self) -> Wire:
        """For the methods."""
        return self.lock_step.line.wire

    def define(self, kind: str, method: Callable[[bytes, Any], Any]) -> None:
        """What is done in the calls of a kind."""
        self._methods[kind] = method

    def run(self, kind: str, arguments: bytes = b"", own: Any = None) -> Any:
        """Makes a call, and returns what it returns."""
        method = self._methods[kind]
        return self.lock_step.run(
            Call(f"{kind} {self._name}", arguments=arguments), work=lambda _: method(arguments, own)
        )

    def followers(self) -> dict[str, Callable[[Agreed, bytes], object]]:
        """What an idle rank does in the calls of the others, for `LockStep.follow`."""
        return {f"{kind} {self._name}": partial(_follow, method) for kind, method in self._methods.items()}


def _follow(method: Callable[[bytes, Any], Any], _: Agreed, arguments: bytes) -> object:
    return method(arguments, None)
