"""Indices of parameter servers: finding and assigning them, and the choice among standby servers by a benchmark."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import torch

from monolith.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
)
from monolith.rpc import ClientCredentials, ControlChannel, outcomes_of, results_of
from monolith.rpc.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

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
            answer = call.result()
        except OpError:
            return None
        return ServerPlace(address, None if answer.stands_by else answer.index, answer.num_ps, answer.life)


def assign_places(
    addresses: Mapping[int, str], num_ps: int, *, token: str | None = None, timeout_seconds: float = 60.0
) -> None:
    """Assigns indices as `give_places` does, to servers by their addresses."""
    with ExitStack() as stack:
        channels = {
            index: stack.enter_context(closing(_channel(address, token))) for index, address in addresses.items()
        }
        give_places(channels, num_ps, timeout_seconds=timeout_seconds)


def give_places(channels: Mapping[int, ControlChannel], num_ps: int, *, timeout_seconds: float) -> None:
    """Assigns indices to standby servers, and returns when they serve; accepts servers that have their index already.

    A standby server stops listening briefly while it restarts with its index; it is not lost.

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
    return {index: channel for (index, channel), described in answers if not _is_at(described, index, num_ps)}


def _is_at(described: Any, index: int, num_ps: int) -> bool:
    return described is not None and not described.stands_by and (described.index, described.num_ps) == (index, num_ps)


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


class StandbyServers:
    """Servers to choose from, by address. A context manager. Thread-safe.

    Args:
        addresses: Control addresses, in an order that is the same for all workers.
        num_required: Number of servers that the job uses.
        token: Shared secret of the servers.
        timeout_seconds: Time limit for a server.
    """

    def __init__(
        self, addresses: Sequence[str], num_required: int, *, token: str | None = None, timeout_seconds: float = 60.0
    ) -> None:
        if not 1 <= num_required <= len(addresses):
            raise InvalidArgumentError(
                f"parameter servers: from 1 to {len(addresses)} of them can be used, got num_required {num_required}"
            )
        self.addresses = list(addresses)
        self.num_required = num_required
        self._timeout_seconds = timeout_seconds
        self._channels = {
            address: ControlChannel(number, address, ClientCredentials(token=token))
            for number, address in enumerate(self.addresses)
        }

    # Indices

    def places(self) -> dict[int, str]:
        """Returns index -> address of the server that has it already; skips servers that do not answer.

        Raises:
            FailedPreconditionError: a server belongs to another job.
        """
        places: dict[int, str] = {}
        for address, described in self._described(self.addresses).items():
            if described is not None and not described.stands_by:
                if described.num_ps != self.num_required:
                    raise FailedPreconditionError(
                        f"parameter server at {address} is index {described.index} of {described.num_ps}, expected one"
                        f" of {self.num_required} or one that stands by; is it of another job?"
                    )
                places[described.index] = address
        return places

    def chosen(self) -> list[str] | None:
        """Returns the servers that the job uses, in the order of their index; None while some indices are free."""
        places = self.places()
        if len(places) < self.num_required:
            return None
        return [places[index] for index in range(self.num_required)]

    def give_places(self, chosen: Sequence[str]) -> None:
        """Assigns indices to these servers, in this order; returns when they serve.

        Raises:
            FailedPreconditionError: one of them has another index.
            DeadlineExceededError: one of them does not restart.
        """
        channels = {index: self._channels[address] for index, address in enumerate(chosen)}
        give_places(channels, len(chosen), timeout_seconds=self._timeout_seconds)

    def send_away(self, addresses: Sequence[str]) -> None:
        """Stops servers; ignores those that cannot be reached."""
        self._ask("Stop", messages.StopRequest(), addresses)

    # Measuring

    def benchmark(self, seconds: float) -> list[float]:
        """Runs an arithmetic benchmark on all servers concurrently; returns the rounds per second of each."""
        request = messages.BenchmarkRequest(seconds=seconds)
        limit = seconds + self._timeout_seconds
        answers = results_of([channel.begin("Benchmark", request, limit) for channel in self._channels.values()])
        return [float(answer.throughput) for answer in answers]

    def note(self, name: str, value: str) -> None:
        """Stores a text for the other workers on the first server; does nothing once indices are assigned."""
        request = messages.NoteRequest(name=name, value=value)
        try:
            self._first.begin("Note", request, ANSWER_SECONDS, wait_for_ready=False).result()
        except (FailedPreconditionError, UnavailableError, DeadlineExceededError):
            if not self.places():  # the server is unreachable, neither restarting with an index nor stopped
                self._first.begin("Note", request, self._timeout_seconds).result()

    def notes(self) -> Mapping[str, str]:
        """Returns the texts of the workers; after the choice, ``result`` with the chosen servers."""
        try:
            call = self._first.begin("Notes", messages.NotesRequest(), ANSWER_SECONDS, wait_for_ready=False)
            return dict(call.result().notes)
        except (FailedPreconditionError, UnavailableError, DeadlineExceededError):
            chosen = self.chosen()
            return {} if chosen is None else {"result": ",".join(chosen)}

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Implementation

    @property
    def _first(self) -> ControlChannel:
        return self._channels[self.addresses[0]]

    def _described(self, addresses: Sequence[str]) -> dict[str, Any]:
        """Returns the description of each server; None for one that does not answer in time."""
        return dict(zip(addresses, self._ask("Describe", messages.DescribeRequest(), addresses), strict=True))

    def _ask(self, method: str, request: Any, addresses: Sequence[str]) -> list[Any]:
        """Returns the answers of the servers; None for those that do not answer."""
        calls = [
            self._channels[address].begin(method, request, ANSWER_SECONDS, wait_for_ready=False)
            for address in addresses
        ]
        return outcomes_of(calls)[0]


_LONGEST_SECONDS = 600.0
_SIDE = 256
"""Side length of the square matrix."""
_PIECES = 16
"""Number of pieces that the matrix is split into, and joined from, in each round."""


def measure_throughput(seconds: float, is_over: Callable[[], bool] = lambda: False) -> float:
    """Computes for some seconds; returns the number of rounds per second.

    Args:
        seconds: Duration.
        is_over: Polled before each round; True cancels the benchmark.

    Raises:
        AbortedError: the benchmark was cancelled.
    """
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise InvalidArgumentError(
            f"benchmark: seconds above 0, and at most {_LONGEST_SECONDS}, expected, got {seconds}"
        )
    matrix = torch.rand(_SIDE, _SIDE)
    rounds, begin = 0, time.monotonic()
    while (elapsed := time.monotonic() - begin) < seconds or rounds == 0:
        if is_over():
            raise AbortedError("benchmark: the server ends; what it has computed is of no use")
        matrix = _round(matrix)
        rounds += 1
    return rounds / max(elapsed, 1e-9)


def _round(matrix: Tensor) -> Tensor:
    """Moves and computes every number once; they stay between 0 and 1."""
    return torch.cat(torch.split(matrix, _SIDE // _PIECES, dim=1)).sqrt().reshape(_SIDE, _SIDE)
