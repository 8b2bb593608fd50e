"""`ParameterSyncHook`: pushes rows to serving while a session trains, in a background thread.

The backend provides the pusher and the receivers; `monolith.serving` has one over a discovery service.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from monolith.background import PeriodicThread
from monolith.clock import SystemClock
from monolith.deltalog.publish import POSITION_NAME, DeltaPublisher
from monolith.errors import OpError
from monolith.hook import Hook, HookedSession, StepContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.clock import Clock

_log = logging.getLogger(__name__)

PUSH_SECONDS = 10.0
"""Seconds from the start of one push of a server to the start of the next."""
LIMIT_SECONDS = 60.0
"""Time limit of one push."""


class Pusher(Protocol):
    """Pushes to the receivers of one shard."""

    def set_targets(self, targets: Sequence[str]) -> None:
        """Replaces the receivers."""

    def push(self, *, limit_seconds: float) -> object:
        """Sends the receivers the rows that they lack; raises an `OpError` if none of them receives anything."""

    def close(self) -> None:
        """Closes connections."""


class SyncBackend(Protocol):
    """The receivers of the rows of a model. Thread-safe."""

    @property
    def num_shards(self) -> int:
        """Number of serving shards of the model."""

    def get_sync_targets(self, sub_graph: str) -> Sequence[str]:
        """Returns the addresses of the replicas of a sub-graph, such as ``ps_0``."""

    def open_pusher(self, ps_index: int) -> Pusher:
        """Returns a pusher for ``ps_<index>``; the caller closes it."""


class PushThread:
    """A thread that pushes to one shard.

    Args:
        backend: Provides the receivers.
        ps_index: Index of the shard.
        interval: Seconds from the start of one push to the start of the next; None: pushes when `wake` is called.
        refresh_interval: Seconds between two queries of the receivers.
        limit_seconds: Time limit of one push.
        clock: Measures the time.
    """

    def __init__(
        self,
        backend: SyncBackend,
        ps_index: int,
        *,
        interval: float | None = PUSH_SECONDS,
        refresh_interval: float = 0.0,
        limit_seconds: float = LIMIT_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._backend = backend
        self._sub_graph = f"ps_{ps_index}"
        self._pusher = backend.open_pusher(ps_index)
        self._interval = interval
        self._refresh_interval = refresh_interval
        self._limit_seconds = limit_seconds
        self._clock = clock or SystemClock()
        self._refresh_at = float("-inf")
        self._thread = PeriodicThread(self._push_on_time, every=interval, name=f"monolith-push-{ps_index}")

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Wakes the thread, because there may be rows to push."""
        self._thread.wake()

    def close(self) -> None:
        """Stops the thread, and pushes the remaining rows. Idempotent."""
        if self._thread.closed.is_set():
            return
        self._thread.close()
        self._push()
        self._pusher.close()

    def _push_on_time(self) -> float | None:
        begun = self._clock.monotonic()
        self._push()
        return None if self._interval is None else max(0.0, begun + self._interval - self._clock.monotonic())

    def _push(self) -> None:
        """Pushes once. An error is logged, and the next call retries."""
        try:
            now = self._clock.monotonic()
            if now >= self._refresh_at:
                self._pusher.set_targets(self._backend.get_sync_targets(self._sub_graph))
                self._refresh_at = now + self._refresh_interval
            self._pusher.push(limit_seconds=self._limit_seconds)
        except OpError as error:
            _log.warning("push to %s: %s", self._sub_graph, error)


class ParameterSyncHook(Hook):
    """Pushes the rows of one shard after every step, in a thread that does not block steps.

    A step that ends during a push is part of the next push. The rows pushed are those that the session has published
    (`DeltaPublishHook`), so that hook attaches before this one.

    Args:
        sync_backend: Provides the receivers.
        ps_index: Index of the shard.
        refresh_interval: Seconds after which the receivers are queried again.
        clock: Measures the time.
    """

    def __init__(
        self, sync_backend: SyncBackend, ps_index: int, refresh_interval: float = 100, *, clock: Clock | None = None
    ) -> None:
        self._backend = sync_backend
        self._index = ps_index
        self._refresh_interval = refresh_interval
        self._clock = clock
        self._thread: PushThread | None = None

    def after_create_session(self, session: HookedSession) -> None:
        """Starts the thread; a rebuilt session keeps it."""
        if self._thread is not None:
            return
        self._thread = PushThread(
            self._backend, self._index, interval=None, refresh_interval=self._refresh_interval, clock=self._clock
        )
        session.on_close(lambda: self._close(session))
        self._thread.start()

    def after_run(self, context: StepContext) -> None:  # noqa: ARG002 - as every hook takes it
        """Wakes the thread after a step."""
        if self._thread is not None:
            self._thread.wake()

    def _close(self, session: HookedSession) -> None:
        publisher = session.state.witnesses.get(POSITION_NAME)
        if isinstance(publisher, DeltaPublisher):
            try:
                publisher.publish()  # it closes after this hook, and its last rows should be pushed, too
            except OpError as error:
                _log.warning("push: the last rows are not in the log yet: %s", error)
        if self._thread is not None:
            self._thread.close()
            self._thread = None
