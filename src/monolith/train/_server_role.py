"""A process of a job that is a parameter server."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

from monolith.cluster.addresses import split_address
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
    settings = place.settings
    address, numbers = place.address, None if place.has_standbys else (place.index, place.num_ps)
    is_registered = False
    while True:
        host, port = split_address(address)
        server = PsServer(
            *((0, 1) if numbers is None else numbers),
            host=host,
            port=port,
            stands_by=numbers is None,
            token=place.token,
            memory_limit_bytes=settings.memory_limit_bytes,
            publishes=place.publishes,
            recovery=None if numbers is None else _recovery(place),
        )
        with server:
            address = server.address
            if not is_registered:
                is_registered = True
                place.discovery.register("ps", place.index, address)
                _log.info("parameter server %d is at %s", place.index, address)
            with on_signals(_stopping(server, signals), signals=(signal.SIGTERM, signal.SIGINT)):
                server.wait()
        if server.assigned is None:
            place.discovery.deregister("ps", place.index, address)
            if signals and on_stop is not None:
                on_stop()
            return
        numbers = server.assigned
        _log.info("parameter server %d becomes the one of index %d of %d", place.index, *numbers)


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
