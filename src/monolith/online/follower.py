"""`Follower`: keeps the tables of this process as those of a trainer in another one, from its delta log."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Self

from monolith.clock import SystemClock
from monolith.deltalog import DeltaLog, GapError, IncrementKind, Lag
from monolith.errors import (
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnavailableError,
)
from monolith.online.log_applier import LogApplier
from monolith.publishing.named_stores import named_stores
from monolith.tables.history import ALL_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from monolith.clock import Clock
    from monolith.deltalog import Base, Increment
    from monolith.tables.store import Store

_log = logging.getLogger(__name__)

_REMEMBERED = 4096
"""Increments whose staleness is known."""
POLL_SECONDS = 0.5


class Staleness(NamedTuple):
    """How old what was applied is, in seconds."""

    p50: float
    """From the oldest event of an increment to the moment it was applied; NaN: no increment names its events."""
    p99: float
    now: float
    """Since the newest event that was applied, or since its increment was written where it names none. It grows with
    the clock while no increment comes."""


class Follower:
    """Keeps tables up to date. Any thread may ask; one applies: that of `start`, or that which calls `catch_up`.

    Row times come along, so that rows expire here as they would there. Tables with `skip_zero` leave zero rows out.

    Args:
        stores: Serving tables of the same shape as those that are trained: one store, or several by name.
        log: A path or URL, or a `DeltaLog`.
        on_dense: Called with the dense weights by name, in the thread that applies, once their rows are here.
        on_increment: Called with every increment, in the same thread, once it is here.
        buckets: Consecutive ones that the tables keep, of a model that several processes share; None: all.
        rows_elsewhere: Whether other processes have the rows: dense weights are taken as they come, and `dense_needs`
            tells what rows they go with. Takes no stores.
        clock: Of this machine.
    """

    def __init__(
        self,
        stores: Store | Mapping[str, Store],
        log: DeltaLog | str,
        *,
        on_dense: Callable[[Mapping[str, Tensor]], None] | None = None,
        on_increment: Callable[[Increment], None] | None = None,
        buckets: range | None = None,
        rows_elsewhere: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._stores = named_stores(stores)
        if rows_elsewhere and self._stores:
            raise InvalidArgumentError("follower: stores are given, and their rows are said to be elsewhere")
        self.log = log if isinstance(log, DeltaLog) else DeltaLog(log)
        self._on_increment = on_increment
        self._clock = clock or SystemClock()
        self._buckets = ALL_BUCKETS if buckets is None else buckets
        self._applier = LogApplier(
            self._stores,
            self.log,
            on_applied=self._note,
            on_dense=on_dense,
            buckets=self._buckets,
            rows_elsewhere=rows_elsewhere,
        )
        self._seen: deque[float] = deque(maxlen=_REMEMBERED)
        self._newest_ms = 0
        """Time of the newest event that was applied, or of its increment; 0: there was none."""
        self._began = False
        self._look_again = 0.0
        """When parts are looked for that were not there yet."""
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._thread: threading.Thread | None = None
        self.error: OpError | None = None
        """What following has ended with, or stands still at until a base comes; None: it goes on."""
        self.away: OpError | None = None
        """Why the log could not be read when it was tried last; it is tried again. None: it could."""
        self.is_caught_up = False
        """Whether all was applied that the log had at some moment since the thread began, or since it stood still."""

    @property
    def version(self) -> dict[str, int]:
        """Part -> number of its last increment that is here; it never goes back."""
        return dict(self._applier.version)

    @property
    def dense_number(self) -> int:
        """Of the dense weights that `on_dense` is called with, or was last; -1: there were none."""
        return self._applier.dense_number

    @property
    def dense_needs(self) -> dict[str, int]:
        """Part -> number of the increment of rows that those weights were trained with."""
        return dict(self._applier.dense_needs)

    @property
    def lag(self) -> Lag:
        """How far it is behind, over all parts: increments and bytes that come, seconds of the slowest."""
        with self._lock:
            lags = [reader.lag for reader in self._applier.readers.values()]
            held = len(self._applier.held)
        return Lag(
            held + sum(each.increments for each in lags),
            sum(each.bytes for each in lags),
            max((each.seconds for each in lags), default=0.0),
        )

    @property
    def staleness(self) -> Staleness | None:
        """Of the last increments and of this moment; None: no increment was applied yet."""
        if not self._newest_ms:
            return None
        seen = sorted(self._seen) or [math.nan]
        now = max(0.0, self._clock.now() - self._newest_ms / 1000)
        return Staleness(seen[len(seen) // 2], seen[min(len(seen) - 1, len(seen) * 99 // 100)], now)

    def begin(self) -> bool:
        """Loads the newest bases now, instead of in the thread; whether all tables have rows of the log by that.

        Raises:
            OpError: the log is away or of another model; what was loaded stays.
        """
        with self._lock:
            if not self._began:
                self._applier.begin()
                self._began = True
            return self._applier.has_all_rows()

    def catch_up(self, timeout_seconds: float | None = None) -> None:
        """Applies all that is in the log now.

        An unfinished record at the end of the log, of a writer that is writing it or was killed, is left out; `lag`
        counts it.

        Raises:
            GapError, DataLossError: increments are missing or damaged, and no base is behind them.
            FailedPreconditionError: the log is of another model.
            DeadlineExceededError: there is more than could be applied in that time; what was applied stays.
        """
        deadline = None if timeout_seconds is None else self._clock.monotonic() + timeout_seconds
        with self._lock:
            self._look_again = 0.0
            while self._apply_some():
                if deadline is not None and self._clock.monotonic() > deadline:
                    raise DeadlineExceededError(f"follower of '{self.log.place}': not up to date in time; it goes on")

    def start(self) -> None:
        """Follows in a thread."""
        self._thread = threading.Thread(target=self._run, name="monolith-follower", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Stands still; returns when no increment is being applied."""
        self._running.clear()
        with self._lock:
            pass

    def resume(self) -> None:
        """Goes on."""
        self._running.set()

    def save_base(self, name: str, *, keep_bases: int = 1) -> Base:
        """Saves what is here as a base and lets the log go of what is before it: compaction, beside a live writer.

        Raises:
            FailedPreconditionError: only some buckets are here.
        """
        if self._buckets != ALL_BUCKETS:
            raise FailedPreconditionError(
                f"follower: it keeps {len(self._buckets)} of {len(ALL_BUCKETS)} buckets, and a base needs all of them"
            )
        with self._lock:
            applier = self._applier
            base = self.log.save_base(
                self._stores, name=name, numbers=self.version, step=applier.step, dense=applier.dense_bytes()
            )
            self.log.trim(keep_bases=keep_bases)
        return base

    def close(self) -> None:
        """Ends following; the tables stay. Again: does nothing."""
        self._stop.set()
        self._running.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._applier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside

    def _run(self) -> None:
        while not self._stop.is_set():
            self._running.wait()
            try:
                with self._lock:
                    more = self._running.is_set() and self._apply_some()
            except UnavailableError as error:
                _log.warning("follower: the log is away, and is tried again: %s", error)
                self.away = error
                self._stop.wait(POLL_SECONDS)
                continue
            except NotFoundError as error:
                self.away = error
                self._stop.wait(POLL_SECONDS)  # there is no log yet
                continue
            except (GapError, DataLossError) as error:
                # A base behind what is missing may still come: from who compacts, or from a new generation.
                if self.error is None:
                    _log.error("follower: stands still until there is a base behind this: %s", error)
                self.error = error
                self.is_caught_up = False
                self._stop.wait(POLL_SECONDS)
                continue
            except OpError as error:
                self.error = error
                _log.error("follower: %s", error)
                return
            self.error = self.away = None
            if not more:
                self.is_caught_up = self.is_caught_up or not self._applier.held
                self._wait_for_more()

    def _wait_for_more(self) -> None:
        readers = list(self._applier.readers.values())
        if len(readers) == 1:
            readers[0].wait(POLL_SECONDS, self._stop)
        else:
            self._stop.wait(0.02)

    def _apply_some(self) -> bool:
        """Applies what each part has next; whether there was anything."""
        self.begin()
        if self._clock.monotonic() >= self._look_again:
            self._applier.look_for_parts()
            self._look_again = self._clock.monotonic() + POLL_SECONDS
        return self._applier.apply_next()

    def _note(self, found: Increment) -> None:
        if found.kind is not IncrementKind.OPENING:
            self._newest_ms = max(self._newest_ms, found.newest_event_ms or found.oldest_event_ms or found.published_ms)
        if found.oldest_event_ms:
            # A clock that was put back makes nothing younger than new.
            self._seen.append(max(0.0, self._clock.now() - found.oldest_event_ms / 1000))
        if self._on_increment is not None:
            self._on_increment(found)
