"""`ParameterSyncHook`: has rows pushed to serving while a session trains, in a thread beside it.

Who pushes, and to whom, is the backend's to know; `monolith.serving` has one over a discovery service.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

from monolith.clock import SystemClock
from monolith.errors import OpError
from monolith.hook import Hook, HookedSession, StepContext
from monolith.publishing.log_position import POSITION_NAME
from monolith.publishing.publisher import DeltaPublisher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.clock import Clock

__all__ = ["ParameterSyncHook", "PushThread", "Pusher", "SyncBackend"]

_log = logging.getLogger(__name__)

PUSH_SECONDS = 10.0
"""From the beginning of one run of a server to that of the next."""
LIMIT_SECONDS = 60.0
"""Of one run."""


class Pusher(Protocol):
    """Pushes to the receivers of one shard."""

    def set_targets(self, targets: Sequence[str]) -> None:
        """Takes other receivers."""
        ...

    def push(self, *, limit_seconds: float) -> object:
        """Gives them what they do not have; raises an `OpError` where nobody gets anything."""
        ...

    def close(self) -> None:
        """Ends connections."""
        ...


class SyncBackend(Protocol):
    """Who receives the rows of a model. Any thread may call it."""

    @property
    def num_shards(self) -> int:
        """Serving shards of the model."""
        ...

    def get_sync_targets(self, sub_graph: str) -> Sequence[str]:
        """Addresses of the replicas of a sub-graph, such as ``ps_0``."""
        ...

    def open_pusher(self, ps_index: int) -> Pusher:
        """Who pushes to ``ps_<index>``; the caller closes it."""
        ...


class PushThread:
    """Pushes to one shard, in a thread of its own.

    Args:
        backend: Who receives.
        ps_index: Of the shard.
        interval: Seconds from the beginning of one run to that of the next; None: whenever `wake` was called.
        refresh_interval: Seconds for which the receivers stay as they were told.
        limit_seconds: Of one run.
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
        self._wanted = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name=f"monolith-push-{ps_index}", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def wake(self) -> None:
        """There may be something to push."""
        self._wanted.set()

    def close(self) -> None:
        """Ends the thread, and pushes what is left by then. Again: does nothing."""
        if self._stop:
            return
        self._stop = True
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._push()
        self._pusher.close()

    def _run(self) -> None:
        while not self._stop:
            begun = self._clock.monotonic()
            self._push()
            left = None if self._interval is None else max(0.0, begun + self._interval - self._clock.monotonic())
            self._wanted.wait(left)
            self._wanted.clear()

    def _push(self) -> None:
        """What goes wrong is told, and tried again with the next run."""
        try:
            now = self._clock.monotonic()
            if now >= self._refresh_at:
                self._pusher.set_targets(self._backend.get_sync_targets(self._sub_graph))
                self._refresh_at = now + self._refresh_interval
            self._pusher.push(limit_seconds=self._limit_seconds)
        except OpError as error:
            _log.warning("push to %s: %s", self._sub_graph, error)


class ParameterSyncHook(Hook):
    """Has the rows of one shard pushed behind every step, in a thread that holds no step up.

    A step that ends while a push is under way is part of the next one. What is pushed is what the session has published
    (`DeltaPublishHook`), so that attaches before it.

    Args:
        sync_backend: Who receives.
        ps_index: Number of the shard.
        refresh_interval: Seconds after which the backend is asked for receivers again.
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
        """Starts the thread; a rebuilt session goes on with the same."""
        if self._thread is not None:
            return
        self._thread = PushThread(
            self._backend, self._index, interval=None, refresh_interval=self._refresh_interval, clock=self._clock
        )
        session.on_close(lambda: self._close(session))
        self._thread.start()

    def after_run(self, context: StepContext) -> None:  # noqa: ARG002 - as every hook takes it
        """A step was made."""
        if self._thread is not None:
            self._thread.wake()

    def _close(self, session: HookedSession) -> None:
        publisher = session.state.witnesses.get(POSITION_NAME)
        if isinstance(publisher, DeltaPublisher):
            try:
                publisher.publish()  # it closes after this, and its last rows should be pushed, too
            except OpError as error:
                _log.warning("push: the last rows are not in the log yet: %s", error)
        if self._thread is not None:
            self._thread.close()
            self._thread = None
