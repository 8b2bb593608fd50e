"""`DeltaPublisher`: a thread that periodically writes the changes of a run to a delta log.

The last rows are published even if the input stalls. While the log is unreachable, the thread retries indefinitely.
Retrying needs no memory: changes are read again from the last mark in the log. Checkpoints become bases of the log: a
late follower starts at one and needs no older increments.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from monolith.background import END, Backoff, End, PeriodicThread
from monolith.checkpoint import tensors_to_bytes
from monolith.clock import SystemClock
from monolith.config import Config, config, require_positive
from monolith.deltalog import DENSE_PART, DeltaLog, IncrementKind
from monolith.deltalog.publish.local_publisher import LocalPublisher
from monolith.deltalog.publish.log_position import LogPosition, add_checkpoint_base
from monolith.deltalog.publish.store_publisher import (
    RECORD_BYTES,
    PublishedRows,
    StorePublishingConfig,
    named_stores,
)
from monolith.errors import AbortedError, FailedPreconditionError, InvalidArgumentError, NotFoundError, OpError
from monolith.tables import ALL_BUCKETS, ChangePosition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from threading import RLock

    from torch import Tensor

    from monolith.clock import Clock
    from monolith.deltalog import PartWriter
    from monolith.deltalog.publish.store_publisher import StorePublisher
    from monolith.tables import BatchStamp, ChangeReader, Store

_log = logging.getLogger(__name__)

SHORTEST_INTERVAL = 0.1
LONGEST_PAUSE = 10.0
"""Maximum seconds between two attempts while the log is unreachable."""
LOCK_SECONDS = 0.05
"""How long a round waits for the step lock to copy dense weights, in seconds."""


class Trained(NamedTuple):
    """Summary of a range of steps."""

    examples: int = 0
    oldest_event_ms: int = 0
    """Unix milliseconds; 0: unknown."""
    newest_event_ms: int = 0
    step: int = 0
    """Total number of steps trained."""
    stamps: Mapping[int, BatchStamp] = {}
    """Worker -> its last batch."""

    def before(self, later: Trained) -> Trained:
        """Merges this range with the one that follows it."""
        known = [time for time in (self.oldest_event_ms, later.oldest_event_ms) if time]
        return Trained(
            self.examples + later.examples,
            min(known, default=0),
            max(self.newest_event_ms, later.newest_event_ms),
            max(self.step, later.step),
            {**self.stamps, **later.stamps},
        )


class Tally(Protocol):
    """Source of the counts of what was trained. Thread-safe."""

    def take(self) -> Trained:
        """Returns what was trained since the last call."""


class ExamplesTally:
    """Accumulator of trained examples and steps, emptied by the publisher. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = Trained()

    def add(self, trained: Trained) -> None:
        """Adds a step."""
        with self._lock:
            self._open = self._open.before(trained)

    def take(self) -> Trained:
        """Returns what was added since the last call."""
        with self._lock:
            taken, self._open = self._open, Trained(step=self._open.step, stamps=self._open.stamps)
        return taken


@config
class PublisherConfig(Config):
    """Keyword arguments of `DeltaPublisher`."""

    interval: float = 1.0
    """Seconds from one increment to the next, at least 0.1."""
    dense: Callable[[], Mapping[str, Tensor]] | None = None
    """Returns the dense weights; None: rows only. They are copied while `step_lock` is held."""
    dense_interval: float = 60.0
    """Seconds from one increment of dense weights to the next; the first is written immediately."""
    step_lock: RLock | None = None
    """Lock held while dense weights are copied: that of the session, so that no step is in progress."""
    buckets: range = ALL_BUCKETS
    """Buckets of the stores that this process publishes, if several share the work."""
    restored: LogPosition | None = None
    """Position of the log at the checkpoint from which the stores were restored; None: unknown."""
    on_replaced: Callable[[], None] | None = None
    """Called when another writer has claimed the log; the run should end."""
    record_bytes: int = RECORD_BYTES
    """Approximate maximum size of an increment; larger changes are split."""
    keep_bases: int | None = None
    """Number of bases to keep: each new base removes older ones and the increments that only they need. None: the log
    keeps everything until `monolith log compact`."""
    open_reader: Callable[[ChangePosition | None], ChangeReader] | None = None
    """Opens a reader of the changes, from a mark on or from now; None: a reader of the store. For owners of rows."""
    tally: Tally | None = None
    """Source of what was trained; None: `DeltaPublisher.tally`, to which the trainer adds."""
    clock: Clock | None = None

    def __post_init__(self) -> None:
        require_positive(self, "dense_interval", "record_bytes")
        if self.keep_bases is not None and self.keep_bases < 1:
            raise InvalidArgumentError(f"DeltaPublisher: keep_bases must be >= 1 or None, got {self.keep_bases}")
        if not self.interval >= SHORTEST_INTERVAL:
            raise InvalidArgumentError(
                f"DeltaPublisher: interval must be at least {SHORTEST_INTERVAL} seconds, got {self.interval}"
            )


