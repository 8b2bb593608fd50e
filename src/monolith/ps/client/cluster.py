"""Client of the parameter servers of a job."""

from __future__ import annotations

import logging
import math
import secrets
import socket
import threading
import weakref
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from monolith._version import __version__
from monolith.cluster import split_address
from monolith.errors import FailedPreconditionError, InvalidArgumentError, OpError, UnavailableError
from monolith.ps.agreement import WIRE_VERSION
from monolith.ps.client.connections import ClusterFrames, LivenessStream, PushBarrier
from monolith.rpc import ClientCredentials, ControlChannel, outcomes_of, results_of
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import owned_ranges, require_owners

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from monolith.rpc import ControlCall, FrameAddress, Tunnel


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """Memory use of one server."""

    index: int
    address: str
    resident_bytes: int
    """Resident memory of its process."""
    limit_bytes: int
    """Limit of resident memory; 0: no limit."""

    @property
    def out_of_memory(self) -> bool:
        """Whether its memory is above the limit."""
        return 0 < self.limit_bytes < self.resident_bytes


_log = logging.getLogger(__name__)
_SUBJECT = "parameter servers"
_GOODBYE_SECONDS = 5.0
_PROBE_SECONDS = 5.0


class PsCluster:
    """A client of all parameter servers of a job. A context manager.

    Thread-safe. Calls go to all servers concurrently.

    Args:
        servers: Control addresses, ``host:port``, in the order of the server index. The constructor waits for servers
            that are not up yet.
        token: Shared secret of the servers.
        tls_ca: PEM file with the CA certificates of the servers; turns TLS on.
        tls_certificate: PEM file with a client certificate, for servers that require one.
        tls_key: PEM file with the private key of `tls_certificate`.
        timeout_seconds: Time limit of the constructor and of each call.
        lost_after_seconds: How long a server may be unreachable before its batches fail with `UnavailableError`. None:
            until their calls time out. Set it if the caller looks up new addresses of lost servers.

    Raises:
        InvalidArgumentError: an address is given twice, or there is none.
        UnavailableError: some servers are not up; names them.
        FailedPreconditionError: a server has another index, another number of servers or another version than expected.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        token: str | None = None,
        tls_ca: str | Path | None = None,
        tls_certificate: str | Path | None = None,
        tls_key: str | Path | None = None,
        timeout_seconds: float = 60.0,
        lost_after_seconds: float | None = None,
    ) -> None:
        _require_addresses(servers)
        if not timeout_seconds > 0:
            raise InvalidArgumentError(f"{_SUBJECT}: timeout_seconds must be > 0, got {timeout_seconds}")
        self._credentials = ClientCredentials(
            token=token, tls_ca=tls_ca, tls_certificate=tls_certificate, tls_key=tls_key
        )
        self._frame_tls = self._credentials.frame_tls()
        self.token = token
        self.timeout_seconds = timeout_seconds
        self.lost_after_seconds = math.inf if lost_after_seconds is None else lost_after_seconds
        self.num_ps = len(servers)
        self.owned = owned_ranges(self.num_ps)
        """Bucket range of each server."""
        self.client = secrets.randbits(63)
        """Id of this client on the servers."""
        self._moved: list[weakref.WeakMethod[Callable[[int], None]]] = []
        self._losses: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._staying = threading.Lock()  # guards the fields below
        self._tunnels: dict[int, Tunnel] = {}
        self._secure_addresses: dict[int, FrameAddress] = {}
        self._push_hold = PushBarrier(self)
        self._initialized: set[str] = set()
        """Owners that at least one server reported as initialized."""
        self._channels = [ControlChannel(index, address, self._credentials) for index, address in enumerate(servers)]
        try:
            self._described = self._describe()
            self._stays = [
                LivenessStream(channel, self.client, described.life, self._tell_loss)
                for channel, described in zip(self._channels, self._described, strict=True)
            ]
            self.require_stay()
        except BaseException:
            self.close()
            raise

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called. A closed client makes no calls."""
        return any(channel.is_closed for channel in self._channels)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Control address of each server."""
        return tuple(channel.address for channel in self._channels)

    @property
    def frame_addresses(self) -> list[FrameAddress]:
        """Address for the batches of each server."""
        return [self.frame_address(index) for index in range(self.num_ps)]

    def frame_address(self, index: int) -> FrameAddress:
        """Returns the address for batches of a server: its frame port or, for TLS without it, a tunnel."""
        host = split_address(self._channels[index].address)[0]
        described = self._described[index]
        if not described.frames_inside:
            return host, described.frame_port
        with self._staying:
            if index not in self._secure_addresses:
                trouble = self._frame_port_trouble(index)
                if trouble is None and self._frame_tls is not None:
                    self._secure_addresses[index] = (host, described.frame_port, self._frame_tls)
                else:
                    _log.warning(
                        "%s: batches go through its control port, at a higher CPU cost: %s",
                        self._channels[index].title,
                        trouble,
                    )
                    self._tunnels[index] = self._channels[index].open_tunnel()
                    self._secure_addresses[index] = self._tunnels[index].address
            return self._secure_addresses[index]

    def _frame_port_trouble(self, index: int) -> str | None:
        """Returns why TLS on the frame port of a server cannot be used; None: it can."""
        described = self._described[index]
        if self._frame_tls is None:
            return "this process has no TLS for it"
        if not described.frames_tls:
            return "its frame port does not take TLS; see the log of the server"
        address = split_address(self._channels[index].address)[0], described.frame_port
        try:
            socket.create_connection(address, timeout=_PROBE_SECONDS).close()
        except OSError as error:
            return f"its frame port {described.frame_port} cannot be reached ({error}); is it open in the firewall?"
        return None

    def open_frames(self, words: bytes) -> ClusterFrames:
        """Opens a connection to each server for the purpose in `words`; it reconnects to servers that move."""
        return ClusterFrames(self, words)

    # Calls

    def ask(self, method: str, request: Any, *, timeout_seconds: float | None = -1.0) -> list[Any]:
        """Sends one request to all servers, or one request to each, and returns their answers.

        Args:
            method: Name of the call on the wire.
            request: A message, or a list with one for each server.
            timeout_seconds: None: no limit. Default: the limit of this client.

        Raises:
            OpError: the error of the first server that rejects the request.
        """
        return results_of(self.begin(method, request, timeout_seconds=timeout_seconds))

    def begin(self, method: str, request: Any, *, timeout_seconds: float | None = -1.0) -> list[ControlCall]:
        """Starts the calls of `ask` without waiting for the answers."""
        requests = request if isinstance(request, list) else [request] * self.num_ps
        limit = self.timeout_seconds if timeout_seconds == -1.0 else timeout_seconds
        return [
            channel.begin(method, message, limit) for channel, message in zip(self._channels, requests, strict=True)
        ]

    def ask_one(self, index: int, method: str, request: Any) -> Any:
        """Sends a request to one server and returns its answer."""
        return self._channels[index].begin(method, request, self.timeout_seconds).result()

    def channel(self, index: int) -> ControlChannel:
        """Returns the connection to one server."""
        return self._channels[index]

    def tell(self, method: str, requests: Sequence[Any]) -> None:
        """Sends release requests; ignores unreachable servers, because they have released the resource already."""
        calls = []
        for channel, message in zip(self._channels, requests, strict=True):
            if message is not None:
                with suppress(FailedPreconditionError):  # the channel is closed, and the server has released everything
                    calls.append(channel.begin(method, message, _GOODBYE_SECONDS, wait_for_ready=False))
        for call in calls:
            with suppress(OpError):
                call.result()

    def require_stay(self, *, timeout_seconds: float | None = None) -> None:
        """Ensures that every server has a live stream of this client, before the client opens a resource.

        Args:
            timeout_seconds: Time limit for each server; None: the limit of this client.

        Raises:
            FailedPreconditionError: a server was restarted and has lost its state.
            UnavailableError: a server does not answer.
        """
        limit = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        with self._staying:
            for stay in self._stays:
                stay.begin()
            for stay in self._stays:
                stay.require(limit)

    # Push barrier

    @contextmanager
    def held(self, seconds: float = 10.0) -> Iterator[None]:
        """Holds pushes to all servers, with the same batches applied on all of them. Reentrant.

        Waits for pushes that only some servers have applied; this may take several holds. A worker that died between
        two servers never completes its push: the servers then stay at different batches, which is logged once, and a
        checkpoint of that state restores only into the same number of servers.

        Args:
            seconds: Maximum length of the hold. Servers let pushes pass after it in any case.
        """
        with self._push_hold.held(seconds):
            yield

    # Moved servers

    def on_move(self, callback: Callable[[int], None]) -> None:
        """Registers a method to call with the index of each server that moves; holds a weak reference to it."""
        self._moved.append(weakref.WeakMethod(callback))

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Registers a method to call when a connection to a server ends, from a gRPC thread; holds a weak reference.

        The method is also called if this client ends the connection. Call `require_stay` to be notified of the next
        loss.
        """
        self._losses.append(weakref.WeakMethod(callback))

    def is_there(self, index: int, timeout_seconds: float) -> bool:
        """Returns whether a server answers within this time and is still the process that this client connected to."""
        try:
            call = self._channels[index].begin(
                "Describe", messages.DescribeRequest(), timeout_seconds, wait_for_ready=False
            )
            return bool(call.result().life == self._described[index].life)
        except OpError:
            return False

    def move(self, index: int, address: str, *, timeout_seconds: float | None = None) -> None:
        """Connects to a server at another address; another process may have its index now.

        Args:
            index: Index of the server.
            address: New control address.
            timeout_seconds: Time limit; None: the limit of this client.

        Raises:
            FailedPreconditionError: the server at the address has another index or version.
        """
        if not 0 <= index < self.num_ps:
            raise InvalidArgumentError(f"{_SUBJECT}: index must be from 0 to {self.num_ps - 1}, got {index}")
        split_address(address)
        channel = ControlChannel(index, address, self._credentials)
        try:
            limit = self.timeout_seconds if timeout_seconds is None else timeout_seconds
            request = messages.DescribeRequest()
            # A caller with a limit of its own retries; other callers wait for a server that is not up yet.
            described = channel.begin("Describe", request, limit, wait_for_ready=timeout_seconds is None).result()
            self._require_place(index, described, channel)
        except BaseException:
            channel.close()
            raise
        if described.life != self._described[index].life:
            if described.was_recovered:
                _log.info("%s is a new process, which recovered the state of the former one", channel.title)
            else:
                _log.warning(
                    "%s is a new process, without the rows of the former one: restore a checkpoint", channel.title
                )
        before, self._channels[index] = self._channels[index], channel
        self._described[index] = described
        stay = self._stays[index]
        self._stays[index] = LivenessStream(channel, self.client, described.life, self._tell_loss)
        stay.end()
        with self._staying:
            tunnel = self._tunnels.pop(index, None)
            self._secure_addresses.pop(index, None)
        if tunnel is not None:
            tunnel.close()
        before.close(moved_to=address)
        self._moved = [reference for reference in self._moved if reference() is not None]
        for reference in self._moved:
            callback = reference()
            if callback is not None:
                callback(index)

    def stop_servers(self, *, drain_seconds: float = 5.0) -> None:
        """Requests that all servers end their processes."""
        self.ask("Stop", messages.StopRequest(drain_seconds=drain_seconds))

    def uninitialized(self, owner: str) -> list[int]:
        """Returns the servers on which the owner was not initialized since their process began."""
        answers = self.ask("Initialized", messages.OwnersRequest(owners=[owner]))
        lost = [index for index, answer in enumerate(answers) if not answer.owners]
        if len(lost) < self.num_ps:
            self._initialized.add(owner)
        return lost

    def require_state(self, owner: str) -> None:
        """Raises if a server has lost the state of an owner. Called after a worker has joined.

        Without any initialized server, as in a run without a chief, nothing is required.

        Raises:
            UnavailableError: a server was restarted and is not restored yet.
        """
        answers = self.ask("Initialized", messages.OwnersRequest(owners=[owner]))
        if any(answer.owners for answer in answers):
            self._initialized.add(owner)
        lost = [index for index, answer in enumerate(answers) if not answer.owners and not answer.resumed]
        if lost and owner in self._initialized:
            raise UnavailableError(
                f"{_SUBJECT}: {', '.join(f'server {index}' for index in lost)}: restarted without the"
                f" state of {owner!r}; wait until it is restored"
            )

    def set_initialized(self, owner: str) -> None:
        """Marks the owner as initialized on all servers, until their processes end."""
        self._initialized.add(owner)
        self.ask("SetInitialized", messages.OwnersRequest(owners=[owner]))

    def health(self, *, timeout_seconds: float = 10.0) -> list[ServerHealth | None]:
        """Returns the memory use of each server; None for a server that does not answer in time."""
        answers, _ = outcomes_of(self.begin("Health", messages.HealthRequest(), timeout_seconds=timeout_seconds))
        return [
            answer and ServerHealth(index, channel.address, answer.resident_bytes, answer.limit_bytes)
            for index, (answer, channel) in enumerate(zip(answers, self._channels, strict=True))
        ]

    def benchmark(self, seconds: float) -> list[float]:
        """Runs an arithmetic benchmark on all servers concurrently; returns the rounds per second of each."""
        request = messages.BenchmarkRequest(seconds=seconds)
        answers = self.ask("Benchmark", request, timeout_seconds=seconds + self.timeout_seconds)
        return [float(answer.throughput) for answer in answers]

    def close(self) -> None:
        """Closes the connections; servers release the resources of this client and keep running. Idempotent."""
        for stay in getattr(self, "_stays", ()):
            stay.end()
        for tunnel in self._tunnels.values():
            tunnel.close()
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Implementation

    def _tell_loss(self) -> None:
        for reference in self._losses:
            callback = reference()
            if callback is not None:
                callback()

    def _describe(self) -> list[Any]:
        calls = self.begin("Describe", messages.DescribeRequest())
        answers: list[Any] = []
        missing: list[str] = []
        for call, channel in zip(calls, self._channels, strict=True):
            try:
                answers.append(call.result())
            except OpError as error:
                if error.error_code not in {4, 14}:  # an answer in time, over a connection
                    raise
                missing.append(channel.title)
        if missing:
            raise UnavailableError(
                f"{', '.join(missing)}: not up after {self.timeout_seconds} s ({len(answers)} of {self.num_ps} are);"
                " start them, or check the address, the network and whether TLS is on and the CA trusted on both sides"
            )
        by_index: dict[int, str] = {}
        for described, channel in zip(answers, self._channels, strict=True):
            if described.index in by_index and described.num_ps == self.num_ps:
                raise FailedPreconditionError(
                    f"{_SUBJECT}: those at {by_index[described.index]} and {channel.address} are both started as index"
                    f" {described.index} of {described.num_ps}; start each with an index of its own"
                )
            by_index[described.index] = channel.address
        for index, (described, channel) in enumerate(zip(answers, self._channels, strict=True)):
            self._require_place(index, described, channel)
        return answers

    def _require_place(self, index: int, described: Any, channel: ControlChannel) -> None:
        if (described.version, described.wire_version) != (__version__, WIRE_VERSION):
            raise FailedPreconditionError(
                f"{channel.title} is of version {described.version} (wire {described.wire_version}), this client of"
                f" {__version__} (wire {WIRE_VERSION}); use the same on both"
            )
        if described.stands_by:
            raise UnavailableError(f"{channel.title} stands by, and has no place yet; expected index {index}")
        if (described.index, described.num_ps) != (index, self.num_ps):
            raise FailedPreconditionError(
                f"{channel.title} reports index {described.index} of {described.num_ps}, expected index"
                f" {index} of {self.num_ps}; give the addresses of all servers, in the order of their index"
            )


def _require_addresses(servers: Sequence[str]) -> None:
    if isinstance(servers, str):
        raise TypeError(f"{_SUBJECT}: a list of addresses expected, got the text {servers!r}")
    require_owners(len(servers), subject=_SUBJECT, name="number of servers")
    for index, address in enumerate(servers):
        split_address(address)
        if address in servers[:index]:
            raise InvalidArgumentError(
                f"{_SUBJECT}: each address once expected, got {address!r} as server {list(servers).index(address)} and"
                f" as server {index}"
            )
