"""Membership of a job: places that processes hold by leases.

A process holds its place (role and index) while it renews its lease. When its connection ends or its lease expires, the
process is lost: another process may take the place, under a greater incarnation. Until then the lost process may
reconnect. `JobMembers` has no lock, no thread and no clock: the caller passes the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monolith.errors import AbortedError, AlreadyExistsError, FailedPreconditionError, NotFoundError
from monolith.job.state import NO_WORKER, WORKER, JobMember

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.job.state import Place

__all__ = ["GRACE_SECONDS", "JobMembers", "PlaceTakenError", "SeatClaim"]

GRACE_SECONDS = 1.0
"""How long a member stays alive after its connection ends. A live process reconnects within that time."""


class PlaceTakenError(AlreadyExistsError):
    """A process that may be alive holds the place."""

    def __init__(self, owner: str, *, seconds_since_renewal: float, seconds_left: float, renewals: int) -> None:
        super().__init__(f"{owner}; its last heartbeat was {seconds_since_renewal:.1f} s ago")
        self.owner = owner
        self.seconds_since_renewal = seconds_since_renewal
        self.seconds_left = seconds_left
        self.renewals = renewals


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatClaim:
    """A request of a process for a place."""

    role: str
    index: int
    token: int
    """Random number of the process."""
    address: str = ""
    lease_seconds: float = 10.0
    incarnation: int = 0
    """Incarnation that an earlier incarnation of the coordinator gave it; 0: the process is new."""
    trains: bool = False
    waits: bool = False

    @property
    def place(self) -> Place:
        """Role and index."""
        return self.role, self.index


@dataclass(slots=True)
class _Seat:
    """A place and the process that holds it."""

    place: Place
    token: int = 0
    """Token of the current holder, or of a lost holder that may reconnect; 0: none."""
    incarnation: int = 0
    address: str = ""
    lease_seconds: float = 0.0
    renewed_at: float = 0.0
    renewals: int = 0
    streams: int = 0
    cut_off_at: float | None = None
    """When its last stream ended; None while a stream is open or none has begun."""
    progress: int = 0
    trains: bool = False
    waits: bool = False
    adopted_by: int = NO_WORKER
    was_alive: bool = field(default=False, repr=False)
    """Whether the last call of `JobMembers.lost_since` saw it alive."""

    @property
    def lease_end(self) -> float:
        """When the lease expires without a renewal."""
        return self.renewed_at + self.lease_seconds

    @property
    def end(self) -> float:
        """When the holder counts as lost."""
        if self.cut_off_at is None:
            return self.lease_end
        return min(self.lease_end, self.cut_off_at + GRACE_SECONDS)

    def is_alive(self, now: float) -> bool:
        return bool(self.token) and now < self.end


class JobMembers:
    """Places, leases and incarnations. Not thread-safe."""

    def __init__(self) -> None:
        self._seats: dict[Place, _Seat] = {}

    def join(self, claim: SeatClaim, now: float) -> int:
        """Assigns a place to a process and returns its incarnation.

        A process that registers again keeps its place. A claim with a greater incarnation than the stored one comes
        from before a restart of the coordinator, and wins.

        Raises:
            PlaceTakenError: a process that may be alive holds the place.
            AbortedError: the process held this place before and lost it to another process.
        """
        seat = self._seats.setdefault(claim.place, _Seat(claim.place))
        if seat.token != claim.token:
            self._require_free(seat, claim, now)
            seat.incarnation = claim.incarnation or seat.incarnation + 1
            seat.streams, seat.cut_off_at, seat.renewals, seat.progress = 0, None, 0, 0
            seat.adopted_by = NO_WORKER
        seat.token, seat.address, seat.lease_seconds = claim.token, claim.address, claim.lease_seconds
        seat.trains, seat.waits = claim.trains, claim.waits
        seat.renewed_at = now
        if seat.streams == 0:
            seat.cut_off_at = None
        return seat.incarnation

    def _require_free(self, seat: _Seat, claim: SeatClaim, now: float) -> None:
        if claim.incarnation:
            if claim.incarnation < seat.incarnation + bool(seat.token):
                raise self._taken_over(seat)
            return
        if seat.is_alive(now):
            raise PlaceTakenError(
                _owner(seat),
                seconds_since_renewal=now - seat.renewed_at,
                seconds_left=seat.end - now,
                renewals=seat.renewals,
            )

    def renew(self, place: Place, token: int, now: float, *, progress: int | None = None) -> None:
        """Renews the lease of a process, and optionally records its global step. A lost process becomes alive again.

        Raises:
            NotFoundError: no process holds the place, since the coordinator was restarted.
            AbortedError: another process holds it.
        """
        self.require(place, token)
        for seat in self._held_by(token):
            seat.renewed_at = now
            seat.renewals += 1
            if seat.streams == 0 and seat.cut_off_at is not None:
                seat.cut_off_at = now  # alive: it gets the grace period again to reconnect
        if progress is not None:
            self._seats[place].progress = progress

    def require(self, place: Place, token: int) -> None:
        """Raises if the process does not hold the place; see `renew`."""
        seat = self._seats.get(place)
        if seat is None or seat.token == 0:
            raise NotFoundError(f"{place[0]} {place[1]}: not registered with the coordinator; it must announce itself")
        if seat.token != token:
            raise self._taken_over(seat)

    def holds(self, place: Place, token: int) -> bool:
        """Returns whether the process holds the place."""
        seat = self._seats.get(place)
        return seat is not None and seat.token == token

    def connect(self, place: Place, token: int, now: float) -> None:
        """Records that a stream to the process has begun; raises as `renew` does."""
        self.renew(place, token, now)
        for seat in self._held_by(token):
            seat.streams += 1
            seat.cut_off_at = None

    def disconnect(self, token: int, now: float) -> None:
        """Records that a stream has ended. After its last stream a process has `GRACE_SECONDS` to reconnect."""
        for seat in self._held_by(token):
            seat.streams = max(0, seat.streams - 1)
            if seat.streams == 0:
                seat.cut_off_at = now

    def leave(self, place: Place, token: int) -> None:
        """Releases the place of a process and its adopted numbers. Does nothing where it does not hold the place."""
        if self.holds(place, token):
            for each in list(self._held_by(token)):
                self._clear(each)

    def adopt(self, number: int, place: Place, token: int, now: float) -> None:
        """Lets a worker continue under an additional number, for as long as its own lease is valid.

        REQUIRES: no process holds that number, and the worker holds its own place.
        """
        own = self._seats[place]
        seat = self._seats.setdefault((WORKER, number), _Seat((WORKER, number)))
        seat.incarnation += 1
        seat.token, seat.address, seat.adopted_by = token, own.address, place[1]
        seat.lease_seconds, seat.renewed_at = own.lease_seconds, now
        seat.streams, seat.cut_off_at = own.streams, own.cut_off_at
        seat.renewals = seat.progress = 0
        seat.trains = seat.waits = False

    def release(self, number: int, place: Place, token: int) -> None:
        """Releases a number that a worker adopted.

        Raises:
            FailedPreconditionError: the worker has not adopted it, or another process holds it by now.
        """
        seat = self._seats.get((WORKER, number))
        if seat is None or seat.token != token or seat.adopted_by != place[1]:
            raise FailedPreconditionError(f"worker {place[1]} has not adopted worker {number}, or has lost it since")
        self._clear(seat)

    def set_trains(self, index: int, value: bool) -> None:
        """Records whether a worker has a live session."""
        self._seat_of(index).trains = value

    def set_waits(self, index: int, value: bool) -> None:
        """Records whether a worker waits at the barrier."""
        self._seat_of(index).waits = value

    def is_alive(self, place: Place, now: float) -> bool:
        """Returns whether a live process holds the place."""
        seat = self._seats.get(place)
        return seat is not None and seat.is_alive(now)

    def is_adoptable(self, number: int, missed_since: float, now: float) -> bool:
        """Returns whether a worker's number was silent for a full lease; a restarted worker registers within that."""
        seat = self._seats.get((WORKER, number))
        if seat is not None and seat.token:
            return now >= seat.lease_end
        longest = max((each.lease_seconds for each in self._seats.values() if each.token), default=0.0)
        return now >= missed_since + longest

    def lost_since(self, now: float) -> list[Place]:
        """Returns the places whose processes were lost since the last call, sorted."""
        lost = [place for place, seat in self._seats.items() if seat.was_alive and not seat.is_alive(now)]
        for seat in self._seats.values():
            seat.was_alive = seat.is_alive(now)
        return sorted(lost)

    def next_end(self, now: float) -> float | None:
        """Returns the time at which the next lease expires if none is renewed, or None."""
        ends = [end for seat in self._seats.values() if seat.token for end in (seat.end, seat.lease_end) if end > now]
        return min(ends, default=None)

    def postpone(self, seconds: float) -> None:
        """Extends all leases by a time during which no renewal could be received."""
        for seat in self._seats.values():
            seat.renewed_at += seconds
            if seat.cut_off_at is not None:
                seat.cut_off_at += seconds

    def snapshot(self, now: float) -> tuple[JobMember, ...]:
        """Returns live and lost members, by role and index."""
        return tuple(_member(seat, now) for _, seat in sorted(self._seats.items()) if seat.token)

    @property
    def incarnations(self) -> dict[Place, int]:
        """Place -> its last incarnation."""
        return {place: seat.incarnation for place, seat in self._seats.items()}

    def expect(self, incarnations: dict[Place, int]) -> None:
        """Continues the numbering of incarnations of a previous coordinator."""
        for place, incarnation in incarnations.items():
            seat = self._seats.setdefault(place, _Seat(place))
            if not seat.token:
                seat.incarnation = max(seat.incarnation, incarnation)

    def _seat_of(self, index: int) -> _Seat:
        seat = self._seats.get((WORKER, index))
        if seat is None or not seat.token:
            raise NotFoundError(f"worker {index}: not registered with the coordinator; it must announce itself")
        return seat

    def _held_by(self, token: int) -> Iterator[_Seat]:
        return (seat for seat in self._seats.values() if seat.token == token)

    @staticmethod
    def _clear(seat: _Seat) -> None:
        seat.token, seat.address, seat.adopted_by = 0, "", NO_WORKER
        seat.trains = seat.waits = seat.was_alive = False

    @staticmethod
    def _taken_over(seat: _Seat) -> AbortedError:
        return AbortedError(
            f"{_owner(seat)}, as incarnation {seat.incarnation}: the lease of this process expired, and its index was"
            " reassigned. Its work no longer counts; start it again"
        )


def _owner(seat: _Seat) -> str:
    role, index = seat.place
    address = seat.address or "an unknown address"
    if seat.adopted_by != NO_WORKER:
        return f"{role} {index} was lost, and worker {seat.adopted_by} at {address} trains the rest of its input"
    return f"{role} {index} is the process at {address}"


def _member(seat: _Seat, now: float) -> JobMember:
    role, index = seat.place
    alive = seat.is_alive(now)
    return JobMember(
        role=role,
        index=index,
        address=seat.address,
        incarnation=seat.incarnation,
        progress=seat.progress,
        alive=alive,
        trains=alive and seat.trains,
        waits=alive and seat.waits,
        adopted_by=seat.adopted_by,
    )
