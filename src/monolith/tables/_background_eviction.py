"""Expiry without calling for it: a named thread that evicts at an interval."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Self

from monolith.errors import InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from monolith.tables.native_tables import NativeTables

ALL_TABLES = -1


class BackgroundEviction:
    """Evicts expired rows every so many seconds, against the newest time the table has seen, until `stop`.

    The thread holds no reference to the group: it ends by itself when the group is gone. The clock of the machine only
    paces it; whether a row is expired is decided by the times of the data.
    """

    def __init__(self, group: NativeTables, *, every_seconds: float, table: int = ALL_TABLES) -> None:
        if not 0 < every_seconds <= threading.TIMEOUT_MAX:
            raise InvalidArgumentError(f"background eviction: every_seconds must be > 0, got {every_seconds}")
        self.evicted = 0
        """Rows removed so far."""
        self._every_seconds = every_seconds
        self._table = table
        self._group = weakref.ref(group)
        self._wake = threading.Event()
        self._error: Exception | None = None
        weakref.finalize(group, self._wake.set)
        label = group.names[table] if table != ALL_TABLES else "all"
        self._thread = threading.Thread(target=self._run, name=f"monolith-evict-{label}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """What the thread is called."""
        return self._thread.name

    def is_running(self) -> bool:
        """True iff the thread lives."""
        return self._thread.is_alive()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """Ends the thread and waits for it; raises what made it fail, if anything did.

        Raises:
            UnavailableError: an eviction in progress did not end in time.
        """
        self._wake.set()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            raise UnavailableError(f"{self.name}: still evicting after {timeout_seconds} s; call stop() again")
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._wake.wait(self._every_seconds):
            group = self._group()
            if group is None:
                return
            try:
                self.evicted += group.core.evict(self._table, -1)
            except Exception as error:  # noqa: BLE001 - `stop` raises it; a thread that died in silence says nothing
                self._error = error
                return
            del group  # or the group would live until the next round
