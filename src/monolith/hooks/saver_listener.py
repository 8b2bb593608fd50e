"""What is called around a save and around a restore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from monolith.hook import HookedSession

__all__ = ["RestorerListener", "SaveGuard", "SaverListener"]


class SaveGuard(Protocol):
    """What surrounds a save, however it ends, such as a barrier that holds the workers."""

    def before_save(self, session: HookedSession, global_step_value: int) -> object:
        """Called once before the first attempt."""
        ...

    def after_save(self, session: HookedSession, global_step_value: int) -> object:
        """Called once, whatever happened."""
        ...


class SaverListener:
    """Base of what is attached to a saving hook; override the methods that are needed, the others do nothing."""

    def begin(self) -> None:
        """Called once, before the session exists."""

    def before_save(self, session: HookedSession, global_step_value: int) -> None:
        """Called before each attempt to save, in the thread that trains."""

    def after_save(self, session: HookedSession, global_step_value: int) -> bool | None:  # noqa: ARG002 - as overridden
        """Called when a checkpoint was committed; True asks to end training."""
        return None

    def end(self, session: HookedSession, global_step_value: int) -> None:
        """Called once when training ends without an error, after the last save."""


class RestorerListener:
    """Base of what is attached to a restoring hook."""

    def begin(self) -> None:
        """Called once, before the session exists."""

    def before_restore(self, session: HookedSession) -> None:
        """Called when the dense state was restored, and before anybody trains."""

    def after_restore(self, session: HookedSession) -> None:
        """Called when every `before_restore` has returned."""