class DeltaPublisher:
    """Publisher of the changes of one or several stores. Thread-safe. A context manager, which starts its thread.

    Args:
        stores: The tables: one store, or several by name.
        log: Log to which changes are written: a path or URL, or a `DeltaLog`.
        options: The fields of `PublisherConfig`, by name.

    >>> import tempfile
    >>> from monolith.deltalog import DeltaLog
    >>> from monolith.online import DeltaPublisher, Follower
    >>> from monolith.tables import LocalStore, Segment, TableConfig, TableGroup
    >>> trained = LocalStore({"item": TableConfig([Segment(2)])})
    >>> served = LocalStore({"item": TableConfig([Segment(2)], serving=True)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     publisher = DeltaPublisher(trained, f"{folder}/log")
    ...     TableGroup.of_store(trained)["item"].assign([7], [[1.0, 2.0]])
    ...     _ = publisher.publish()
    ...     publisher.close()
    ...     with Follower(served, f"{folder}/log") as follower:
    ...         follower.catch_up()
    >>> TableGroup.of_store(served)["item"].lookup([7])
    tensor([[1., 2.]])
    """

    def __init__(self, stores: Store | Mapping[str, Store], log: DeltaLog | str, **options: Any) -> None:
        self._config = PublisherConfig(**options)
        self._clock = self._config.clock or SystemClock()
        self._stores = named_stores(stores)
        self.log = log if isinstance(log, DeltaLog) else DeltaLog(log)
        self.tally = ExamplesTally()
        """What was trained since the last increment; the trainer adds to it."""
        self._trained: Tally = self.tally if self._config.tally is None else self._config.tally
        self._kept = Trained()
        """Counts taken from the tally and not yet in the log."""
        self._lock = threading.RLock()
        self._thread: PeriodicThread | None = None
        self._parts: dict[str, StorePublisher] = {}
        """Store -> its publisher."""
        self._dense: PartWriter | None = None
        self._dense_due = 0.0
        self._before_cut: dict[str, int] = {}
        self._saved: str | None = None
        """Path of a checkpoint that is to become a base."""
        self.failures = 0
        """Number of failed rounds."""
        self.last_error: Exception | None = None
        """Error of the last round; None: it succeeded."""
        self._replaced: AbortedError | None = None
        self.restored = self._config.restored
        """Position of the log at the checkpoint from which the stores were restored; None: unknown."""

    @property
    def numbers(self) -> dict[str, int]:
        """Part -> number of its last increment; serializable as JSON."""
        numbers = {part: number for publisher in self._parts.values() for part, number in publisher.numbers.items()}
        return numbers if self._dense is None else {**numbers, DENSE_PART: self._dense.last_number}

    def open(self) -> None:
        """Claims the log from its previous writer; `publish` does so if needed.

        Raises:
            OpError: the log is unreachable or belongs to another model; the call can be retried.
        """
        with self._lock:
            for name, store in self._stores.items():
                if name not in self._parts:
                    self._parts[name] = self._follow_store(name, store)
            for part in self._parts.values():
                part.open()
            if self._config.dense is not None and self._dense is None:
                self._dense = self.log.open_writer(DENSE_PART)

    def _follow_store(self, name: str, store: Store) -> StorePublisher:
        options = self._config
        settings = StorePublishingConfig(options.interval, self.restored, options.record_bytes)
        if isinstance(store, PublishedRows):
            return store.open_publisher(name, self.log, settings)
        return LocalPublisher(name, store, self.log, settings, buckets=options.buckets, open_reader=options.open_reader)

    @property
    def is_replaced(self) -> bool:
        """Whether another writer has the log."""
        return self._replaced is not None

    def require_own(self) -> None:
        """Raises AbortedError if another writer has the log."""
        if self._replaced is not None:
            raise self._replaced

    def publish(self) -> int:
        """Writes all changes so far; returns the number of increments.

        Raises:
            AbortedError: another writer has the log; this publisher cannot continue.
            OpError: the log is unreachable; the next round writes the changes.
        """
        return self._publish(everything=True)

    def _publish(self, *, everything: bool) -> int:
        """Runs a round; unless `everything`, stores with clocks of their own publish on their own schedule."""
        with self._lock:
            if self._replaced is not None:
                raise self._replaced
            try:
                written = self._round(everything=everything)
            except AbortedError as error:
                self._replaced = error
                self.last_error = error
                raise
            except Exception as error:
                self.failures += 1
                self.last_error = error
                raise
            self.last_error = None
            self._name_base()
            return written

    def start(self) -> None:
        """Starts the publishing thread."""
        if self._thread is not None:
            raise FailedPreconditionError("DeltaPublisher: it was started before")
        # Open here if possible: changes are followed from now on even if the log is unreachable.
        try:
            self.open()
        except AbortedError:
            raise
        except OpError as error:
            _log.warning("delta log: cannot be opened now, and is tried again: %s", error)
        interval = self._config.interval
        self._thread = PeriodicThread(
            self._publish_on_time,
            every=interval,
            name="monolith-delta-publisher",
            backoff=Backoff(2 * interval, max(LONGEST_PAUSE, interval)),
        )
        self._thread.start()

    def close(self, *, last_words: bool = True) -> None:
        """Stops the thread and, if `last_words`, tries to publish the remaining changes. Idempotent."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        with self._lock:
            if last_words and self._parts and self._replaced is None:
                try:
                    self.publish()
                except OpError as error:
                    _log.warning("delta log: the last changes could not be published: %s", error)
            with ExitStack() as closing:
                for part in self._parts.values():
                    closing.callback(part.close)
                if self._dense is not None:
                    closing.callback(self._dense.close)
            self._parts, self._dense = {}, None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def numbers_now(self) -> dict[str, int]:
        """Returns the numbers, including those of ended parts; an increment being written does not count."""
        numbers = {
            part: number for publisher in list(self._parts.values()) for part, number in publisher.before_cut().items()
        }
        return numbers if self._dense is None else {**numbers, DENSE_PART: self._dense.last_number}

    def want_marks(self, marks: Mapping[str, ChangePosition]) -> dict[str, ChangePosition]:
        """Requests increments after these marks (by store), at which rows were saved; returns the marks by part."""
        marks_of_stores = [part.after_cut(marks[name]) for name, part in list(self._parts.items()) if name in marks]
        return {part: mark for part_marks in marks_of_stores for part, mark in part_marks.items()}

    # Checkpoints: see `monolith.checkpoint.train_state.CutWitness`

    def before_cut(self) -> None:
        """Records the current numbers as written before the cut."""
        with self._lock:
            self._before_cut = self.numbers_now()

    def after_cut(self, marks: Mapping[str, ChangePosition], *, step: int) -> bytes | None:
        """Returns the position of the log at a cut; None if no run could resume from it."""
        with self._lock:
            if not marks or not self._parts:
                return None
            position = LogPosition(
                place=self.log.place, step=step, numbers=self._before_cut, marks=self.want_marks(marks)
            )
            return position.to_bytes()

    def committed(self, path: str) -> None:
        """Makes the next round add this checkpoint as a base for followers."""
        self._saved = path

    # Internals

    def _name_base(self) -> None:
        """Adds the pending checkpoint as a base. After an error the next round retries; the rows are in the log."""
        path, keep = self._saved, self._config.keep_bases
        if path is None:
            return
        try:
            add_checkpoint_base(self.log, path)
            if keep is not None:
                self.log.trim(keep_bases=keep)
        except NotFoundError as error:
            _log.warning("delta log: checkpoint '%s' has gone, and is no base: %s", path, error)
        except OpError as error:
            _log.warning("delta log: checkpoint '%s' could not be named as a base, tried again: %s", path, error)
            return
        if self._saved == path:
            self._saved = None

    def _round(self, *, everything: bool) -> int:
        self.open()
        now = self._clock.monotonic()
        weights = self._copied_weights() if self._dense is not None and now >= self._dense_due else None
        self._kept = self._kept.before(self._trained.take())
        written = sum(
            part.publish(self._kept)
            for part in self._parts.values()
            if everything or weights is not None or not part.has_own_clock
        )
        trained, self._kept = self._kept, Trained(step=self._kept.step, stamps=self._kept.stamps)
        if weights is not None and self._dense is not None:
            # The rows that these weights were trained with are in the log now.
            needs = {part: number for publisher in self._parts.values() for part, number in publisher.needs().items()}
            payload = tensors_to_bytes(weights)
            self._dense.append(kind=IncrementKind.DENSE, step=trained.step, needs=needs, payload=payload)
            self._dense_due = now + self._config.dense_interval
            written += 1
        return written

    def _copied_weights(self) -> dict[str, Tensor] | None:
        """Copies the dense weights; None if `step_lock` is held, for example by a cut that waits for this publisher."""
        dense, lock = self._config.dense, self._config.step_lock
        if dense is None or (lock is not None and not lock.acquire(timeout=LOCK_SECONDS)):
            return None
        try:
            return {name: tensor.detach().cpu().clone() for name, tensor in dense().items()}
        finally:
            if lock is not None:
                lock.release()

    def _publish_on_time(self) -> float | End:
        begun = self._clock.monotonic()
        try:
            self._publish(everything=False)
        except AbortedError as error:
            _log.error("%s", error)
            if self._config.on_replaced is not None:
                self._config.on_replaced()
            return END
        return max(0.0, begun + self._config.interval - self._clock.monotonic())
