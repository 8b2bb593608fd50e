"""Connections of a client to all servers: liveness streams, frames, and the hold on pushes."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from monolith import _core
from monolith.errors import CancelledError, FailedPreconditionError, UnavailableError
from monolith.rpc import results_of
from monolith.rpc.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from monolith.ps.client.cluster import PsCluster
    from monolith.ps.server.push_gates import Clocks
    from monolith.rpc import ControlChannel


class LivenessStream:
    """The liveness stream of one client at one server. Restartable after a lost connection. Not thread-safe.

    `on_end` is called from a gRPC thread when the stream has ended, by either side.
    """

    def __init__(
        self, channel: ControlChannel, client: int, life: int, on_end: Callable[[], None] = lambda: None
    ) -> None:
        self._channel = channel
        self._request = messages.StayRequest(client=client)
        self._life = life
        self._on_end = on_end
        self._stream: Any = None
        self._is_known = False

    def begin(self) -> None:
        """Opens the stream, unless it is active."""
        if self._stream is None or not self._stream.is_active():
            self._stream = self._channel.open_stream("Stay", self._request)
            self._is_known = False
            self._stream.add_callback(self._on_end)

    def require(self, timeout_seconds: float) -> None:
        """Waits until the server has confirmed the stream.

        Raises:
            FailedPreconditionError: the server is another process than before.
            UnavailableError: the server does not answer.
        """
        if self._is_known:
            return
        limit = threading.Timer(timeout_seconds, self._stream.cancel)
        limit.start()
        try:
            answer = next(self._channel.answers(self._stream, "Stay"))
        except (CancelledError, StopIteration) as error:
            raise UnavailableError(
                f"{self._channel.title}: it did not take this client in within {timeout_seconds} s, or is about to end"
            ) from error
        finally:
            limit.cancel()
        if answer.life != self._life:
            self.end()
            raise FailedPreconditionError(
                f"{self._channel.title} was restarted after this client connected, and lost its rows; connect to the"
                " servers again and restore a checkpoint"
            )
        self._is_known = True

    def end(self) -> None:
        """Ends the stream. Idempotent."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
            self._is_known = False


class ClusterFrames:
    """`_core.FrameClient` for one purpose. Thread-safe."""

    def __init__(self, cluster: PsCluster, words: bytes) -> None:
        self._cluster, self._words = cluster, words
        self._client = _core.FrameClient(
            cluster.frame_addresses,
            [words] * cluster.num_ps,
            token=cluster.token or "",
            lost_after_seconds=cluster.lost_after_seconds,
        )
        self.begin = self._client.begin
        self.close = self._client.close
        cluster.on_move(self._follow)

    def _follow(self, index: int) -> None:
        self._client.move(index, self._cluster.frame_address(index), self._words)


_log = logging.getLogger(__name__)
_LEVEL_SECONDS = 1.0
"""How long one hold waits for pushes that some servers have applied and others lack."""
_MOST_HOLDS = 10
"""Maximum number of successive holds until servers have the same batches; all pushes pass between two of them."""

Lack = tuple[str, int, int]
"""Owner, worker, and number of a batch that one server has applied and another lacks."""


class PushBarrier:
    """The hold of one client on all its servers. Thread-safe; one thread holds at a time."""

    def __init__(self, cluster: PsCluster) -> None:
        self._cluster = cluster
        self._holding = threading.RLock()  # guards the fields below
        self._depth = 0
        self._awaited_in_vain: set[Lack] = set()
        """Missing batches that did not arrive; not waited for again as long as they are missing."""

    @contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        """Holds pushes; see `PsCluster.held`."""
        with self._holding:
            if self._depth == 0:
                self._hold(seconds)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._release()

    def _hold(self, seconds: float) -> None:
        self._cluster.require_stay()
        for holds in range(1, _MOST_HOLDS + 1):
            try:
                apart = self._hold_once(seconds)
            except BaseException:
                self._release()
                raise
            self._awaited_in_vain &= apart  # after a restore, batches of these numbers may be pushed again
            lacked = apart - self._awaited_in_vain
            if not lacked:
                return
            if holds < _MOST_HOLDS:
                self._release()  # a slow worker continues, and a dead one blocks the others only briefly
        self._awaited_in_vain |= lacked
        _log.warning(
            "parameter servers: a push to %s has not reached all servers; its worker may have died in between. Until"
            " that worker resumes, a checkpoint restores only into the same number of servers",
            ", ".join(sorted({owner for owner, _, _ in lacked})),
        )

    def _hold_once(self, seconds: float) -> set[Lack]:
        """Holds pushes, lets missing ones pass that other servers have applied, and returns those still missing."""
        cluster = self._cluster
        request = messages.HoldRequest(client=cluster.client, seconds=seconds)
        # Server 0 decides which client holds: two clients that start at different servers would deadlock.
        first = cluster.ask_one(0, "Hold", request)
        channels = [cluster.channel(index) for index in range(cluster.num_ps)]
        calls = [channel.begin("Hold", request, cluster.timeout_seconds) for channel in channels[1:]]
        clocks = [_clocks_in(answer) for answer in [first, *results_of(calls)]]
        newest = _newest(clocks)
        calls = []
        for channel, clock in zip(channels, clocks, strict=True):
            lacked = _lacked(clock, newest)
            if lacked:
                level = messages.LevelRequest(
                    client=cluster.client,
                    clocks={owner: messages.Clock(seqs=newest[owner]) for owner, _, _ in lacked},
                    wait_seconds=0.0 if lacked <= self._awaited_in_vain else _LEVEL_SECONDS,
                )
                calls.append(channel.begin("Level", level, cluster.timeout_seconds))
        return {lack for answer in results_of(calls) for lack in _lacked(_clocks_in(answer), newest)}

    def _release(self) -> None:
        cluster = self._cluster
        cluster.tell("Release", [messages.ReleaseRequest(client=cluster.client)] * cluster.num_ps)


def _clocks_in(answer: Any) -> Clocks:
    return {name: dict(clock.seqs) for name, clock in answer.clocks.items()}


def _newest(clocks: Sequence[Clocks]) -> Clocks:
    """Returns owner -> worker -> the last batch that any server has applied."""
    newest: Clocks = {}
    for clock in clocks:
        for name, seqs in clock.items():
            known = newest.setdefault(name, {})
            for worker, seq in seqs.items():
                known[worker] = max(seq, known.get(worker, seq))
    return newest


def _lacked(clock: Clocks, newest: Clocks) -> set[Lack]:
    """Returns the batches that a server lacks and others have applied."""
    return {
        (owner, worker, seq)
        for owner, seqs in clock.items()
        for worker, seq in newest.get(owner, {}).items()
        if seqs.get(worker, -1) < seq
    }
