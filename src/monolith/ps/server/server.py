"""A parameter server: keeps the rows of some buckets of any number of stores, for workers in other processes."""

from __future__ import annotations

import logging
import os
import secrets
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

from monolith import _core
from monolith.cluster import EVERY_INTERFACE, concat_ip_and_port, get_local_ip
from monolith.config import Config, config, keywords_of
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.job import CoordinatorService
from monolith.observe import resident_bytes
from monolith.ps.dense.shard import DenseShard
from monolith.ps.dense.wire import WORDS
from monolith.ps.recovery.manager import RecoveryManager
from monolith.ps.server.control_service import ControlService
from monolith.ps.server.push_gates import DENSE_OWNER, Owner
from monolith.rpc import (
    CONTROL,
    MESSAGE_BYTES,
    FrameRelay,
    RpcServer,
    Send,
    ServerCredentials,
    keep_alive,
    load_grpc,
    make_handler,
)
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.stop_request import StopRequest
from monolith.tables import require_owners

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.ps.recovery.config import Recovered, RecoveryConfig

_log = logging.getLogger(__name__)

FrameServer = _core.FrameServer
_SUBJECT = "parameter server"
_LOOPBACK = "127.0.0.1"
_CONTROL_THREADS = 64
"""Maximum; threads start on demand."""
_LEAST_PING_MS = 5_000
_DRAIN_SECONDS = 5.0

Answer: TypeAlias = "tuple[bytes, Sequence[bytes | memoryview]]"
"""Head and parts of an answer."""


class FrameHandler(Protocol):
    """Handles connections for one purpose, the first line of their handshake. Called by server threads."""

    def greet(self, words: bytes, peer: str) -> bytes:
        """Returns the reply to a handshake; an error rejects the connection."""

    def call(self, words: bytes, kind: int, head: bytes, body: memoryview) -> Answer | None:
        """Returns head and parts of the answer. None: not now, the server retries after a wake-up."""


