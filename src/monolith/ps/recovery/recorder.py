"""Appends the state of a server to its recovery record, periodically and in the background; `recover` reads it."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from monolith.background import PeriodicThread
from monolith.checkpoint import committed_names, saved_tables
from monolith.errors import AbortedError, DeadlineExceededError, FailedPreconditionError, OpError
from monolith.ps.recovery.entries import RecordedState
from monolith.ps.recovery.increment import IncrementWriter, entry_at
from monolith.ps.server.push_gates import DENSE_OWNER, rows_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from monolith.ps.dense.shard import DenseShard
    from monolith.ps.recovery.config import RecoveryConfig
    from monolith.ps.recovery.entries import DenseEntry, RowsEntry
    from monolith.ps.recovery.record_log import RecordBatch, RecordLog
    from monolith.ps.server.hosted_rows import HostedRows
    from monolith.ps.server.push_gates import PushGates
    from monolith.tables.local import LocalHistory

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 0.2
"""Delay after a preempted increment."""
_LAST_TRIES = 5
_WITHOUT_CLOCKS_SECONDS = 60.0
"""Replaced rows whose clocks were not replaced are recorded again after this time."""
_WARN_SECONDS = 60.0
_LONG_BYTES = 64 << 20
_LONG_FACTOR = 3
"""A record larger than `_LONG_BYTES` plus this factor times the bytes of its state is rewritten from scratch."""


@dataclass(frozen=True, slots=True)
class Followed:
    """How far the rows of a store were written."""

    lineage: int
    written: int
    """Everything up to this epoch is in the record, or in a snapshot that the record names."""
    since: int
    """Epoch to copy changes from: later than `written` if nothing changed in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorRecord:
    """The state of a record that the recorder needs to continue it."""

    followed: Mapping[str, Followed]
    dense_version: int
    parts: Mapping[str, bytes]


class Subject(Protocol):
    """The stores that are recorded."""

    gates: PushGates

    def hosted(self) -> Sequence[HostedRows]:
        """Returns all stores."""
        ...

    def initialized(self) -> frozenset[str]:
        """Returns the owners that a client has marked as initialized."""
        ...


