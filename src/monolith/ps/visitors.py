"""What clients have open on a server, by number: it is given up when they leave, however they leave."""

from __future__ import annotations

import itertools
import logging
import threading
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Closable", "Visitors"]

_log = logging.getLogger(__name__)


class Closable(Protocol):
    """Something that is given up by closing it."""

    TITLE: ClassVar[str]
    """What it is called in messages."""

    def close(self) -> None:
        """Calling it again does nothing."""
        ...


T = TypeVar("T", bound=Closable)


class Visitors:
    """The clients that stay, and what each has open. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._stays: dict[int, list[Callable[[], None]]] = {}
        """Client -> how to end each stream that says that it is there; more than one while it connects anew."""
        self._things: dict[int, tuple[int, Closable]] = {}
        self._numbers = itertools.count(1)

    def enter(self, client: int, dismiss: Callable[[], None]) -> None:
        """It is there; `dismiss` ends the stream that says so."""
        with self._lock:
            self._stays.setdefault(client, []).append(dismiss)

    def leave(self, client: int) -> bool:
        """One of its streams has ended; with the last one, all that it has open is closed. True: it was the last."""
        with self._lock:
            streams = self._stays.get(client, [])
            if len(streams) > 1:
                streams.pop()
                return False
            self._stays.pop(client, None)
            numbers = [number for number, (owner, _) in self._things.items() if owner == client]
            things = [self._things.pop(number)[1] for number in numbers]
        for thing in things:
            self._close(thing)
        if things:
            _log.warning("a client has left; %d of its cuts, loads and restores were given up", len(things))
        return True

    def keep(self, client: int, thing: Closable) -> int:
        """The number under which a thing of a client can be found.

        Raises:
            FailedPreconditionError: the client is not there any more; the thing was closed.
        """
        with self._lock:
            if client in self._stays:
                number = next(self._numbers)
                self._things[number] = client, thing
                return number
        thing.close()
        raise FailedPreconditionError("the connection of this client has ended, and with it all that it had open")

    def find(self, number: int, kind: type[T]) -> T:
        """What has this number.

        Raises:
            FailedPreconditionError: nothing of this kind has.
        """
        with self._lock:
            found = self._things.get(number)
        if found is None or not isinstance(found[1], kind):
            raise FailedPreconditionError(
                f"{kind.TITLE} {number} is not open here: it was released, or given up when the connection of its"
                " client ended"
            )
        return found[1]

    def drop(self, number: int) -> None:
        """Closes what has this number; nothing where none does."""
        with self._lock:
            found = self._things.pop(number, None)
        if found is not None:
            found[1].close()

    def close(self) -> None:
        """Sends all clients away, and closes what they have open."""
        with self._lock:
            things = [thing for _, thing in self._things.values()]
            streams = [dismiss for each in self._stays.values() for dismiss in each]
            self._things.clear()
            self._stays.clear()
        for dismiss in streams:
            dismiss()
        for thing in things:
            self._close(thing)

    def _close(self, thing: Closable) -> None:
        try:
            thing.close()
        except Exception:  # noqa: BLE001 - the others are to be closed, too
            _log.exception("what a client left open could not be closed")
