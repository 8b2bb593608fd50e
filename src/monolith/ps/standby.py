"""Servers that wait for a place in a job, as the workers of that job see them.

The chief chooses some and gives them their places: each begins anew at the same address. Who comes later sees by the
places what was chosen, so that nobody has to be told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from monolith.cluster.credentials import ClientCredentials
from monolith.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from monolith.ps._control_channel import ControlChannel, outcomes_of, results_of
from monolith.ps.places import ANSWER_SECONDS, give_places
from monolith.ps.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["StandbyServers"]


class StandbyServers:
    """Servers that some are chosen from, by address. A context manager; any thread may call it.

    Args:
        addresses: Of their control, in an order that is the same for all workers.
        num_required: How many of them the job uses.
        token: Their secret.
        timeout_seconds: How long a server is waited for.
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

    # Places

    def places(self) -> dict[int, str]:
        """Index in the job -> the server that has it already; servers that do not answer are left out.

        Raises:
            FailedPreconditionError: one is of another job.
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
        """The servers that the job uses, in the order of their index; None while some places are free."""
        places = self.places()
        if len(places) < self.num_required:
            return None
        return [places[index] for index in range(self.num_required)]

    def give_places(self, chosen: Sequence[str]) -> None:
        """These servers are those of the job, in this order; returns when they serve as such.

        Raises:
            FailedPreconditionError: one of them has another place.
            DeadlineExceededError: one of them does not come back.
        """
        channels = {index: self._channels[address] for index, address in enumerate(chosen)}
        give_places(channels, len(chosen), timeout_seconds=self._timeout_seconds)

    def send_away(self, addresses: Sequence[str]) -> None:
        """Asks servers to end; those that cannot be reached are gone already."""
        self._ask("Stop", messages.StopRequest(), addresses)

    # Measuring

    def benchmark(self, seconds: float) -> list[float]:
        """Rounds of some arithmetic a second, which each server does for so long, all at the same time."""
        request = messages.BenchmarkRequest(seconds=seconds)
        limit = seconds + self._timeout_seconds
        answers = results_of([channel.begin("Benchmark", request, limit) for channel in self._channels.values()])
        return [float(answer.throughput) for answer in answers]

    def note(self, name: str, value: str) -> None:
        """Leaves a text for the other workers, on the first server; once places are given, nobody needs it."""
        request = messages.NoteRequest(name=name, value=value)
        try:
            self._first.begin("Note", request, ANSWER_SECONDS, wait_for_ready=False).result()
        except (FailedPreconditionError, UnavailableError, DeadlineExceededError):
            if not self.places():  # it is away, and neither has taken its place nor been sent away
                self._first.begin("Note", request, self._timeout_seconds).result()

    def notes(self) -> Mapping[str, str]:
        """What workers have left; where the choice is made, ``result`` with it."""
        try:
            call = self._first.begin("Notes", messages.NotesRequest(), ANSWER_SECONDS, wait_for_ready=False)
            return dict(call.result().notes)
        except (FailedPreconditionError, UnavailableError, DeadlineExceededError):
            chosen = self.chosen()
            return {} if chosen is None else {"result": ",".join(chosen)}

    def close(self) -> None:
        """Ends the connections. Calling it again does nothing."""
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside

    @property
    def _first(self) -> ControlChannel:
        return self._channels[self.addresses[0]]

    def _described(self, addresses: Sequence[str]) -> dict[str, Any]:
        """Who each is; None for one that does not answer in time."""
        return dict(zip(addresses, self._ask("Describe", messages.DescribeRequest(), addresses), strict=True))

    def _ask(self, method: str, request: Any, addresses: Sequence[str]) -> list[Any]:
        """The answers of those that are there; None for the others."""
        calls = [
            self._channels[address].begin(method, request, ANSWER_SECONDS, wait_for_ready=False)
            for address in addresses
        ]
        return outcomes_of(calls)[0]