class Recorder:
    """`monolith.ps.recovery.recording.Recording` of one server: a thread that appends increments to its record.

    Thread-safe; callers must hold no lock that pushes, rows or dense weights need. A failed write is logged, and
    training continues: the next increment has the missing changes.

    Args:
        options: Location and interval of the record.
        log: The record; this process has claimed it.
        subject: The recorded stores.
        dense: The recorded dense weights.
    """

    is_on = True

    def __init__(self, options: RecoveryConfig, log: RecordLog, *, subject: Subject, dense: DenseShard) -> None:
        self._options = options
        self._title = log.title
        self._subject, self._dense = subject, dense
        self._alone = threading.RLock()  # held while the record or the recorded state changes; guards the fields below
        self._log = log
        self._followed: dict[str, Followed] = {}
        self._dense_version = -1
        self._dumps: dict[str, Callable[[], bytes]] = {}
        self._parts: dict[str, bytes] = {}
        self._void: dict[str, float] = {}
        """Owners whose recorded state is invalid -> since when."""
        self._last_warning = -_WARN_SECONDS
        self._names: frozenset[str] = frozenset()
        self._snapshots: frozenset[int] = frozenset()
        self._counting = threading.Lock()  # guards the counter below
        self._waiting = 0
        self._thread = PeriodicThread(
            lambda: None if self.write() else _RETRY_SECONDS,
            every=options.interval_seconds,
            name="monolith-recovery-record",
        )

    # Lifecycle

    def start(self, prior: PriorRecord | None = None) -> None:
        """Starts the thread; it continues the prior record or begins a new one."""
        if prior is not None:
            self._followed, self._parts = dict(prior.followed), dict(prior.parts)
            self._dense_version = prior.dense_version
            self._write_note(is_needed=True)
        self._thread.start(after=self._options.interval_seconds)

    def close(self, *, last_words: bool = True) -> None:
        """Ends the thread, after a last increment unless `last_words` is False. Idempotent."""
        is_first = not self._thread.closed.is_set()
        self._thread.close()
        if is_first and last_words and self._thread.ident is not None:
            try:
                any(self.write() for _ in range(_LAST_TRIES))
            except Exception:  # noqa: BLE001 - a server whose record cannot be written ends like any other
                _log.exception("%s: the last increment failed", self._title)
        with self._alone:
            self._log.close()

    # Notifications from the server

    def follow(self, history: LocalHistory) -> None:
        """Makes the history keep changes from now on."""
        history.keep()

    @contextmanager
    def replacing(self, owner: str) -> Iterator[None]:
        """Wraps any replacement of the state of an owner."""
        with self._being_alone():
            self._void[owner] = time.monotonic()
            self._write_note(is_needed=True)
            yield

    def resumed(self, owner: str) -> None:
        """Marks state and clocks of an owner as consistent again."""
        with self._being_alone():
            self._void.pop(owner, None)
            at_snapshot = {}
            for rows in self._subject.hosted():
                if rows_owner(rows.name) == owner and rows.lineage.origin is not None:
                    entry = at_snapshot[rows.name] = entry_at(rows, rows.lineage.origin)
                    self._followed[rows.name] = Followed(entry.lineage, entry.end, entry.end)
                    rows.lineage.origin = None  # later states differ from that snapshot
            self._write_note(at_snapshot, is_needed=True)
        self.wake()

    def note(self, *, is_needed: bool = False) -> None:
        """Writes `life`, snapshots and owners immediately."""
        with self._being_alone():
            self._write_note(is_needed=is_needed)

    def wake(self) -> None:
        """Triggers the next increment now."""
        self._thread.wake()

    def add_part(self, name: str, dump: Callable[[], bytes]) -> None:
        """Adds a small state to every increment; `dump` is called while pushes are held, so it must not block."""
        with self._being_alone():
            self._dumps[name] = dump

    @contextmanager
    def _being_alone(self) -> Iterator[None]:
        """Acquires the record; preempts an increment in progress."""
        with self._counting:
            self._waiting += 1
        try:
            self._alone.acquire()
        finally:
            with self._counting:
                self._waiting -= 1
        try:
            yield
        finally:
            self._alone.release()

    # Writing

    def write(self) -> bool:
        """Writes an increment now. Returns False if it was preempted; retry soon."""
        with self._alone:
            try:
                if self._log.is_still_ours():
                    self._write_increment()
                    self._remove_covered()
            except (AbortedError, DeadlineExceededError) as error:
                _log.debug("%s", error)
                return False
            except FailedPreconditionError as error:
                # The changes are unknown, as after a load that replaces rows: the next increment has all rows.
                _log.info("%s: restarted from scratch: %s", self._title, error)
                self._followed.clear()
                return False
            except (OpError, OSError) as error:
                self._warn(error)
            return True

    def _write_increment(self) -> None:
        increment: IncrementWriter | None = None

        def fill(batch: RecordBatch) -> RecordedState | None:
            nonlocal increment
            increment = self._copied(batch)
            state = self._state(increment.entries(), increment.parts)
            if increment.num_changes == 0 and increment.dense is None and self._is_known(state):
                return None
            return replace(state, dense=increment.write_dense() or state.dense)

        state = self._log.append(fill, rate=self._options.rate_bytes_per_second)
        if state is not None and increment is not None:
            self._count_as_written(increment, state)

    def _copied(self, batch: RecordBatch) -> IncrementWriter:
        increment = IncrementWriter(batch, make_way=lambda: self._waiting > 0)
        is_long = self._is_long()
        if self._log.last.dense is None:
            self._dense_version = -1
        for rows in self._recorded():
            followed = self._followed.get(rows.name)
            if followed is None or followed.lineage != rows.lineage.number or is_long:
                increment.copy_rows(rows, begin=0, since=0)
            else:
                increment.copy_rows(rows, begin=followed.written, since=followed.since)
        increment.take_moment(
            self._subject.gates,
            dense=None if DENSE_OWNER in self._void else self._dense,
            known_version=-1 if is_long or self._log.needs_dense else self._dense_version,
            parts=self._dumps,
            others={name: data for name, data in self._parts.items() if name not in self._dumps},
        )
        return increment

    def _count_as_written(self, increment: IncrementWriter, state: RecordedState) -> None:
        hosted = {rows.name: rows for rows in self._subject.hosted()}
        for name, entry in state.stores.items():
            self._followed[name] = Followed(entry.lineage, entry.end, entry.end)
            if name in hosted:
                hosted[name].history.keep_from(entry.end)
        self._parts = increment.parts
        if increment.dense is not None:
            self._dense_version = increment.dense.version

    def _write_note(self, at_snapshot: Mapping[str, RowsEntry] | None = None, *, is_needed: bool) -> None:
        """Writes metadata other than rows and weights, without entries that are no longer valid.

        Args:
            at_snapshot: Stores that have just been restored from a snapshot.
            is_needed: The existing record would be wrong without it: if the write fails, the record is removed.
        """
        if not self._log.states and not at_snapshot:
            return  # nothing was written that could be wrong
        stores = {}
        for rows in self._recorded():
            entry = (at_snapshot or {}).get(rows.name) or self._log.last.stores.get(rows.name)
            if entry is not None and entry.lineage == rows.lineage.number:
                generation, life = rows.life
                fresh = replace(entry, generation=generation, life=life, snapshots=dict(rows.lineage.snapshots))
                stores[rows.name] = fresh.with_section(None)
        try:
            if self._log.is_still_ours():
                self._log.append(lambda _: self._state(stores, self._parts))
        except AbortedError as error:
            _log.debug("%s", error)  # replaced by another process
        except (OpError, OSError) as error:
            self._warn(error)
            if is_needed:
                self._log.remove_all()
                self._followed.clear()

    # What is written

    def _state(self, stores: Mapping[str, RowsEntry], parts: Mapping[str, bytes]) -> RecordedState:
        dense: DenseEntry | None = None if DENSE_OWNER in self._void else self._log.last.dense
        initialized = self._subject.initialized() - self._void.keys()
        return RecordedState(initialized=initialized, stores=stores, dense=dense, parts=parts)

    def _recorded(self) -> list[HostedRows]:
        """Returns the stores whose rows and clocks are consistent."""
        now = time.monotonic()
        for owner, since in list(self._void.items()):
            if now - since > _WITHOUT_CLOCKS_SECONDS:
                del self._void[owner]
        return [rows for rows in self._subject.hosted() if rows_owner(rows.name) not in self._void]

    def _is_known(self, state: RecordedState) -> bool:
        last = self._log.last
        return (
            bool(self._log.states)
            and state.initialized == last.initialized
            and state.stores.keys() == last.stores.keys()
            and all(entry.is_like(last.stores[name]) for name, entry in state.stores.items())
            and state.parts == self._parts
        )

    def _is_long(self) -> bool:
        dense = self._log.last.dense
        needed = sum(hosted.num_bytes() for hosted in self._subject.hosted()) + (0 if dense is None else dense.bytes)
        return self._log.num_bytes > _LONG_BYTES + _LONG_FACTOR * needed

    def _remove_covered(self) -> None:
        if self._options.model_dir:
            names = committed_names(self._options.model_dir)
            if names != self._names:
                checkpoints = saved_tables(self._options.model_dir)
                self._names, self._snapshots = names, frozenset(checkpoints[0].folders if checkpoints else ())
        self._log.remove_covered(self._snapshots)

    def _warn(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._last_warning >= _WARN_SECONDS:
            self._last_warning = now
            _log.warning(
                "%s: it cannot be written (%s); training continues, and the next increment includes the missing"
                " changes. Until then, more updates are lost if this server dies",
                self._title,
                error,
            )
