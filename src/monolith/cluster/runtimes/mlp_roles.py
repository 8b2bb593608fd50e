"""Work of MLP processes before training, by role."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from monolith.clock import SystemClock
from monolith.cluster.addresses import concat_ip_and_port
from monolith.cluster.liveness import check_port
from monolith.cluster.runtimes.mlp import MLPEnv
from monolith.errors import FailedPreconditionError, UnimplementedError

if TYPE_CHECKING:
    from monolith.clock import Clock

_log = logging.getLogger(__name__)

POLL_SECONDS = 5.0


class DataService(Protocol):
    """A service that distributes input data, for jobs that have processes for it."""

    def start_dispatcher(self, port: int) -> None:
        """Starts the dispatcher, which the other processes call."""
        ...

    def start_worker(self, port: int, dispatcher: str) -> None:
        """Starts a process that reads data for the dispatcher at this address."""
        ...

    def stop(self) -> None:
        """Stops everything that was started."""
        ...


def wait_for_port(host: str, port: int, timeout_seconds: float | None = None, *, clock: Clock | None = None) -> bool:
    """Polls every 5 s until a port accepts connections or the timeout expires; returns whether it accepts."""
    clock = clock or SystemClock()
    begin = clock.monotonic()
    while not check_port(host, port, clock=clock):
        if timeout_seconds is not None and clock.monotonic() - begin >= timeout_seconds:
            return False
        clock.sleep(POLL_SECONDS)
    return True


def wait_until_gone(host: str, port: int, *, clock: Clock | None = None) -> None:
    """Waits until a port accepts connections, then until it no longer does."""
    clock = clock or SystemClock()
    wait_for_port(host, port, clock=clock)
    while check_port(host, port, clock=clock):
        clock.sleep(POLL_SECONDS)


def mlp_pass(
    dispatcher: str = "dispatcher",
    dsworker: str = "dsworker",
    worker: str = "worker",
    *,
    env: MLPEnv | None = None,
    data_service: DataService | None = None,
    clock: Clock | None = None,
) -> str | None:
    """Runs the platform's steps for the role of this process before training; servers and other roles have none.

    A dispatcher or a data worker starts its part of the data service, lives as long as worker 0 does, and ends with
    ``SystemExit``: the call does not return. A training worker of a job with a dispatcher waits for the data service.

    Returns:
        ``grpc://host:port`` of the dispatcher, for a worker of a job that has one; else None.

    Raises:
        UnimplementedError: The process has a role in a data service, and none was given.
    """
    env = env or MLPEnv()
    role = env.role.lower()
    if not env.available:
        return None
    if role == worker and env.num_replicas(dispatcher):
        for peer in (dispatcher, dsworker):
            for index in range(env.num_replicas(peer)):
                wait_for_port(*_require_endpoint(env, peer, index), clock=clock)
        return f"grpc://{concat_ip_and_port(*_require_endpoint(env, dispatcher, 0))}"
    if role not in {dispatcher, dsworker}:
        return None
    if data_service is None:
        raise UnimplementedError(
            f"MLP role {role}: this process has to run a part of a data service; give mlp_pass one as data_service, or "
            "start the job without such processes"
        )
    port = _require_endpoint(env, role, env.index)[1]
    if role == dispatcher:
        data_service.start_dispatcher(port)
    else:
        host, dispatcher_port = _require_endpoint(env, dispatcher, 0)
        wait_for_port(host, dispatcher_port, clock=clock)
        data_service.start_worker(port, concat_ip_and_port(host, dispatcher_port))
    _wait_for_worker_to_end(env, worker, clock)
    data_service.stop()
    raise SystemExit(0)


def _wait_for_worker_to_end(env: MLPEnv, worker: str, clock: Clock | None) -> None:
    host, _ = _require_endpoint(env, worker, 0)
    if env.ssh_port is None:
        raise FailedPreconditionError("MLP: MLP_SSH_PORT is not set; it is needed to check whether worker 0 is alive")
    wait_until_gone(host, env.ssh_port, clock=clock)
    _log.info("MLP: worker 0 has ended, and so does this %s", env.role.lower())


def _require_endpoint(env: MLPEnv, role: str, index: int) -> tuple[str, int]:
    host, port = env.get_host(role, index), env.get_port(role, index)
    if host is None or port is None:
        name = f"MLP_{role.upper()}_{index}"
        raise FailedPreconditionError(
            f"MLP: {name}_PRIMARY_HOST and {name}_PORT must be set, got {host!r} and {port!r}"
        )
    return host, port
