"""The MLP platform: its environment variables, and the work of its processes before training."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from monolith import environment
from monolith.clock import SystemClock
from monolith.cluster.addresses import concat_ip_and_port
from monolith.cluster.liveness import check_port
from monolith.errors import FailedPreconditionError, UnimplementedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.clock import Clock

_log = logging.getLogger(__name__)

_PREFIXES = ("MLP_", "MPI_", "OMPI_COMM_WORLD_")
_WORKER = "WORKER"


class MLPEnv:
    """The variables ``MLP_*`` and ``MPI_*`` of a process, without their quotes; read once.

    Roles are stored in upper case; arguments may have any case. Under MPI the workers of one host share its variables:
    worker ``i`` is rank ``i``, on host ``i // local size``, at the port of worker 0 plus ``i``.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        if variables is None:
            variables = environment.starting_with(*_PREFIXES)
        self._variables = {name: value.strip().strip("'\"") for name, value in variables.items()}
        self.framework = self._get("MLP_FRAMEWORK")
        self.ssh_port = self._number("MLP_SSH_PORT")
        self.log_path = self._get("MLP_LOG_PATH")
        self.debug_port = self._number("MLP_DEBUG_PORT")
        self.entrypoint_dir = self._get("MLP_ENTRYPOINT_DIR")
        self.task_cmd = self._get("MLP_TASK_CMD")
        self.role = (self._get("MLP_ROLE") or "").upper()
        self.cpu = self._number("MLP_CPU")
        self.gpu = self._number("MLP_GPU")
        self.gpu_type = self._get("MLP_GPU_TYPE")
        self.mem = self._number("MLP_MEM")
        self.all_roles = {
            name.split("_")[1]: int(value)
            for name, value in self._variables.items()
            if name.startswith("MLP_") and name.endswith("_NUM") and name.count("_") == 2
        }

    @property
    def available(self) -> bool:
        """Whether this process runs on the platform: it has variables and at least one role."""
        return bool(self._variables) and bool(self.all_roles)

    @property
    def enable_mpi(self) -> bool:
        """Whether this process is a worker that Open MPI has started."""
        return self._get("OMPI_COMM_WORLD_RANK") is not None and self.role == _WORKER

    @property
    def index(self) -> int:
        """The index of this process in its role; under MPI its rank."""
        if self.enable_mpi:
            return self._number("OMPI_COMM_WORLD_RANK") or 0
        return self._number("MLP_ROLE_INDEX") or 0

    @property
    def port(self) -> int | None:
        """The port of this process; under MPI the common one plus its rank."""
        port = self._number("MLP_PORT")
        return port + self.index if port is not None and self.enable_mpi else port

    def num_replicas(self, role: str | None = None) -> int:
        """Returns the number of processes of a role, by default the own one; 0 for a role that the job lacks."""
        role = (role or self.role).upper()
        if self.enable_mpi and role == _WORKER:
            return self._number("OMPI_COMM_WORLD_SIZE") or 1
        return self.all_roles.get(role, 0)

    def get_host(self, role: str | None = None, index: int | None = None, is_primary: bool = True) -> str | None:
        """Returns the host of a process, by default of this one; the primary network's name or the other one."""
        role, index = (role or self.role).upper(), self.index if index is None else index
        if self.enable_mpi and role == _WORKER:
            index //= self._number("OMPI_COMM_WORLD_LOCAL_SIZE") or 1
        return self._get(f"MLP_{role}_{index}_{'PRIMARY_HOST' if is_primary else 'HOST'}")

    def get_port(self, role: str | None = None, index: int | None = None) -> int | None:
        """Returns the port of a process, by default of this one."""
        role, index = (role or self.role).upper(), self.index if index is None else index
        if self.enable_mpi and role == _WORKER:
            first = self._number(f"MLP_{role}_0_PORT")
            return None if first is None else first + index
        return self._number(f"MLP_{role}_{index}_PORT")

    def get_addr(self, role: str | None = None, index: int | None = None, is_primary: bool = True) -> str | None:
        """Returns the address of a process, by default of this one; None where the platform gives no host or port."""
        host, port = self.get_host(role, index, is_primary), self.get_port(role, index)
        return None if host is None or port is None else concat_ip_and_port(host, port)

    def get_all_host(self, role: str | None = None, is_primary: bool = True) -> list[str]:
        """Returns the hosts of a role, as the platform lists them."""
        return self._list(role, "ALL_PRIMARY_HOSTS" if is_primary else "ALL_HOSTS")

    def get_all_addrs(self, role: str | None = None, is_primary: bool = True) -> list[str]:
        """Returns the addresses of a role, as the platform lists them."""
        return self._list(role, "ALL_PRIMARY_ADDRS" if is_primary else "ALL_ADDRS")

    def _list(self, role: str | None, what: str) -> list[str]:
        listed = self._get(f"MLP_{(role or self.role).upper()}_{what}") or ""
        return [entry.strip() for entry in listed.split(",") if entry.strip()]

    def _get(self, name: str) -> str | None:
        return self._variables.get(name)

    def _number(self, name: str) -> int | None:
        value = self._get(name)
        if not value:
            return None
        try:
            return int(value)
        except ValueError as err:
            raise ValueError(f"{name} must be an integer, got {value!r}") from err


POLL_SECONDS = 5.0


class DataService(Protocol):
    """A service that distributes input data, for jobs that have processes for it."""

    def start_dispatcher(self, port: int) -> None:
        """Starts the dispatcher, which the other processes call."""

    def start_worker(self, port: int, dispatcher: str) -> None:
        """Starts a process that reads data for the dispatcher at this address."""

    def stop(self) -> None:
        """Stops everything that was started."""


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
