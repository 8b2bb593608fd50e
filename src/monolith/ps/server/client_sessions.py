"""Resources that clients have open on a server, by number; released when the client disconnects, however it does."""

from __future__ import annotations

import itertools
import logging
import threading
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ClientSessions", "Closable"]

_log = logging.getLogger(__name__)


class Closable(Protocol):
    """A resource that is released by closing it."""

    TITLE: ClassVar[str]
    """Name of the resource in messages."""

    def close(self) -> None:
        """Releases the resource. Idempotent."""
        ...


T = TypeVar("T", bound=Closable)


class ClientSessions:
    """The connected clients, and the open resources of each. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._stays: dict[int, list[Callable[[], None]]] = {}
        """Client -> how to end each of its liveness streams; more than one while it reconnects."""
        self._things: dict[int, tuple[int, Closable]] = {}
        self._numbers = itertools.count(1)

    def enter(self, client: int, dismiss: Callable[[], None]) -> None:
        """Adds a liveness stream of a client; `dismiss` ends the stream."""
        with self._lock:
            self._stays.setdefault(client, []).append(dismiss)

    def leave(self, client: int) -> bool:
        """Removes a stream of a client; the last one closes all its resources. Returns whether it was the last."""
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
            _log.warning("a client has disconnected; %d of its cuts, loads and restores were cancelled", len(things))
        return True

    def keep(self, client: int, thing: Closable) -> int:
        """Adds a resource of a client; returns its number.

        Raises:
            FailedPreconditionError: the client has disconnected; the resource was closed.
        """
        with self._lock:
            if client in self._stays:
                number = next(self._numbers)
                self._things[number] = client, thing
                return number
        thing.close()
        raise FailedPreconditionError("the connection of this client has ended, and with it all that it had open")

    def find(self, number: int, kind: type[T]) -> T:
        """Returns the resource with this number.

        Raises:
            FailedPreconditionError: there is none of this kind.
        """
        with self._lock:
            found = self._things.get(number)
        if found is None or not isinstance(found[1], kind):
            raise FailedPreconditionError(
                f"{kind.TITLE} {number} is not open here: it was released, or cancelled when its client disconnected"
            )
        return found[1]

    def drop(self, number: int) -> None:
        """Closes the resource with this number, if there is one."""
        with self._lock:
            found = self._things.pop(number, None)
        if found is not None:
            found[1].close()

    def close(self) -> None:
        """Disconnects all clients, and closes their resources."""
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
        except Exception:  # noqa: BLE001 - close the remaining resources, too
            _log.exception("what a client left open could not be closed")
