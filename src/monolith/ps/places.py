"""Single parameter servers by their address: which place each has, giving one to those that stand by, ending them."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.cluster.credentials import ClientCredentials
from monolith.errors import OpError, UnavailableError
from monolith.ps._control_channel import ControlChannel
from monolith.ps.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ServerPlace", "assign_place", "find_place", "stop_servers"]

_UNKNOWN = -1
_STOP_SECONDS = 5.0
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """The place of a server."""

    address: str
    index: int | None
    """None: it stands by."""
    num_ps: int


def find_place(address: str, *, token: str | None = None, timeout_seconds: float = 2.0) -> ServerPlace | None:
    """The place of the server at an address; None: nobody answers there within this time, or nobody listens."""
    with closing(_channel(address, token)) as channel:
        try:
            call = channel.begin("Describe", messages.DescribeRequest(), timeout_seconds, wait_for_ready=False)
            found = call.result()
        except OpError:
            return None
        return ServerPlace(address, None if found.stands_by else found.index, found.num_ps)


def assign_place(
    address: str, index: int, num_ps: int, *, token: str | None = None, timeout_seconds: float = 60.0
) -> None:
    """Gives a place to a server that stands by, and waits until it has it; one that has it already agrees.

    Raises:
        FailedPreconditionError: it has another one.
        UnavailableError, DeadlineExceededError: nobody answers there.
    """
    end = time.monotonic() + timeout_seconds
    with closing(_channel(address, token)) as channel:
        # It stops listening for a moment, and whoever looks then must not take it for one that is gone.
        while not _takes_place(channel, index, num_ps, max(0.0, end - time.monotonic())):
            time.sleep(_LOOK_SECONDS)


def stop_servers(addresses: Iterable[str], *, token: str | None = None, drain_seconds: float = 5.0) -> list[str]:
    """Asks servers to end their processes; returns the addresses of those that could not be asked."""
    failed = []
    channels = [_channel(address, token) for address in addresses]
    request = messages.StopRequest(drain_seconds=drain_seconds)
    calls = [channel.begin("Stop", request, _STOP_SECONDS, wait_for_ready=False) for channel in channels]
    for channel, call in zip(channels, calls, strict=True):
        try:
            call.result()
        except OpError:
            failed.append(channel.address)
        channel.close()
    return failed


def _takes_place(channel: ControlChannel, index: int, num_ps: int, timeout_seconds: float) -> bool:
    """Tells a server its place; whether it has it, and does not end just now to begin again there."""
    request = messages.TakePlaceRequest(index=index, num_ps=num_ps)
    try:
        channel.begin("TakePlace", request, timeout_seconds).result()
        return not channel.begin("Describe", messages.DescribeRequest(), timeout_seconds).result().stands_by
    except UnavailableError:  # it ended before it answered
        return False


def _channel(address: str, token: str | None) -> ControlChannel:
    return ControlChannel(_UNKNOWN, address, ClientCredentials(token=token))
