"""Conversion between the state of a job and messages."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from monolith.job.members import MembershipRequest
from monolith.job.state import JobMember, JobState
from monolith.rpc.protos import coordinator_pb2 as messages

if TYPE_CHECKING:
    from monolith.job.state import Place

_PLAIN = (
    "version",
    "incarnation",
    "num_workers",
    "num_shares",
    "restored",
    "step_offset",
    "steps",
    "barrier_placed",
    "barrier_action",
    "stop_requested",
    "generation",
    "ended",
)
_SETS = ("finished", "lost", "adoptable", "left")
_OF_MEMBER = ("role", "index", "address", "incarnation", "progress", "alive", "trains", "waits", "adopted_by")


def place_in(seat: Any) -> Place:
    """Returns role and index of the caller."""
    return seat.role, seat.index


def claim_in(request: Any) -> MembershipRequest:
    """Decodes a join request."""
    return MembershipRequest(
        role=request.seat.role,
        index=request.seat.index,
        token=request.seat.token,
        address=request.address,
        lease_seconds=request.lease_seconds,
        incarnation=request.incarnation,
        trains=request.trains,
        waits=request.waits,
    )


def state_message(state: JobState) -> Any:
    """Encodes a state."""
    plain: dict[str, Any] = {name: getattr(state, name) for name in _PLAIN}
    numbers: dict[str, Any] = {name: sorted(getattr(state, name)) for name in _SETS}
    return messages.State(
        **plain,
        **numbers,
        members=[messages.Member(**{name: getattr(member, name) for name in _OF_MEMBER}) for member in state.members],
        lost_updates=[
            messages.LostUpdates(worker=worker, server=server, updates=updates)
            for (worker, server), updates in sorted(state.lost_updates.items())
        ],
    )


def state_in(message: Any) -> JobState:
    """Decodes a state."""
    plain: dict[str, Any] = {name: getattr(message, name) for name in _PLAIN}
    numbers: dict[str, Any] = {name: frozenset(getattr(message, name)) for name in _SETS}
    return JobState(
        **plain,
        **numbers,
        members=tuple(JobMember(**{name: getattr(member, name) for name in _OF_MEMBER}) for member in message.members),
        lost_updates=MappingProxyType({(lost.worker, lost.server): lost.updates for lost in message.lost_updates}),
    )
