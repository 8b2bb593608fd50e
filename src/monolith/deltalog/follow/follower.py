"""`Follower`: keeps the tables of this process up to date with those of a trainer, from its delta log."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from monolith.background import END, End, PeriodicThread
from monolith.clock import SystemClock
from monolith.closing import Closing
from monolith.deltalog import DeltaLog, GapError, IncrementKind, Lag
from monolith.deltalog.follow.log_applier import LogApplier
from monolith.deltalog.publish.store_publisher import named_stores
from monolith.errors import (
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnavailableError,
    UnknownError,
)
from monolith.tables import ALL_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from monolith.clock import Clock
    from monolith.deltalog import Base, Increment
    from monolith.tables import Store

_log = logging.getLogger(__name__)

_REMEMBERED = 4096
"""Number of recent increments over which staleness is computed."""
POLL_SECONDS = 0.5


class Staleness(NamedTuple):
    """Age of the applied data, in seconds."""

    p50: float
    """Time from the oldest event of an increment to its application; NaN: no increment has event times."""
    p99: float
    now: float
    """Time since the newest applied event, or since its increment was written if that has no event times. It grows with
    the clock while no increment arrives."""


class Follower(Closing):
    """Follower of a delta log that keeps tables up to date.

    Any thread may query it; one thread applies increments: that of `start`, or the caller of `catch_up`.

    Row times are replicated, so that rows expire here as they do at the trainer. Tables with `skip_zero` skip zero
    rows.

    Args:
        stores: Serving tables with the schema of the trained ones: one store, or several by name.
        log: A path or URL, or a `DeltaLog`.
        on_dense: Called with the dense weights by name, in the applying thread, once their rows are applied.
        on_increment: Called with every increment, in the same thread, once it is applied.
        buckets: Consecutive buckets that the tables keep, for a model that several processes share; None: all.
        rows_elsewhere: Whether other processes have the rows: dense weights are applied as they arrive, and
            `dense_needs` gives the rows that they need. `stores` must then be empty.
        clock: Clock of this machine; None: the system clock.
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
            raise InvalidArgumentError("follower: stores and rows_elsewhere exclude each other; give one of them")
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
        """Time of the newest applied event, or of its increment; 0: none."""
        self._began = False
        self._look_again = 0.0
        """When to poll for new parts next."""
        self._lock = threading.RLock()
        self._running = threading.Event()
        self._running.set()
        self._thread = PeriodicThread(
            self._follow, every=POLL_SECONDS, name="monolith-follower", on_error=self._note_unexpected
        )
        self.error: OpError | None = None
        """Error that ended following, or that stalls it until a newer base is available; None: running."""
        self.away: OpError | None = None
        """Error of the last attempt to read the log, which is retried; None: it succeeded."""
        self.is_caught_up = False
        """Whether the follower has reached the end of the log at least once since the thread started, or since it
        stalled."""

    @property
    def version(self) -> dict[str, int]:
        """Part -> number of its last applied increment; never decreases."""
        return dict(self._applier.version)

    @property
    def dense_number(self) -> int:
        """Number of the dense weights of the current or last call of `on_dense`; -1: none."""
        return self._applier.dense_number

    @property
    def dense_needs(self) -> dict[str, int]:
        """Part -> number of the increment of rows with which those weights were trained."""
        return dict(self._applier.dense_needs)

    @property
    def lag(self) -> Lag:
        """Lag over all parts: total increments and bytes to come, and the seconds of the slowest part."""
        with self._lock:
            lags = [reader.lag for reader in self._applier.readers.values()]
            held = len(self._applier.held)
        return Lag(
            held + sum(lag.increments for lag in lags),
            sum(lag.bytes for lag in lags),
            max((lag.seconds for lag in lags), default=0.0),
        )

    @property
    def staleness(self) -> Staleness | None:
        """Staleness of the last increments and as of now; None: no increment was applied yet."""
        if not self._newest_ms:
            return None
        seen = sorted(self._seen) or [math.nan]
        now = max(0.0, self._clock.now() - self._newest_ms / 1000)
        return Staleness(seen[len(seen) // 2], seen[min(len(seen) - 1, len(seen) * 99 // 100)], now)

    def begin(self) -> bool:
        """Loads the newest bases now, instead of in the thread; returns whether all tables then have rows of the log.

        Raises:
            OpError: the log is unreachable or belongs to another model; loaded rows stay.
        """
        with self._lock:
            if not self._began:
                self._applier.begin()
                self._began = True
            return self._applier.has_all_rows()

    def catch_up(self, timeout_seconds: float | None = None) -> None:
        """Applies everything that is in the log now.

        An unfinished record at the end of the log, of a writer that is active or was killed, is skipped; `lag` counts
        it.

        Raises:
            GapError, DataLossError: increments are missing or damaged, and there is no base after them.
            FailedPreconditionError: the log belongs to another model.
            DeadlineExceededError: the time did not suffice; applied increments stay.
        """
        deadline = None if timeout_seconds is None else self._clock.monotonic() + timeout_seconds
        with self._lock:
            self._look_again = 0.0
            while self._apply_some():
                if deadline is not None and self._clock.monotonic() > deadline:
                    raise DeadlineExceededError(f"follower of '{self.log.place}': not caught up in time; call again")

    def start(self) -> None:
        """Starts a thread that follows the log."""
        self._thread.start()

    def pause(self) -> None:
        """Pauses following; returns when no increment is being applied."""
        self._running.clear()
        with self._lock:
            pass

    def resume(self) -> None:
        """Resumes following."""
        self._running.set()

    def save_base(self, name: str, *, keep_bases: int = 1) -> Base:
        """Saves the tables as a base and trims the log before it: compaction, concurrent with a live writer.

        Raises:
            FailedPreconditionError: this follower keeps only some buckets.
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
        """Stops following; the tables stay. Idempotent."""
        self._running.set()
        self._thread.close()
        self._applier.close()

    # Internals

    def _follow(self) -> float | End | None:
        self._running.wait()
        try:
            with self._lock:
                more = self._running.is_set() and self._apply_some()
        except UnavailableError as error:
            _log.warning("follower: the log is unavailable, retrying: %s", error)
            self.away = error
            return None
        except NotFoundError as error:
            self.away = error  # the log does not exist yet
            return None
        except (GapError, DataLossError) as error:
            # A base after the missing increments may still appear: from a compaction, or from a new generation.
            if self.error is None:
                _log.error("follower: stalled until a later base appears: %s", error)
            self._stall(error)
            return None
        except OpError as error:
            self.error = error
            _log.error("follower: %s", error)
            return END
        self.error = self.away = None
        if not more:
            self.is_caught_up = self.is_caught_up or not self._applier.held
            self._wait_for_more()
        return 0.0

    def _stall(self, error: OpError) -> None:
        self.error = error
        self.is_caught_up = False

    def _note_unexpected(self, error: Exception) -> None:
        self._stall(UnknownError(f"follower of '{self.log.place}': {error!r}"))

    def _wait_for_more(self) -> None:
        readers = list(self._applier.readers.values())
        if len(readers) == 1:
            readers[0].wait(POLL_SECONDS, self._thread.closed)
        else:
            self._thread.closed.wait(0.02)

    def _apply_some(self) -> bool:
        """Applies the next increment of each part; returns whether there was any."""
        self.begin()
        if self._clock.monotonic() >= self._look_again:
            self._applier.look_for_parts()
            self._look_again = self._clock.monotonic() + POLL_SECONDS
        return self._applier.apply_next()

    def _note(self, increment: Increment) -> None:
        if increment.kind is not IncrementKind.OPENING:
            self._newest_ms = max(
                self._newest_ms, increment.newest_event_ms or increment.oldest_event_ms or increment.published_ms
            )
        if increment.oldest_event_ms:
            # Not below 0, even if the clock was set back.
            self._seen.append(max(0.0, self._clock.now() - increment.oldest_event_ms / 1000))
        if self._on_increment is not None:
            self._on_increment(increment)
