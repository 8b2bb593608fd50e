"""What the parts of a server tell whoever records it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from monolith.tables.local_history import LocalHistory

__all__ = ["NoRecording", "Recording"]


class Recording(Protocol):
    """Somebody who writes down what a server has. Any thread may call it, without a lock of the server's."""

    @property
    def is_on(self) -> bool:
        """Whether somebody does."""
        ...

    def follow(self, history: LocalHistory) -> None:
        """From now on a history keeps what changes."""
        ...

    def replacing(self, owner: str) -> AbstractContextManager[None]:
        """Around whatever replaces the state of an owner: what was written of it does not count from then on.

        Inside nothing is written. Rows do not count again before `resumed`: their clocks come after them.
        """
        ...

    def resumed(self, owner: str) -> None:
        """State and clocks of an owner are one again."""
        ...

    def note(self, *, is_needed: bool = False) -> None:
        """Writes down at once which lives, snapshots and owners there are; the rest comes with the next increment.

        Args:
            is_needed: What is there would be wrong otherwise.
        """
        ...

    def wake(self) -> None:
        """The next increment is to be written now."""
        ...


class NoRecording:
    """Nobody does."""

    is_on = False

    def follow(self, history: LocalHistory) -> None:
        """Does nothing."""

    def replacing(self, owner: str) -> AbstractContextManager[None]:  # noqa: ARG002 - a recording's
        """Does nothing."""
        return nullcontext()

    def resumed(self, owner: str) -> None:
        """Does nothing."""

    def note(self, *, is_needed: bool = False) -> None:
        """Does nothing."""

    def wake(self) -> None:
        """Does nothing."""
