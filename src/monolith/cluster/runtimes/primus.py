"""The Primus scheduler: ending an application, and its save points, through the application master.

No function here raises because the master is unreachable or refuses: a job must not fail because it cannot report its
end.
"""

from __future__ import annotations

import importlib
import logging
import threading
from typing import TYPE_CHECKING, Any

from monolith import environment
from monolith.clock import SystemClock
from monolith.cluster.addresses import concat_ip_and_port
from monolith.rpc import ClientCredentials, load_grpc, open_channel

if TYPE_CHECKING:
    from monolith.clock import Clock

_log = logging.getLogger(__name__)

RPC_TIMEOUT_SECONDS = 10.0
GRACEFUL_SHUTDOWN_MS = 20000
SAVE_POINT_POLL_SECONDS = 5.0

_channels: dict[str, Any] = {}
_channels_lock = threading.Lock()


def maybe_kill_application(reason: str) -> bool:
    """Requests the master to kill this application, with a reason for operators; returns whether it accepted."""
    master = _find_master()
    if master is None:
        _log.info("Current framework doesn't support kill. Ignore killing...")
        return False
    try:
        master.call(
            "kill",
            master.messages.KillRequest(
                exit_code=1, diagnose=reason, graceful_shutdown_timeout_ms=master.int64(GRACEFUL_SHUTDOWN_MS)
            ),
        )
    except master.rpc_error as err:
        _log.error("primus: cannot kill the application: %s", err)  # a traceback adds nothing
        return False
    return True


def maybe_finish_application() -> bool | None:
    """Reports success to the master; returns True if the master accepted, None if not or if there is no master."""
    master = _find_master()
    if master is None:
        return None
    try:
        master.call(
            "succeed", master.messages.SucceedRequest(graceful_shutdown_timeout_ms=master.int64(GRACEFUL_SHUTDOWN_MS))
        )
    except master.rpc_error as err:
        _log.error("primus: cannot finish the application: %s", err)
        return None
    return True


def create_primus_save_point(dst: str, *, clock: Clock | None = None) -> bool | None:
    """Requests a save point in a folder from the master and waits for it, polling every 5 s.

    Returns:
        Whether it was written; None where there is no master.
    """
    master = _find_master()
    if master is None:
        return None
    try:
        return _create_save_point(master, dst, clock or SystemClock())
    except master.rpc_error as err:
        _log.error("primus: cannot create a save point in %s: %s", dst, err)
        return False


def close_channels() -> None:
    """Closes the connections to masters; the next call opens new ones."""
    with _channels_lock:
        channels = list(_channels.values())
        _channels.clear()
    for channel in channels:
        channel.close()


class _Master:
    """The master at an address: its messages, and calls with the common timeout."""

    def __init__(self, addr: str) -> None:
        grpc = load_grpc(who="the application master", extra="primus")
        self.messages: Any = importlib.import_module("monolith.cluster.protos.app_master_service_pb2")
        wrappers = importlib.import_module("google.protobuf.wrappers_pb2")
        self.rpc_error: type[Exception] = grpc.RpcError
        self._int64: Any = wrappers.Int64Value
        self._channel = _get_channel(addr)

    def int64(self, value: int) -> Any:
        """Returns an optional number in the protocol's wrapper type."""
        return self._int64(value=value)

    def call(self, method: str, request: Any) -> Any:
        """Calls a method; the service descriptor gives its message types."""
        description = self.messages.DESCRIPTOR.services_by_name["AppMasterService"].methods_by_name[method]
        answer = getattr(self.messages, description.output_type.name)
        invoke = self._channel.unary_unary(
            f"/{description.containing_service.full_name}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return invoke(request, timeout=RPC_TIMEOUT_SECONDS)


def _create_save_point(master: _Master, dst: str, clock: Clock) -> bool:
    messages = master.messages
    created = master.call("createSavepoint", messages.CreateSavepointRequest(savepoint_dir=dst))
    if created.code != 0:
        _log.error("primus: save point in %s was refused with code %d: %s", dst, created.code, created.message)
        return False
    request = messages.CreateSavepointStatusRequest(savepoint_restore_id=created.savepoint_id)
    states = messages.CreateSavepointStatusResponse.CreateSavepointState
    while True:
        status = master.call("createSavepointStatus", request)
        state = status.create_savepoint_state
        if state == states.SUCCEEDED:
            _log.info("primus: save point %s is in %s", created.savepoint_id, dst)
            return True
        if state not in {states.PENDING, states.RUNNING}:
            _log.error("primus: save point in %s failed in state %s: %s", dst, state, status.message)
            return False
        clock.sleep(SAVE_POINT_POLL_SECONDS)


def _find_master() -> _Master | None:
    addr = _get_primus_am_host()
    return _Master(addr) if addr else None


def _get_primus_am_host() -> str:
    """Returns the address of the master, ``unix:<path>`` for a socket; empty when Primus did not start this process."""
    host, port = environment.get("PRIMUS_AM_RPC_HOST"), environment.get("PRIMUS_AM_RPC_PORT")
    return concat_ip_and_port(host, port) if host and port else ""


def _get_channel(addr: str) -> Any:
    with _channels_lock:
        if addr not in _channels:
            _channels[addr] = open_channel(addr, ClientCredentials())
        return _channels[addr]
