"""Interface between the parts of a server and its recovery record."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from monolith.tables.local import LocalHistory


class Recording(Protocol):
    """Receives state changes for the recovery record. Thread-safe; callers must not hold server locks."""

    @property
    def is_on(self) -> bool:
        """Whether state changes are recorded."""
        ...

    def follow(self, history: LocalHistory) -> None:
        """Makes a history keep changes from now on."""
        ...

    def replacing(self, owner: str) -> AbstractContextManager[None]:
        """Wraps any replacement of the state of an owner, and invalidates its recorded state.

        Nothing is written inside. Rows stay invalid until `resumed`, because their clocks are replaced after them.
        """
        ...

    def resumed(self, owner: str) -> None:
        """Marks state and clocks of an owner as consistent again."""
        ...

    def note(self, *, is_needed: bool = False) -> None:
        """Writes the current `life`, snapshots and owners immediately; the rest follows with the next increment.

        Args:
            is_needed: The existing record would be wrong without it.
        """
        ...

    def wake(self) -> None:
        """Requests the next increment now."""
        ...


class NoRecording:
    """A `Recording` that records nothing."""

    is_on = False

    def follow(self, history: LocalHistory) -> None:
        """Does nothing."""

    def replacing(self, owner: str) -> AbstractContextManager[None]:  # noqa: ARG002 - part of `Recording`
        """Does nothing."""
        return nullcontext()

    def resumed(self, owner: str) -> None:
        """Does nothing."""

    def note(self, *, is_needed: bool = False) -> None:
        """Does nothing."""

    def wake(self) -> None:
        """Does nothing."""
