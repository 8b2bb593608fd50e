"""Resources that clients have open on a server, by number; released when the client disconnects, however it does."""

from __future__ import annotations

import itertools
import logging
import threading
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from monolith import _core
from monolith.errors import FailedPreconditionError
from monolith.tables.snapshot import remove_written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.tables import LoadReport, SnapshotWriteConfig, WrittenRows
    from monolith.tables.formats import RowBlock
    from monolith.tables.local import LocalCut, LocalRestore, LocalStore
    from monolith.tables.snapshot import FileEntry, RestoreReport

_log = logging.getLogger(__name__)


class Closable(Protocol):
    """A resource that is released by closing it."""

    TITLE: ClassVar[str]
    """Name of the resource in messages."""

    def close(self) -> None:
        """Releases the resource. Idempotent."""


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
            entry = self._things.get(number)
        if entry is None or not isinstance(entry[1], kind):
            raise FailedPreconditionError(
                f"{kind.TITLE} {number} is not open here: it was released, or cancelled when its client disconnected"
            )
        return entry[1]

    def drop(self, number: int) -> None:
        """Closes the resource with this number, if there is one."""
        with self._lock:
            entry = self._things.pop(number, None)
        if entry is not None:
            entry[1].close()

    def close(self) -> None:
        """Disconnects all clients, and closes their resources."""
        with self._lock:
            things = [thing for _, thing in self._things.values()]
            streams = [dismiss for dismissals in self._stays.values() for dismiss in dismissals]
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


class OpenCut:
    """A cut of a server's rows, and the files written of it. Thread-safe."""

    TITLE: ClassVar[str] = "cut"

    def __init__(self, cut: LocalCut, *, on_written: Callable[[int], None]) -> None:
        self.cut = cut
        self._on_written = on_written
        self._transfer = _core.Transfer()
        self._lock = threading.Lock()  # serializes write and close; guards the field below
        self._written: tuple[str, Sequence[FileEntry]] | None = None

    def write(self, folder: str, rules: SnapshotWriteConfig) -> WrittenRows:
        """Writes the cut; see `Cut.write`."""
        with self._lock:
            written = self.cut.write(folder, rules, transfer=self._transfer)
            self._written = folder, written.files
        if rules.state:
            self._on_written(rules.snapshot_id)
        return written

    def give_up_write(self) -> None:
        """Removes written files, cancels a write in progress, and rejects later writes."""
        self._transfer.cancel()
        with self._lock:
            if self._written is not None:
                remove_written(*self._written)
                self._written = None

    def close(self) -> None:
        """Releases the cut; cancels a write in progress, and removes its files."""
        self._transfer.cancel()
        with self._lock:
            self.cut.release()


class PreparedLoad:
    """Checked blocks, which can be loaded once. Thread-safe."""

    TITLE: ClassVar[str] = "load"

    def __init__(
        self,
        store: LocalStore,
        blocks: Sequence[RowBlock],
        *,
        buckets: range,
        emptied: range | None,
        around: Callable[[Callable[[], LoadReport]], LoadReport] | None = None,
    ) -> None:
        if emptied is not None and store.native.core.open_cut_epoch() is not None:
            raise FailedPreconditionError("rows cannot be replaced while a cut is open; release it first")
        store.require_loadable(blocks, buckets=buckets)
        self._store = store
        self._blocks = blocks
        self._buckets = buckets
        self._emptied = emptied
        self._around = around

    def load(self) -> LoadReport:
        """Loads the blocks."""
        return self._load() if self._around is None else self._around(self._load)

    def _load(self) -> LoadReport:
        return self._store.load_emptied(self._blocks, buckets=self._buckets, emptied=self._emptied)

    def close(self) -> None:
        """Drops the blocks."""
        self._blocks = ()


class PreparedRows:
    """Checked files, which can be loaded once. Thread-safe."""

    TITLE: ClassVar[str] = "restore"

    def __init__(
        self, restore: LocalRestore, *, around: Callable[[Callable[[], RestoreReport]], RestoreReport]
    ) -> None:
        self._around = around
        self._lock = threading.Lock()  # guards the field below
        self._restore: LocalRestore | None = restore

    def load(self) -> RestoreReport:
        """Replaces the rows.

        Raises:
            FailedPreconditionError: the restore was cancelled meanwhile.
        """
        with self._lock:
            if self._restore is None:
                raise FailedPreconditionError("the restore was cancelled")
            return self._around(self._restore.load)

    def close(self) -> None:
        """Cancels the restore, or ends it after `load`."""
        with self._lock:
            restore, self._restore = self._restore, None
            if restore is not None:
                restore.__exit__(None, None, None)
