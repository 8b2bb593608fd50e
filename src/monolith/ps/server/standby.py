"""Standby servers, which wait for an index in a job, as the workers of that job see them.

The chief chooses some and assigns their indices; each restarts at the same address. Workers that start later read the
choice from the indices of the servers, so that they need no notification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from monolith.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from monolith.ps.places import ANSWER_SECONDS, give_places
from monolith.rpc.channel import ControlChannel, outcomes_of, results_of
from monolith.rpc.credentials import ClientCredentials
from monolith.rpc.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["StandbyServers"]


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
        found: dict[int, str] = {}
        for address, told in self._described(self.addresses).items():
            if told is not None and not told.stands_by:
                if told.num_ps != self.num_required:
                    raise FailedPreconditionError(
                        f"parameter server at {address} is index {told.index} of {told.num_ps}, expected one of"
                        f" {self.num_required} or one that stands by; is it of another job?"
                    )
                found[told.index] = address
        return found

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
