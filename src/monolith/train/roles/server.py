"""A process of a job that is a parameter server."""

from __future__ import annotations

import logging
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from monolith.cluster import ReservedPort, split_address
from monolith.errors import AbortedError, AlreadyExistsError
from monolith.files import join
from monolith.ps import find_place
from monolith.ps.recovery import RecoveryConfig
from monolith.ps.server import PsServer
from monolith.train.roles.preparation import on_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.ps import ServerPlace
    from monolith.train.roles.place import RolePlace

_log = logging.getLogger(__name__)

_TAKEN_SECONDS = 10.0
"""Seconds to wait for the end of a process that has the index and answers."""
_ASK_AGAIN_SECONDS = 0.2
_LOOK_SECONDS = 10.0
"""Interval in seconds at which a server checks that it is still registered."""


def run_server(place: RolePlace, *, on_stop: Callable[[], None] | None = None) -> None:
    """Registers a server and serves until the chief or a signal stops it.

    A spare server stands by until it is assigned an index, and then serves on the same port.

    An index belongs to one process: a second one is refused while the first one answers. A process that did not answer,
    such as a paused one, exits when it finds another process registered under its index.

    Raises:
        AlreadyExistsError: another process that answers has this index.
        AbortedError: another process has taken this index.
    """
    _require_free(place)
    signals: list[int] = []
    host, port = split_address(place.address)
    numbers = None if place.has_standbys else (place.index, place.num_ps)
    is_registered = False
    with ExitStack() as stack:
        if place.has_standbys:  # it listens twice: between the two, the port must remain its own
            port = stack.enter_context(ReservedPort(place.address)).port
        while True:
            with _server(place, host, port, numbers) as server:
                if not is_registered:
                    is_registered = True
                    place.discovery.register("ps", place.index, server.address)
                    _log.info("parameter server %d is at %s", place.index, server.address)
                with on_signals(_stopping(server, signals), signals=(signal.SIGTERM, signal.SIGINT)):
                    while not server.wait(_LOOK_SECONDS):
                        _require_registered(place, server)
            if server.assigned is None:
                place.discovery.deregister("ps", place.index, server.address)
                if signals and on_stop is not None:
                    on_stop()
                return
            numbers = server.assigned
            _log.info("parameter server %d becomes the one of index %d of %d", place.index, *numbers)


def _require_free(place: RolePlace) -> None:
    """Checks that the index is free, before its recovery record is touched. Waits for a process that is ending."""
    end = time.monotonic() + _TAKEN_SECONDS
    while (other := _other_server(place)) is not None:
        if time.monotonic() >= end:
            raise AlreadyExistsError(
                f"parameter server {place.index}: the process at {other.address} has this index, and answers; start"
                " each server with an index of its own, or end that one first"
            )
        time.sleep(_ASK_AGAIN_SECONDS)


def _require_registered(place: RolePlace, server: PsServer) -> None:
    try:
        other = _other_server(place, server)
    except Exception as error:  # noqa: BLE001 - the service may recover, whatever it answers until then
        _log.warning("discovery failed to return the address of parameter server %d: %s", place.index, error)
        return
    if other is not None:
        raise AbortedError(
            f"parameter server {place.index}: the process at {other.address} has taken this index; this one, at"
            f" {server.address}, ends"
        )


def _other_server(place: RolePlace, own: PsServer | None = None) -> ServerPlace | None:
    """Returns another process of this job that answers at the address registered for this index, or None."""
    # `query` of some services waits until every server accepts connections.
    address = place.discovery.query_all().get("ps", {}).get(place.index)
    if address is None or (own is not None and address == own.address):
        return None
    other = find_place(address, token=place.token)
    if other is None or (own is not None and other.life == own.life):
        return None
    is_of_job = place.has_standbys or (other.index, other.num_ps) == (place.index, place.num_ps)
    return other if is_of_job else None


def _server(place: RolePlace, host: str, port: int, numbers: tuple[int, int] | None) -> PsServer:
    """Returns a server of this index and number of servers; without them, a standby."""
    return PsServer(
        *((0, 1) if numbers is None else numbers),
        host=host,
        port=port,
        stands_by=numbers is None,
        token=place.token,
        memory_limit_bytes=place.settings.memory_limit_bytes,
        publishes=place.publishes,
        recovery=None if numbers is None else _recovery(place),
    )


def _recovery(place: RolePlace) -> RecoveryConfig | None:
    """Returns the config of the server's recovery record; None if all servers roll back to a checkpoint together."""
    settings = place.settings
    if not settings.partial_recovery or not settings.recovery_interval_seconds:
        return None
    return RecoveryConfig(
        settings.recovery_dir or join(place.model_dir, "recovery"),
        interval_seconds=settings.recovery_interval_seconds,
        model_dir=place.model_dir,
    )


def _stopping(server: PsServer, signals: list[int]) -> Callable[[int], None]:
    def stop(number: int) -> None:
        signals.append(number)
        server.stop()

    return stop
