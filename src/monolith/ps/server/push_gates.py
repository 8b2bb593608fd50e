"""Holds the pushes to all owners of a server, so that all servers apply the same batches."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from monolith.errors import DeadlineExceededError, FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DENSE_OWNER = "dense"
"""Owner name of a server's dense weights."""
_LOOK_SECONDS = 0.001
"""Interval at which allowed pushes are polled for."""

Clocks = dict[str, dict[int, int]]
"""Owner -> worker -> number of its last batch."""


class OwnerPushGate(Protocol):
    """Gate of the pushes to one owner; implemented by `_core.PushGate`."""

    def hold(self, seconds: float) -> bool:
        """Holds new pushes until `release` or the timeout, and drains the others. Returns False if one stays inside."""

    def allow(self, limits: dict[int, int]) -> None:
        """Sets worker -> number of the last batch whose push may pass during the hold."""

    def release(self) -> None:
        """Lets all pushes pass."""


@dataclass(frozen=True, slots=True)
class Owner:
    """State of a server that workers push to."""

    gate: OwnerPushGate
    clock: Callable[[], Mapping[int, int]]
    """Returns worker -> number of its last batch."""


class PushGates:
    """The gates of a server's owners. One client holds them at a time. Thread-safe.

    A hold ends after its time, whatever happens to the client: the gates open by themselves.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the fields below
        self._owners: dict[str, Owner] = {}
        self._holder: int | None = None
        self._until = 0.0

    def add(self, name: str, owner: Owner) -> None:
        """Adds an owner, to be held with the others."""
        with self._changed:
            self._owners[name] = owner

    def remove(self, name: str) -> None:
        """Removes an owner."""
        with self._changed:
            self._owners.pop(name, None)

    def hold(self, client: int, seconds: float) -> Clocks:
        """Waits up to `seconds` for another holder, then holds pushes for `seconds`; returns owners' last batches.

        Raises:
            DeadlineExceededError: another client did not release them, or a push did not end.
        """
        give_up = time.monotonic() + seconds
        with self._changed:
            while self._holder not in {None, client} and time.monotonic() < self._until:
                rest = min(give_up, self._until) - time.monotonic()
                if time.monotonic() >= give_up:
                    raise DeadlineExceededError(f"hold: another client held the pushes for {seconds} s; try again")
                self._changed.wait(max(rest, 0.0))
            self._holder, self._until = client, time.monotonic() + seconds
            owners = list(self._owners.values())
        if not all(owner.gate.hold(seconds) for owner in owners):
            self.release(client)
            raise DeadlineExceededError(f"hold: a push did not end within {seconds} s; try again")
        return self.clocks()

    def catch_up(self, client: int, limits: Mapping[str, Mapping[int, int]], wait_seconds: float) -> Clocks:
        """Lets pushes up to `limits` pass, and waits for them; returns the last batches of owners.

        Raises:
            FailedPreconditionError: the client does not hold the pushes any more.
        """
        give_up = time.monotonic() + wait_seconds
        with self._changed:
            if not self._is_held_by(client):
                raise FailedPreconditionError("hold: it is over; its seconds have passed, or it was released")
            owners = {name: self._owners[name] for name in limits if name in self._owners}
        for name, owner in owners.items():
            owner.gate.allow(dict(limits[name]))
        while time.monotonic() < give_up and any(_lacks(owner.clock(), limits[name]) for name, owner in owners.items()):
            time.sleep(_LOOK_SECONDS)
        return self.clocks()

    def release(self, client: int) -> bool:
        """Lets all pushes pass; returns whether this client held them until now. Idempotent."""
        with self._changed:
            if self._holder != client:
                return False
            was_held = self._is_held_by(client)
            self._holder = None
            owners = list(self._owners.values())
            self._changed.notify_all()
        for owner in owners:
            owner.gate.release()
        return was_held

    def clocks(self) -> Clocks:
        """Returns the last batches of each owner."""
        with self._changed:
            owners = dict(self._owners)
        return {name: dict(owner.clock()) for name, owner in owners.items()}

    def _is_held_by(self, client: int) -> bool:
        return self._holder == client and time.monotonic() < self._until


def _lacks(clock: Mapping[int, int], least: Mapping[int, int]) -> bool:
    return any(clock.get(worker, -1) < seq for worker, seq in least.items())


def rows_owner(store: str) -> str:
    """Returns the owner name of a server's share of a store."""
    return f"rows/{store}"
