"""Indices of single parameter servers by their address: finds them, assigns them to standby servers, stops servers."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monolith.errors import DeadlineExceededError, OpError, UnavailableError
from monolith.rpc.channel import ControlChannel, outcomes_of
from monolith.rpc.credentials import ClientCredentials
from monolith.rpc.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["ANSWER_SECONDS", "ServerPlace", "assign_places", "find_place", "give_places", "stop_servers"]

_UNKNOWN = -1
ANSWER_SECONDS = 15.0
"""Time limit for an answer of a server that listens."""
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """The index of a server."""

    address: str
    index: int | None
    """None: a standby server."""
    num_ps: int
    life: int = field(default=0, compare=False)
    """Random id of the process; distinguishes processes with the same index."""


def find_place(address: str, *, token: str | None = None, timeout_seconds: float = 2.0) -> ServerPlace | None:
    """Returns the index of the server at an address; None: no server answers there within this time."""
    with closing(_channel(address, token)) as channel:
        try:
            call = channel.begin("Describe", messages.DescribeRequest(), timeout_seconds, wait_for_ready=False)
            found = call.result()
        except OpError:
            return None
        return ServerPlace(address, None if found.stands_by else found.index, found.num_ps, found.life)


def assign_places(
    addresses: Mapping[int, str], num_ps: int, *, token: str | None = None, timeout_seconds: float = 60.0
) -> None:
    """Assigns indices as `give_places` does, to servers by their addresses."""
    with ExitStack() as stack:
        channels = {index: stack.enter_context(closing(_channel(each, token))) for index, each in addresses.items()}
        give_places(channels, num_ps, timeout_seconds=timeout_seconds)


def give_places(channels: Mapping[int, ControlChannel], num_ps: int, *, timeout_seconds: float) -> None:
    """Assigns indices to standby servers, and returns when they serve; accepts servers that have their index already.

    A standby server stops listening briefly while it restarts with its index; it is not lost.

    Args:
        channels: Index -> the server to assign it to.
        num_ps: Number of servers of the job.
        timeout_seconds: Time limit.

    Raises:
        FailedPreconditionError: one of them has another index.
        DeadlineExceededError: one of them does not restart.
    """
    deadline = time.monotonic() + timeout_seconds
    while missing := _without_place(channels, num_ps):
        requests = [messages.TakePlaceRequest(index=index, num_ps=num_ps) for index in missing]
        calls = [
            channel.begin("TakePlace", request, ANSWER_SECONDS, wait_for_ready=False)
            for channel, request in zip(missing.values(), requests, strict=True)
        ]
        for call in calls:
            with suppress(UnavailableError, DeadlineExceededError):  # it may be restarting with its index
                call.result()
        if time.monotonic() >= deadline:
            absent = ", ".join(channel.address for channel in missing.values())
            raise DeadlineExceededError(
                f"parameter servers at {absent} were assigned their indices and do not serve within"
                f" {timeout_seconds} s; check their logs"
            )
        time.sleep(_LOOK_SECONDS)


def _without_place(channels: Mapping[int, ControlChannel], num_ps: int) -> dict[int, ControlChannel]:
    request = messages.DescribeRequest()
    calls = [channel.begin("Describe", request, ANSWER_SECONDS, wait_for_ready=False) for channel in channels.values()]
    answers = zip(channels.items(), outcomes_of(calls)[0], strict=True)
    return {index: channel for (index, channel), told in answers if not _is_at(told, index, num_ps)}


def _is_at(told: Any, index: int, num_ps: int) -> bool:
    return told is not None and not told.stands_by and (told.index, told.num_ps) == (index, num_ps)


def stop_servers(addresses: Iterable[str], *, token: str | None = None, drain_seconds: float = 5.0) -> list[str]:
    """Requests that servers end their processes; returns the addresses of those that could not be reached."""
    failed = []
    channels = [_channel(address, token) for address in addresses]
    request = messages.StopRequest(drain_seconds=drain_seconds)
    calls = [channel.begin("Stop", request, ANSWER_SECONDS, wait_for_ready=False) for channel in channels]
    for channel, call in zip(channels, calls, strict=True):
        try:
            call.result()
        except OpError:
            failed.append(channel.address)
        channel.close()
    return failed


def _channel(address: str, token: str | None) -> ControlChannel:
    return ControlChannel(_UNKNOWN, address, ClientCredentials(token=token))
