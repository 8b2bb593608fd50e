"""State machine of a job's coordinator: timestamped events go in, the state of the job comes out.

The coordinator runs on the home server (server 0). It never counts batches itself: the clocks of that server report how
many batches of which worker were applied. `Coordinator` has no lock, no thread and no socket.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from monolith.cluster import BarrierSlots
from monolith.errors import FailedPreconditionError, InvalidArgumentError, PermissionDeniedError
from monolith.job.members import JobMembers
from monolith.job.state import NO_WORKER, WORKER, JobState, LostUpdates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from monolith.job.members import MembershipRequest
    from monolith.job.state import Place

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0
"""A coordinator without any event for longer than this was paused itself: events are normally far more frequent."""

Clocks = dict[str, dict[int, int]]
"""State holder on the home server -> worker -> number of the last batch it applied."""


class Coordinator:
    """The state of a job. Not thread-safe. All `now` arguments come from one monotonic clock.

    Args:
        incarnation: Random number of the process.
        now: Start time.
    """

    def __init__(self, incarnation: int, now: float) -> None:
        self._members = JobMembers()
        self._barrier = BarrierSlots(1)
        self._placed_by: Place | None = None
        self._restored = False
        self._finished: dict[int, Clocks] = {}
        """Worker -> its applied batches when it finished. The worker counts as finished while the clocks still hold
        them.
        """
        self._step_offset = 0
        self._num_shares: int | None = None
        """From a checkpoint; None: the number of workers."""
        self._generation = 0
        self._left: set[int] = set()
        self._lost_updates = LostUpdates[tuple[int, int]]()
        self._stop_requested = False
        self._has_ended = False
        self._takers: frozenset[int] = frozenset()
        self._lost_since: dict[int, float] = {}
        self._clocks: Clocks = {}
        self._steps = 0
        self._heard_at = now
        self._state = JobState(incarnation=incarnation, version=1)

    # Membership

    def join(self, claim: MembershipRequest, *, num_workers: int, placed_action: str | None = None, now: float) -> int:
        """Assigns a place to a process, or registers it again with a restarted coordinator. Returns its incarnation.

        Raises:
            InvalidArgumentError: the place does not exist.
            FailedPreconditionError: live members use a different `num_workers`.
            PlaceTakenError: a process that may be alive holds the place.
            AbortedError: the process held this place before and lost it to another process.
        """
        self.pass_time(now)
        self._require_place(claim, num_workers)
        self._require_same_size(claim, num_workers, now)
        incarnation = self._members.join(claim, now)
        if claim.role == WORKER:
            self._left.discard(claim.index)
            if (
                not claim.incarnation
            ):  # a new process rereads its input, which may have grown, and reports its end again
                self._finished.pop(claim.index, None)
        if claim.place == (WORKER, 0):
            self._has_ended = False
        if num_workers != self._barrier.capacity:
            self._resize(num_workers)
        if placed_action is not None and not self._barrier.placed:
            self._barrier.place(placed_action)
            self._placed_by = claim.place
        return incarnation

    def renew(self, place: Place, token: int, *, progress: int | None = None, now: float) -> None:
        """Renews the lease of a process; see `JobMembers.renew`."""
        self.pass_time(now)
        self._members.renew(place, token, now, progress=progress)

    def connect(self, place: Place, token: int, *, now: float) -> None:
        """Records that a stream to a process has begun; see `JobMembers.connect`."""
        self.pass_time(now)
        self._members.connect(place, token, now)

    def disconnect(self, token: int, *, now: float) -> None:
        """Records that a stream to a process has ended."""
        self.pass_time(now)
        self._members.disconnect(token, now)

    def leave(self, place: Place, token: int, *, now: float) -> None:
        """Releases the place of a process. Does nothing where it does not hold the place."""
        self.pass_time(now)
        if self._members.holds(place, token):
            self._members.leave(place, token)
            self._forget_barrier_of(place, "has left")

    def tick(self, *, steps: int, clocks: Clocks, now: float) -> None:
        """Updates the number of steps and the clocks, and expires leases."""
        self._steps, self._clocks = steps, clocks
        self.pass_time(now)

    def next_end(self, now: float) -> float | None:
        """Returns the time at which the next lease expires if none is renewed, or None."""
        return self._members.next_end(now)

    # Calls of members; each raises what `JobMembers.require` raises

    def set_flag(self, place: Place, token: int, *, index: int, value: bool, now: float) -> None:
        """Sets flag 0 (the model is restored) or flag i (worker i is training)."""
        self.require(place, token, now=now)
        if not 0 <= index < self._barrier.capacity:
            raise InvalidArgumentError(f"flag: an index in [0, {self._barrier.capacity}) expected, got {index}")
        if index == 0:
            self._restored = value
        elif place == (WORKER, index):
            self._members.set_trains(index, value)
        elif value:
            raise PermissionDeniedError(
                f"flag {index}: worker {index} alone sets it, and {place[0]} {place[1]} wants to"
            )

    def place_barrier(self, place: Place, token: int, *, action: str, now: float) -> None:
        """Places the barrier. It is removed when its owner leaves or is lost.

        Raises:
            BarrierAlreadyPlacedError: the barrier is already placed.
        """
        self.require(place, token, now=now)
        self._barrier.place(action)
        self._placed_by = place

    def remove_barrier(self, place: Place, token: int, *, now: float) -> None:
        """Removes the barrier. Does nothing where it is not placed."""
        self.require(place, token, now=now)
        self._barrier.remove()
        self._placed_by = None

    def set_waits(self, place: Place, token: int, *, value: bool, now: float) -> None:
        """Records whether a worker waits at the barrier."""
        self.require(place, token, now=now)
        if place[0] != WORKER or place[1] == 0:
            raise InvalidArgumentError(f"barrier: workers from 1 on wait at it, got {place[0]} {place[1]}")
        self._members.set_waits(place[1], value)

    def set_step_offset(self, place: Place, token: int, *, offset: int, now: float) -> None:
        """Sets the number of steps that no clock counts."""
        self.require(place, token, now=now)
        self._step_offset = offset

    def note_steps(self, steps: int) -> None:
        """Sets the number of batches applied on the home server."""
        self._steps = steps

    def set_restored(self, place: Place, token: int, *, step: int | None, generation: int, now: float) -> None:
        """Records that all servers were restored to a global step that corresponds to the last `note_steps`.

        Args:
            place: Place of the calling member.
            token: Token of the calling member.
            step: Global step; None: derived from the clocks and the loaded state of the job.
            generation: Drawn at random, so that a restarted coordinator does not reuse one.
            now: The time.
        """
        self.require(place, token, now=now)
        self._restored = True
        self._generation = generation
        if step is not None:
            self._step_offset = step - self._steps

    def set_left(self, place: Place, token: int, *, now: float) -> None:
        """Records that a worker pushes no more batches although its input has not ended."""
        self.require(place, token, now=now)
        if place[0] == WORKER:
            self._left.add(place[1])

    def set_ended(self, place: Place, token: int, *, now: float) -> None:
        """Ends the run. A chief that joins later begins another run."""
        self.require(place, token, now=now)
        self._has_ended = True

    def report_lost(self, place: Place, token: int, *, worker: int, server: int, batches: range, now: float) -> None:
        """Records that a server lost updates of a worker permanently. A batch that is reported twice counts once."""
        self.require(place, token, now=now)
        if batches.start < 0 or batches.stop < batches.start:
            raise InvalidArgumentError(f"lost updates: batches from 0 on expected, got {batches}")
        self._lost_updates.add((worker, server), batches)

    def request_stop(self, place: Place, token: int, *, now: float) -> None:
        """Requests that all members stop. The request is cleared when no worker is alive."""
        self.require(place, token, now=now)
        self._stop_requested = True

    def reset(self, place: Place, token: int, *, now: float) -> None:
        """Restarts training from scratch with the same members and discards all recorded progress."""
        self.require(place, token, now=now)
        self._restored = False
        self._finished.clear()
        self._lost_updates.clear()
        self._step_offset = 0
        self._num_shares = None

    # Ends of inputs

    def finish(self, place: Place, token: int, *, clocks: Clocks, now: float) -> None:
        """Records that the input of a worker has ended and is fully applied, up to the given clocks."""
        self.require(place, token, now=now)
        self._clocks = clocks
        self._finished[place[1]] = _part_of(place[1], clocks)

    def adopt(self, place: Place, token: int, *, now: float) -> int:
        """Returns a lost worker whose remaining input this worker adopts, or `NO_WORKER`."""
        self.require(place, token, now=now)
        if place[0] != WORKER:
            raise InvalidArgumentError(f"adopt: only workers adopt lost workers, got {place[0]} {place[1]}")
        worker = min(self._adoptable(now), default=NO_WORKER)
        if worker != NO_WORKER:
            self._members.adopt(worker, place, token, now)
        return worker

    def release(self, place: Place, token: int, *, worker: int, finished: bool, clocks: Clocks, now: float) -> None:
        """Releases an adopted worker number, because its input has ended or another worker is to continue it.

        Raises:
            FailedPreconditionError: this worker did not adopt the number, or has lost it since.
        """
        self.require(place, token, now=now)
        self._members.release(worker, place, token)
        self._clocks = clocks
        if finished:
            self._finished[worker] = _part_of(worker, clocks)

    def note_takers(self, workers: Iterable[int]) -> None:
        """Records which workers took files of the shared queue."""
        self._takers = frozenset(workers)

    # Queries and persistence

    def state(self, now: float) -> JobState:
        """Returns the current state of the job. Its version increases when anything but counters has changed."""
        members = self._members.snapshot(now)
        fresh = JobState(
            incarnation=self._state.incarnation,
            version=self._state.version,
            num_workers=self._num_workers(),
            num_shares=self._shares(),
            members=members,
            restored=self._restored,
            finished=self._finished_now(),
            step_offset=self._step_offset,
            steps=self._steps,
            barrier_placed=self._barrier.placed,
            barrier_action=self._barrier.action if self._barrier.placed else "",
            lost_updates=MappingProxyType(self._lost_updates.counts()),
            stop_requested=self._stop_requested,
            ended=self._has_ended,
            lost=self._lost(now),
            adoptable=self._adoptable(now),
            generation=self._generation,
            left=frozenset(self._left),
        )
        if _without_figures(fresh) != _without_figures(self._state):
            fresh = replace(fresh, version=fresh.version + 1)
        self._state = fresh
        return fresh

    def pass_time(self, now: float) -> None:
        """Expires leases. Time during which the coordinator itself was paused does not count."""
        pause = now - self._heard_at
        if pause > _PAUSE_SECONDS:
            self._members.postpone(pause)
            self._lost_since = {worker: since + pause for worker, since in self._lost_since.items()}
        self._heard_at = max(now, self._heard_at)
        for place in self._members.lost_since(now):
            _log.warning("%s %d: its lease expired, and it counts as lost until it reconnects", *place)
            self._forget_barrier_of(place, "was lost")
        if self._stop_requested and not any(
            role == WORKER and self._members.is_alive((role, index), now) for role, index in self._members.incarnations
        ):
            self._stop_requested = False

    def require(self, place: Place, token: int, *, now: float) -> None:
        """Raises if the process does not hold the place; see `JobMembers.require`."""
        self.pass_time(now)
        self._members.require(place, token)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that a checkpoint stores."""
        finished = {str(worker): clocks for worker, clocks in sorted(self._finished.items())}
        return {
            "num_workers": self._num_workers(),
            "num_shares": self._shares(),
            "finished": finished,
            "step_offset": self._step_offset,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the state of a checkpoint. The servers have its clocks, or restore them."""
        self._finished = {int(worker): _clocks_in(clocks) for worker, clocks in state["finished"].items()}
        self._step_offset = int(state.get("step_offset", 0))  # a run of one process stores none
        self._num_shares = int(state.get("num_shares", state["num_workers"])) or None

    def restore(self, state: Mapping[str, Any], now: float) -> None:
        """Loads the state of a checkpoint for running workers, which resume and report the end of their input again."""
        self.load_state_dict(state)
        for worker in list(self._finished):
            member = self.state(now).member(WORKER, worker)
            if member is not None and member.alive:
                del self._finished[worker]

    def dump(self) -> bytes:
        """Returns the state that survives a restart of the home server; store it with clocks at least as new."""
        content = {
            **self.state_dict(),
            "restored": self._restored,
            "generation": self._generation,
            "lost_updates": [[*key, batches.start, batches.stop] for key, batches in self._lost_updates.ranges()],
            "incarnations": [[*place, number] for place, number in sorted(self._members.incarnations.items())],
        }
        return json.dumps(content, sort_keys=True).encode()

    def load(self, content: bytes) -> None:
        """Loads the state that a previous process of the home server dumped."""
        saved = json.loads(content)
        self.load_state_dict(saved)
        if saved["num_workers"] > 0 and self._num_workers() == 0:
            self._resize(saved["num_workers"])
        self._restored = saved["restored"]
        self._generation = saved["generation"]
        self._lost_updates.clear()
        for worker, server, *batches in saved["lost_updates"]:
            self._lost_updates.add((worker, server), range(*batches))
        self._members.expect({(role, index): number for role, index, number in saved["incarnations"]})

    def _require_place(self, claim: MembershipRequest, num_workers: int) -> None:
        if num_workers < 1:
            raise InvalidArgumentError(f"job: num_workers counts the chief and must be >= 1, got {num_workers}")
        if not claim.role or claim.index < 0:
            raise InvalidArgumentError(f"job: a role and an index >= 0 expected, got {claim.role!r} {claim.index}")
        if claim.role == WORKER and claim.index >= num_workers:
            raise InvalidArgumentError(f"job: index of a worker must be in [0, {num_workers}), got {claim.index}")
        if not 0 < claim.lease_seconds <= 3600 or not claim.token:
            raise InvalidArgumentError(
                f"job: a token, and a lease above 0 and of at most 3600 s, expected, got {claim.lease_seconds} s"
            )

    def _require_same_size(self, claim: MembershipRequest, num_workers: int, now: float) -> None:
        if num_workers == self._barrier.capacity or self._num_workers() == 0:
            return
        others = [
            place for place in self._members.incarnations if place != claim.place and self._members.is_alive(place, now)
        ]
        if others:
            names = ", ".join(f"{role} {index}" for role, index in sorted(others))
            raise FailedPreconditionError(
                f"job: {claim.role} {claim.index} was started for {num_workers} workers, and {names} for"
                f" {self._barrier.capacity}; start all with the same number, after all others have ended"
            )

    def _num_workers(self) -> int:
        return self._barrier.capacity if self._members.incarnations else 0

    def _shares(self) -> int:
        return self._num_workers() if self._num_shares is None else self._num_shares

    def _resize(self, num_workers: int) -> None:
        self._barrier = BarrierSlots(num_workers)
        self._placed_by = None

    def _forget_barrier_of(self, place: Place, why: str) -> None:
        if self._placed_by == place:
            _log.warning(
                "the barrier falls: %s %d, which had placed it (action %r), %s", *place, self._barrier.action, why
            )
            self._barrier.remove()
            self._placed_by = None

    def _finished_now(self) -> frozenset[int]:
        return frozenset(worker for worker, had in self._finished.items() if self._has(worker, had))

    def _has(self, worker: int, had: Clocks) -> bool:
        return all(self._clocks.get(owner, {}).get(worker, -1) >= seqs.get(worker, -1) for owner, seqs in had.items())

    def _lost(self, now: float) -> frozenset[int]:
        finished = self._finished_now()
        lost = frozenset(
            worker
            for worker in self._takers.union(range(self._barrier.capacity, self._shares())) - finished - self._left
            if not self._members.is_alive((WORKER, worker), now)
        )
        self._lost_since = {worker: self._lost_since.get(worker, now) for worker in lost}
        return lost

    def _adoptable(self, now: float) -> frozenset[int]:
        return frozenset(
            worker
            for worker in self._lost(now)
            if worker >= self._barrier.capacity or self._members.is_adoptable(worker, self._lost_since[worker], now)
        )


def _part_of(worker: int, clocks: Clocks) -> Clocks:
    return {owner: {worker: seqs[worker]} for owner, seqs in clocks.items() if worker in seqs}


def _clocks_in(saved: Mapping[str, Mapping[str, int]]) -> Clocks:
    return {owner: {int(worker): int(seq) for worker, seq in seqs.items()} for owner, seqs in saved.items()}


def _without_figures(state: JobState) -> JobState:
    return replace(state, version=0, steps=0, members=tuple(replace(member, progress=0) for member in state.members))
