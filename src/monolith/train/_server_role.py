"""A process of a job that is a parameter server."""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

from monolith.cluster.addresses import split_address
from monolith.cluster.held_port import HeldPort
from monolith.files import join
from monolith.ps.recovery.config import RecoveryConfig
from monolith.ps.server import PsServer
from monolith.train._job_signals import on_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.train._role_place import RolePlace

__all__ = ["run_server"]

_log = logging.getLogger(__name__)


def run_server(place: RolePlace, *, on_stop: Callable[[], None] | None = None) -> None:
    """Registers a server and serves until the end is asked for, by the chief or by a signal.

    One of more servers than are used stands by until it is given a place, and then serves on the same port.

    Args:
        place: Who it is.
        on_stop: Called in the end, if it came by a signal.
    """
    signals: list[int] = []
    host, port = split_address(place.address)
    numbers = None if place.has_standbys else (place.index, place.num_ps)
    is_registered = False
    with ExitStack() as stack:
        if place.has_standbys:  # it listens twice: between the two, the port must remain its own
            port = stack.enter_context(HeldPort(place.address)).port
        while True:
            with _server(place, host, port, numbers) as server:
                if not is_registered:
                    is_registered = True
                    place.discovery.register("ps", place.index, server.address)
                    _log.info("parameter server %d is at %s", place.index, server.address)
                with on_signals(_stopping(server, signals), signals=(signal.SIGTERM, signal.SIGINT)):
                    server.wait()
            if server.assigned is None:
                place.discovery.deregister("ps", place.index, server.address)
                if signals and on_stop is not None:
                    on_stop()
                return
            numbers = server.assigned
            _log.info("parameter server %d becomes the one of index %d of %d", place.index, *numbers)


def _server(place: RolePlace, host: str, port: int, numbers: tuple[int, int] | None) -> PsServer:
    """One of this index and number of servers; without them, one that stands by."""
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
    """What the server writes down while it serves; where all go back to a checkpoint together, nothing."""
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
