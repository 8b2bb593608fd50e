"""`Follower`: keeps the tables of this process as those of a trainer in another one, from its delta log."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Self

from monolith.checkpoint.tensor_bytes import tensors_from_bytes
from monolith.clock import SystemClock
from monolith.deltalog import DENSE_PART, DeltaLog, GapError, IncrementKind, Lag, store_of
from monolith.errors import DataLossError, DeadlineExceededError, NotFoundError, OpError, UnavailableError
from monolith.files import join
from monolith.publishing.named_stores import named_stores
from monolith.publishing.row_payload import row_blocks
from monolith.publishing.serving_schema import serving_schema
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.snapshot.restore import restore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from monolith.clock import Clock
    from monolith.deltalog import Base, Increment, PartReader
    from monolith.tables.store import Store

_log = logging.getLogger(__name__)

_REMEMBERED = 4096
"""Increments whose staleness is known."""
POLL_SECONDS = 0.5


class Staleness(NamedTuple):
    """Seconds from the oldest event of an increment to the moment it was applied."""

    p50: float
    p99: float


class Follower:
    """Keeps tables up to date. Any thread may ask; one applies: that of `start`, or that which calls `catch_up`.

    Row times come along, so that rows expire here as they would there. Tables with `skip_zero` leave zero rows out.

    Args:
        stores: Serving tables of the same shape as those that are trained: one store, or several by name.
        log: A path or URL, or a `DeltaLog`.
        on_dense: Called with the dense weights by name, in the thread that applies, once their rows are here.
        clock: Of this machine.
    """

    def __init__(
        self,
        stores: Store | Mapping[str, Store],
        log: DeltaLog | str,
        *,
        on_dense: Callable[[Mapping[str, Tensor]], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._stores = named_stores(stores)
        self.log = log if isinstance(log, DeltaLog) else DeltaLog(log)
        self._on_dense = on_dense
        self._clock = clock or SystemClock()
        self._readers: dict[str, PartReader] = {}
        self._held: dict[str, Increment] = {}
        """Part -> what was read of it and is not here yet: others come first, or what it needs is away for a moment."""
        self._version: dict[str, int] = {}
        self._seen: deque[float] = deque(maxlen=_REMEMBERED)
        self._began = False
        self._look_again = 0.0
        """When parts are looked for that were not there yet."""
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._thread: threading.Thread | None = None
        self.error: OpError | None = None
        """What ended following; None: nothing did."""

    @property
    def version(self) -> dict[str, int]:
        """Part -> number of its last increment that is here; it never goes back."""
        return dict(self._version)

    @property
    def lag(self) -> Lag:
        """How far it is behind, over all parts: increments and bytes that come, seconds of the slowest."""
        with self._lock:
            lags = [reader.lag for reader in self._readers.values()]
        held = len(self._held)
        return Lag(
            held + sum(each.increments for each in lags),
            sum(each.bytes for each in lags),
            max((each.seconds for each in lags), default=0.0),
        )

    @property
    def staleness(self) -> Staleness | None:
        """Of the last increments that had examples; None: there was none yet."""
        seen = sorted(self._seen)
        if not seen:
            return None
        return Staleness(seen[len(seen) // 2], seen[min(len(seen) - 1, len(seen) * 99 // 100)])

    def catch_up(self, timeout_seconds: float | None = None) -> None:
        """Applies all that is in the log now.

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
        """Saves what is here as a base and lets the log go of what is before it: compaction, beside a live writer."""
        with self._lock:
            base = self.log.save_base(self._stores, name=name, numbers=self.version)
            self.log.trim(keep_bases=keep_bases)
        return base

    def close(self) -> None:
        """Ends following; the tables stay. Again: does nothing."""
        self._stop.set()
        self._running.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for reader in self._readers.values():
            reader.close()
        self._readers = {}

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
                self._stop.wait(POLL_SECONDS)
                continue
            except NotFoundError:
                self._stop.wait(POLL_SECONDS)  # there is no log yet
                continue
            except OpError as error:
                self.error = error
                _log.error("follower: %s", error)
                return
            if not more:
                self._wait_for_more()

    def _wait_for_more(self) -> None:
        readers = list(self._readers.values())
        if len(readers) == 1:
            readers[0].wait(POLL_SECONDS, self._stop)
        else:
            self._stop.wait(0.02)

    def _apply_some(self) -> bool:
        """Applies what each part has next; whether there was anything."""
        if not self._began:
            self._begin()
        if self._clock.monotonic() >= self._look_again:
            self._open_new_parts()
            self._look_again = self._clock.monotonic() + POLL_SECONDS
        applied = False
        for part in list(self._readers):
            try:
                applied |= self._apply_next(part)
            except (GapError, DataLossError) as error:
                self._begin_behind(part, error)
                applied = True
        return applied

    def _apply_next(self, part: str) -> bool:
        found = self._held.get(part) or self._readers[part].read()
        if found is None:
            return False
        self._held[part] = found
        if any(self._version.get(other, -1) < number for other, number in found.needs.items()):
            return False
        if found.kind is IncrementKind.OPENING and found.base is not None:
            self._load_base(self.log.base(found.base), part)
        elif found.kind is IncrementKind.ROWS:
            self._load_rows(part, found)
        elif found.kind is IncrementKind.DENSE and self._on_dense is not None:
            self._on_dense(tensors_from_bytes(found.payload, origin=f"increment {found.number} of part {part!r}"))
        del self._held[part]
        self._version[part] = found.number
        if found.examples and found.oldest_event_ms:
            self._seen.append(self._clock.now() - found.oldest_event_ms / 1000)
        return True

    def _load_rows(self, part: str, found: Increment) -> None:
        place = store_of(part)
        if place is not None and found.payload:
            store, buckets = place
            self._stores[store].load(row_blocks(found.payload), buckets=buckets, replace=False)

    def _begin(self) -> None:
        """At the newest base that there is, or at the first increment."""
        bases = self.log.bases()
        known = [base for base in bases if base.stores.keys() >= self._stores.keys()]
        if known:
            for part in known[-1].numbers:
                self._load_base(known[-1], part)
            self._version.update(known[-1].numbers)
        self._began = True

    def _begin_behind(self, part: str, error: OpError) -> None:
        """Begins anew at a base that has what is missing.

        Raises:
            OpError: the error, where there is none.
        """
        wanted = self._readers[part].next_number or 0
        place = store_of(part)
        bases = [
            base
            for base in self.log.bases()
            if base.numbers.get(part, -1) >= wanted and (place is None or place[0] in base.stores)
        ]
        if not bases:
            raise error
        _log.warning("follower: begins anew at base %r: %s", bases[-1].name, error)
        self._load_base(bases[-1], part)
        self._version[part] = bases[-1].numbers[part]
        self._held.pop(part, None)
        self._readers.pop(part).close()
        self._look_again = 0.0

    def _load_base(self, base: Base, part: str) -> None:
        place = store_of(part)
        if place is not None:
            store, buckets = place
            wanted = None if buckets == ALL_BUCKETS else buckets
            restore(self._stores[store], join(base.path, base.stores[store]), buckets=wanted)

    def _open_new_parts(self) -> None:
        for part in self.log.parts():
            place = store_of(part)
            is_ours = part == DENSE_PART or (place is not None and place[0] in self._stores)
            if part not in self._readers and is_ours:
                schema = None if place is None else serving_schema(self._stores[place[0]].schema)
                following = self._version.get(part, -1) + 1
                self._readers[part] = self.log.open_reader(part, number=following, schema=schema)
