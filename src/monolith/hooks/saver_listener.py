"""Interfaces of listeners of saves and restores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from monolith.hook import HookedSession

__all__ = ["RestorerListener", "SaveGuard", "SaverListener"]


class SaveGuard(Protocol):
    """Brackets a save, also a failed one, such as a barrier that holds the workers."""

    def before_save(self, session: HookedSession, global_step_value: int) -> object:
        """Called once before the first attempt."""
        ...

    def after_save(self, session: HookedSession, global_step_value: int) -> object:
        """Called once after the save, also after a failure."""
        ...


class SaverListener:
    """Base class of listeners of a saving hook. Override the methods that are needed; the others do nothing."""

    def begin(self) -> None:
        """Called once, before the session exists."""

    def before_save(self, session: HookedSession, global_step_value: int) -> None:
        """Called before each attempt to save, in the training thread."""

    def after_save(self, session: HookedSession, global_step_value: int) -> bool | None:  # noqa: ARG002 - as overridden
        """Called when a checkpoint was committed; True requests the end of training."""
        return None

    def end(self, session: HookedSession, global_step_value: int) -> None:
        """Called once when training ends without an error, after the last save."""


class RestorerListener:
    """Base class of listeners of a restoring hook."""

    def begin(self) -> None:
        """Called once, before the session exists."""

    def before_restore(self, session: HookedSession) -> None:
        """Called when the dense state was restored, before training begins."""

    def after_restore(self, session: HookedSession) -> None:
        """Called when every `before_restore` has returned."""
