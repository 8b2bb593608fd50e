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
class MembershipRequest:
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
class _Member:
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
        self._members: dict[Place, _Member] = {}

    def join(self, claim: MembershipRequest, now: float) -> int:
        """Assigns a place to a process and returns its incarnation.

        A process that registers again keeps its place. A claim with a greater incarnation than the stored one comes
        from before a restart of the coordinator, and wins.

        Raises:
            PlaceTakenError: a process that may be alive holds the place.
            AbortedError: the process held this place before and lost it to another process.
        """
        member = self._members.setdefault(claim.place, _Member(claim.place))
        if member.token != claim.token:
            self._require_free(member, claim, now)
            member.incarnation = claim.incarnation or member.incarnation + 1
            member.streams, member.cut_off_at, member.renewals, member.progress = 0, None, 0, 0
            member.adopted_by = NO_WORKER
        member.token, member.address, member.lease_seconds = claim.token, claim.address, claim.lease_seconds
        member.trains, member.waits = claim.trains, claim.waits
        member.renewed_at = now
        if member.streams == 0:
            member.cut_off_at = None
        return member.incarnation

    def _require_free(self, member: _Member, claim: MembershipRequest, now: float) -> None:
        if claim.incarnation:
            if claim.incarnation < member.incarnation + bool(member.token):
                raise self._taken_over(member)
            return
        if member.is_alive(now):
            raise PlaceTakenError(
                _owner(member),
                seconds_since_renewal=now - member.renewed_at,
                seconds_left=member.end - now,
                renewals=member.renewals,
            )

    def renew(self, place: Place, token: int, now: float, *, progress: int | None = None) -> None:
        """Renews the lease of a process, and optionally records its global step. A lost process becomes alive again.

        Raises:
            NotFoundError: no process holds the place, since the coordinator was restarted.
            AbortedError: another process holds it.
        """
        self.require(place, token)
        for member in self._held_by(token):
            member.renewed_at = now
            member.renewals += 1
            if member.streams == 0 and member.cut_off_at is not None:
                member.cut_off_at = now  # alive: it gets the grace period again to reconnect
        if progress is not None:
            self._members[place].progress = progress

    def require(self, place: Place, token: int) -> None:
        """Raises if the process does not hold the place; see `renew`."""
        member = self._members.get(place)
        if member is None or member.token == 0:
            raise NotFoundError(f"{place[0]} {place[1]}: not registered with the coordinator; it must announce itself")
        if member.token != token:
            raise self._taken_over(member)

    def holds(self, place: Place, token: int) -> bool:
        """Returns whether the process holds the place."""
        member = self._members.get(place)
        return member is not None and member.token == token

    def connect(self, place: Place, token: int, now: float) -> None:
        """Records that a stream to the process has begun; raises as `renew` does."""
        self.renew(place, token, now)
        for member in self._held_by(token):
            member.streams += 1
            member.cut_off_at = None

    def disconnect(self, token: int, now: float) -> None:
        """Records that a stream has ended. After its last stream a process has `GRACE_SECONDS` to reconnect."""
        for member in self._held_by(token):
            member.streams = max(0, member.streams - 1)
            if member.streams == 0:
                member.cut_off_at = now

    def leave(self, place: Place, token: int) -> None:
        """Releases the place of a process and its adopted numbers. Does nothing where it does not hold the place."""
        if self.holds(place, token):
            for held in list(self._held_by(token)):
                self._clear(held)

    def adopt(self, number: int, place: Place, token: int, now: float) -> None:
        """Lets a worker continue under an additional number, for as long as its own lease is valid.

        REQUIRES: no process holds that number, and the worker holds its own place.
        """
        own = self._members[place]
        member = self._members.setdefault((WORKER, number), _Member((WORKER, number)))
        member.incarnation += 1
        member.token, member.address, member.adopted_by = token, own.address, place[1]
        member.lease_seconds, member.renewed_at = own.lease_seconds, now
        member.streams, member.cut_off_at = own.streams, own.cut_off_at
        member.renewals = member.progress = 0
        member.trains = member.waits = False

    def release(self, number: int, place: Place, token: int) -> None:
        """Releases a number that a worker adopted.

        Raises:
            FailedPreconditionError: the worker has not adopted it, or another process holds it by now.
        """
        member = self._members.get((WORKER, number))
        if member is None or member.token != token or member.adopted_by != place[1]:
            raise FailedPreconditionError(f"worker {place[1]} has not adopted worker {number}, or has lost it since")
        self._clear(member)

    def set_trains(self, index: int, value: bool) -> None:
        """Records whether a worker has a live session."""
        self._member_of(index).trains = value

    def set_waits(self, index: int, value: bool) -> None:
        """Records whether a worker waits at the barrier."""
        self._member_of(index).waits = value

    def is_alive(self, place: Place, now: float) -> bool:
        """Returns whether a live process holds the place."""
        member = self._members.get(place)
        return member is not None and member.is_alive(now)

    def is_adoptable(self, number: int, missed_since: float, now: float) -> bool:
        """Returns whether a worker's number was silent for a full lease; a restarted worker registers within that."""
        member = self._members.get((WORKER, number))
        if member is not None and member.token:
            return now >= member.lease_end
        longest = max((member.lease_seconds for member in self._members.values() if member.token), default=0.0)
        return now >= missed_since + longest

    def lost_since(self, now: float) -> list[Place]:
        """Returns the places whose processes were lost since the last call, sorted."""
        lost = [place for place, member in self._members.items() if member.was_alive and not member.is_alive(now)]
        for member in self._members.values():
            member.was_alive = member.is_alive(now)
        return sorted(lost)

    def next_end(self, now: float) -> float | None:
        """Returns the time at which the next lease expires if none is renewed, or None."""
        ends = [
            end
            for member in self._members.values()
            if member.token
            for end in (member.end, member.lease_end)
            if end > now
        ]
        return min(ends, default=None)

    def postpone(self, seconds: float) -> None:
        """Extends all leases by a time during which no renewal could be received."""
        for member in self._members.values():
            member.renewed_at += seconds
            if member.cut_off_at is not None:
                member.cut_off_at += seconds

    def snapshot(self, now: float) -> tuple[JobMember, ...]:
        """Returns live and lost members, by role and index."""
        return tuple(_member(member, now) for _, member in sorted(self._members.items()) if member.token)

    @property
    def incarnations(self) -> dict[Place, int]:
        """Place -> its last incarnation."""
        return {place: member.incarnation for place, member in self._members.items()}

    def expect(self, incarnations: dict[Place, int]) -> None:
        """Continues the numbering of incarnations of a previous coordinator."""
        for place, incarnation in incarnations.items():
            member = self._members.setdefault(place, _Member(place))
            if not member.token:
                member.incarnation = max(member.incarnation, incarnation)

    def _member_of(self, index: int) -> _Member:
        member = self._members.get((WORKER, index))
        if member is None or not member.token:
            raise NotFoundError(f"worker {index}: not registered with the coordinator; it must announce itself")
        return member

    def _held_by(self, token: int) -> Iterator[_Member]:
        return (member for member in self._members.values() if member.token == token)

    @staticmethod
    def _clear(member: _Member) -> None:
        member.token, member.address, member.adopted_by = 0, "", NO_WORKER
        member.trains = member.waits = member.was_alive = False

    @staticmethod
    def _taken_over(member: _Member) -> AbortedError:
        return AbortedError(
            f"{_owner(member)}, as incarnation {member.incarnation}: the lease of this process expired, and its index"
            " was reassigned. Its work no longer counts; start it again"
        )


def _owner(member: _Member) -> str:
    role, index = member.place
    address = member.address or "an unknown address"
    if member.adopted_by != NO_WORKER:
        return f"{role} {index} was lost, and worker {member.adopted_by} at {address} trains the rest of its input"
    return f"{role} {index} is the process at {address}"


def _member(member: _Member, now: float) -> JobMember:
    role, index = member.place
    alive = member.is_alive(now)
    return JobMember(
        role=role,
        index=index,
        address=member.address,
        incarnation=member.incarnation,
        progress=member.progress,
        alive=alive,
        trains=alive and member.trains,
        waits=alive and member.waits,
        adopted_by=member.adopted_by,
    )