@config
class PsServerConfig(Config):
    """Options of a parameter server."""

    num_ps: int = field(kw_only=False)
    """Number of servers of the job; each has an equal part of the buckets."""
    host: str = _LOOPBACK
    """Interface to listen on; ``0.0.0.0`` or ``::`` for all. Default: this machine only."""
    port: int = 0
    """Control port; 0 picks a free one."""
    frame_port: int = 0
    """Port of the batches; 0 picks a free one. Without OpenSSL, batches over TLS use the control port instead."""
    token: str | None = field(default=None, repr=False)
    """Secret that clients must send."""
    tls_certificate: str | None = None
    """File with the server's certificate chain, PEM; given together with its key. Turns TLS on."""
    tls_key: str | None = field(default=None, repr=False)
    """File with the private key of the certificate, PEM."""
    tls_client_ca: str | None = None
    """File with the authorities whose certificates clients must show, PEM."""
    num_threads: int | None = None
    """Threads that answer batches. None: the number of cores."""
    stands_by: bool = False
    """Starts without an index. `PsServer.assigned` is the index given to it; restart the server with that index."""
    modules: tuple[str, ...] = ()
    """Modules with further optimizers for dense weights, in addition to ``torch.optim`` and ``monolith.optim``;
    imported when the server starts."""
    memory_limit_bytes: int | None = None
    """Limit of resident memory; above it the chief pauses training until memory use falls. None: no limit."""
    publishes: bool = False
    """Tracks row changes from the start, for the delta log that the chief configures. Otherwise tracking starts with
    that configuration, and followers of the log begin at a base after a restore."""
    recovery: RecoveryConfig | None = None
    """Recovery record: where the server writes its state while it serves, and restores it from. None: the state is lost
    with the process."""

    def __post_init__(self) -> None:
        require_owners(self.num_ps, subject=_SUBJECT, name="num_ps")
        for name in ("port", "frame_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise InvalidArgumentError(f"{_SUBJECT}: {name} must be from 0 to 65535, got {getattr(self, name)}")
        if self.num_threads is not None and self.num_threads < 1:
            raise InvalidArgumentError(f"{_SUBJECT}: num_threads must be >= 1 or None, got {self.num_threads}")
        if self.memory_limit_bytes is not None:
            if self.memory_limit_bytes < 1:
                raise InvalidArgumentError(
                    f"{_SUBJECT}: memory_limit_bytes must be >= 1 or None, got {self.memory_limit_bytes}"
                )
            resident_bytes()  # rejects a limit on a machine that cannot report resident memory
        self.credentials()

    def credentials(self) -> ServerCredentials:
        """Returns the credentials that clients must present."""
        return ServerCredentials(
            token=self.token,
            tls_certificate=self.tls_certificate,
            tls_key=self.tls_key,
            tls_client_ca=self.tls_client_ca,
        )


class PsServer:
    """One parameter server. It serves from construction until `close`. A context manager.

    >>> with PsServer(0, num_ps=1) as server:
    ...     server.address.partition(":")[0]
    '127.0.0.1'

    Args:
        index: Index of this server, from 0. It owns the buckets b with b * num_ps // 1024 == index.
        options: The fields of `PsServerConfig`, by name.

    Raises:
        InvalidArgumentError: the index is not below num_ps.
        UnavailableError: a port is in use.
    """

    @keywords_of(PsServerConfig)
    def __init__(self, index: int, options: PsServerConfig) -> None:
        if not 0 <= index < options.num_ps:
            raise InvalidArgumentError(
                f"{_SUBJECT}: index must be from 0 to num_ps - 1 = {options.num_ps - 1}, got {index}"
            )
        load_grpc(who="a parameter server", extra="ps")
        self.index = index
        self.options = options
        self.dense = DenseShard(index, options.num_ps, gate=_core.PushGate(on_open=self._wake), modules=options.modules)
        """The dense weights of this server."""
        self.handlers: dict[bytes, FrameHandler] = {WORDS: self.dense}
        """Purpose, such as ``b"dense"``, to its handler. The core handles rows."""
        self._stop_request = StopRequest()
        self._drain_seconds = _DRAIN_SECONDS
        self._credentials = options.credentials()
        self._frame_tls = self._credentials.frame_tls()
        # Recover before clients can connect: a worker must never see a server with only part of its rows.
        self._recovery = RecoveryManager(options.recovery, (index, options.num_ps))
        self._recovery.recover(self.dense)
        with self._recovery.abandoned_on_error():
            self.frames = self._start_frames()
        self._service = ControlService(
            place=(index, options.num_ps),
            life=secrets.randbits(63),
            frames=self.frames,
            on_stop=self.stop,
            memory_limit_bytes=options.memory_limit_bytes,
        )
        self._service.frames_inside = self._has_tls
        self._service.frames_tls = self._frame_tls is not None
        self.assigned: tuple[int, int] | None = None
        """Index and number of servers assigned to a standby server; `wait` returns then."""
        if options.stands_by:
            self._service.on_assign = self._take_place
        self._relay = FrameRelay(self.frames.adopt, self._credentials) if self._has_tls else None
        self.add_owner(DENSE_OWNER, Owner(self.dense.gate, self.dense.applied))
        self._begin_recovery()
        self.coordinator = self._make_coordinator() if index == 0 else None
        """Coordinator of the job, on the first server only (the home server); None on the others."""
        self._control = self._make_control()
        self._closed = False
        try:
            with self._recovery.starting():
                self.address = self._bind()
        except BaseException:
            self.close(0.0)
            raise
        self._control.start()
        if options.host != _LOOPBACK and not self._credentials.knows_callers:
            _log.warning(
                "%s %d on %s requires no token: any client that reaches it can train", _SUBJECT, index, self.address
            )

    address: str
    """Control address, ``host:port``: the address of the server."""

    @property
    def frame_address(self) -> str:
        """Address of the batches, ``host:port``; with TLS but without OpenSSL it is reachable on this machine only."""
        host = _LOOPBACK if self._is_tunneled else self.address.rpartition(":")[0]
        return concat_ip_and_port(host, self.frames.port)

    @property
    def life(self) -> int:
        """Random id of this process; distinguishes successive servers of one index."""
        return self._service.life

    @property
    def recovered(self) -> Recovered | None:
        """What this server recovered at start; None: it started empty."""
        return self._recovery.recovered

    def write_record(self) -> bool:
        """Writes an increment of the recovery record now. Returns False if it was preempted or disabled."""
        return self._recovery.write()

    def add_recovered_part(self, name: str, dump: Callable[[], bytes], load: Callable[[bytes], None]) -> None:
        """Adds a small state to the recovery record.

        Args:
            name: Name of the state.
            dump: Returns its bytes. Called with every increment of the record, while pushes are held: it must not
                block.
            load: Called immediately with the recovered bytes, if there are any.
        """
        self._recovery.add_part(name, dump, load)

    def add_owner(self, name: str, owner: Owner) -> None:
        """Adds an owner of state; its pushes are held together with those to the rows."""
        self._service.gates.add(name, owner)

    def steps(self) -> int:
        """Returns the number of applied batches of all workers: in the first store by name, else in the dense weights.

        This is the sum, over workers, of the number of the last batch plus one; a restore restores it.
        """
        of_rows = self._service.steps()
        return self.dense.steps() if of_rows is None else of_rows

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Waits for a stop request; returns False if there is none within this time."""
        return self._stop_request.wait(timeout_seconds)

    def stop(self, drain_seconds: float = _DRAIN_SECONDS) -> None:
        """Makes `wait` return; `close` then drains calls in flight for this time. Safe in a signal handler."""
        self._drain_seconds = max(0.0, drain_seconds)
        self._stop_request.set()

    def close(self, drain_seconds: float | None = None) -> None:
        """Stops the server: rejects new calls and drains those in flight for some seconds. Idempotent."""
        if self._closed:
            return
        self._closed = True
        seconds = self._drain_seconds if drain_seconds is None else drain_seconds
        self._service.end_benchmarks()
        self._control.stop(seconds)
        if self.coordinator is not None:
            self.coordinator.close()
        self._service.visitors.close()  # ends the liveness streams of clients, or the stop would wait for them
        self.frames.stop(seconds)
        if self._relay is not None:
            self._relay.close()
        self._control.close(seconds)
        self._recovery.close()
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Frame handler

    def greet(self, words: bytes, peer: str) -> bytes:
        """Passes a handshake to the handler of its purpose."""
        return self._handler(words).greet(words, peer)

    def call(self, words: bytes, kind: int, head: bytes, body: memoryview) -> Answer | None:
        """Passes a call to the handler of its purpose."""
        return self._handler(words).call(words, kind, head, body)

    # Implementation

    def _take_place(self, index: int, num_ps: int) -> None:
        require_owners(num_ps, subject=_SUBJECT, name="num_ps")
        if not 0 <= index < num_ps:
            raise InvalidArgumentError(f"{_SUBJECT}: index must be from 0 to num_ps - 1 = {num_ps - 1}, got {index}")
        if self.assigned not in {None, (index, num_ps)}:
            raise FailedPreconditionError(
                f"{_SUBJECT}: it was assigned {self.assigned} (index, number of servers), and cannot become"
                f" {(index, num_ps)}; does a second chief run?"
            )
        self.assigned = index, num_ps
        self._stop_request.set()

    def _wake(self) -> None:
        self.frames.wake()

    @property
    def _has_tls(self) -> bool:
        return self._credentials.tls_certificate is not None

    @property
    def _is_tunneled(self) -> bool:
        return self._has_tls and self._frame_tls is None

    def _handler(self, words: bytes) -> FrameHandler:
        purpose = words.partition(b"\n")[0]
        handler = self.handlers.get(purpose)
        if handler is None:
            known = ", ".join(sorted(name.decode(errors="replace") for name in (b"rows", *self.handlers)))
            raise NotFoundError(f"{_SUBJECT} {self.index}: no handler for {purpose[:40]!r}; it has {known}")
        return handler

    def _start_frames(self) -> FrameServer:
        return FrameServer(
            host=_LOOPBACK if self._is_tunneled else self.options.host,
            port=self.options.frame_port,
            token=self.options.token or "",
            num_threads=self.options.num_threads or os.cpu_count() or 1,
            handler=self,
            tls=self._frame_tls,
        )

    def _begin_recovery(self) -> None:
        stores = self._service.stores
        stores.is_published = self.options.publishes
        self._recovery.begin(stores, self.frames, self.dense)
        self.add_recovered_part("delta_log", stores.log_positions, stores.take_log_positions)
        self._service.was_recovered = self.recovered is not None
        self.dense.on_resumed = partial(self._service.stores.mark_resumed, DENSE_OWNER)

    def _make_coordinator(self) -> CoordinatorService:
        recovery = self.options.recovery
        coordinator = CoordinatorService(
            steps=self.steps,
            clocks=self._service.gates.clocks,
            log_folder=None if recovery is None else f"{recovery.folder}/files",
        )
        self.add_recovered_part("coordinator", coordinator.dump, coordinator.load)
        return coordinator

    def _make_control(self) -> RpcServer:
        handlers = [_control_handler(self._service, self._credentials)]
        if self.coordinator is not None:
            handlers.append(self.coordinator.handler(self._credentials))
        if self._relay is not None:
            handlers.append(self._relay.handler())
        options = [
            *keep_alive(),  # releases the resources of clients that are cut off
            ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_MS),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        return RpcServer(
            handlers,
            self._credentials,
            name=_SUBJECT,
            num_threads=_CONTROL_THREADS,
            message_bytes=MESSAGE_BYTES,
            options=options,
        )

    def _bind(self) -> str:
        host = self.options.host
        port = self._control.listen(concat_ip_and_port(host, self.options.port))
        return concat_ip_and_port(get_local_ip() if host in EVERY_INTERFACE else host, port)


def _control_handler(service: ControlService, credentials: ServerCredentials) -> Any:
    """Returns the control service as a gRPC handler."""

    def stay(request: Any, context: Any, send: Send) -> None:
        client = request.client
        service.visitors.enter(client, lambda: send(None))
        if not context.add_callback(lambda: service.leave(client)):
            service.leave(client)  # the client has disconnected already
            return
        send(messages.StayResponse(life=service.life))

    return make_handler(CONTROL, service, credentials, lasting={"Stay": stay})
