"""What the coordinator of a job decides, with time as an argument."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from monolith.cluster import BarrierAlreadyPlacedError
from monolith.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
)
from monolith.job.coordination import Coordinator
from monolith.job.members import GRACE_SECONDS, JobMembers, MembershipRequest, PlaceTakenError
from monolith.job.state import NO_WORKER

LEASE = 10.0
CHIEF = ("worker", 0)
WORKER = ("worker", 1)
CLOCKS = {"rows/model": {0: 4, 1: 7}, "dense": {0: 4, 1: 6}}


def claim(index: int, token: int, **more: Any) -> MembershipRequest:
    return MembershipRequest(
        role="worker", index=index, token=token, address=f"host{token}", lease_seconds=LEASE, **more
    )


def two(now: float = 0.0) -> Coordinator:
    """Chief 0 with token 10, worker 1 with token 11."""
    job = Coordinator(7, now)
    for index in (0, 1):
        job.join(claim(index, 10 + index), num_workers=2, now=now)
    return job


def wait_until(job: Coordinator, begin: float, end: float, *alive: tuple[tuple[str, int], int]) -> None:
    """Time passes, as the coordinator's own thread sees it, and some members renew their leases."""
    now = begin
    while now < end:
        now = min(now + 0.5, end)
        job.tick(steps=0, clocks={}, now=now)
        for place, token in alive:
            job.renew(place, token, now=now)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lease_seconds": 0.0}, "a lease above 0 and of at most 3600 s, expected, got 0.0 s"),
        ({"lease_seconds": 3600.5}, "a lease above 0 and of at most 3600 s, expected, got 3600.5 s"),
        ({"token": 0}, "a token, and a lease"),
        ({"index": -1}, "an index >= 0 expected, got 'worker' -1"),
        ({"role": ""}, "a role and an index"),
        ({"index": 2}, r"index of a worker must be in \[0, 2\), got 2"),
    ],
)
def test_a_request_for_a_place_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    job = Coordinator(7, 0.0)
    with pytest.raises(InvalidArgumentError, match=message):
        job.join(replace(claim(1, 11), **changes), num_workers=2, now=0.0)
    job.join(replace(claim(1, 11), lease_seconds=3600.0), num_workers=2, now=0.0)


class TestLeases:
    def test_a_place_is_taken_while_its_lease_runs(self) -> None:
        members = JobMembers()
        assert members.join(claim(0, 1), 0.0) == 1
        members.renew(("worker", 0), 1, 4.0)
        with pytest.raises(
            PlaceTakenError, match=r"worker 0 is the process at host1; its last heartbeat was 3\.0 s ago"
        ) as e:
            members.join(claim(0, 2), 7.0)
        assert (e.value.seconds_left, e.value.renewals) == (7.0, 1)
        assert members.join(claim(0, 2), 14.0) == 2

    def test_a_member_whose_connection_has_ended_has_a_grace_period_to_reconnect(self) -> None:
        members = JobMembers()
        members.join(claim(0, 1), 0.0)
        members.connect(CHIEF, 1, 0.0)
        members.disconnect(1, 2.0)
        assert members.is_alive(CHIEF, 2.0 + GRACE_SECONDS / 2)
        assert not members.is_alive(CHIEF, 2.0 + GRACE_SECONDS)
        members.connect(CHIEF, 1, 4.0)
        assert members.is_alive(CHIEF, 13.0)

    def test_of_two_streams_the_last_one_counts(self) -> None:
        members = JobMembers()
        members.join(claim(0, 1), 0.0)
        members.connect(CHIEF, 1, 0.0)
        members.connect(CHIEF, 1, 0.0)
        members.disconnect(1, 2.0)
        assert members.is_alive(CHIEF, 9.0)

    def test_a_replaced_member_gets_an_error_and_one_not_replaced_continues(self) -> None:
        members = JobMembers()
        members.join(claim(0, 1), 0.0)
        assert not members.is_alive(CHIEF, 20.0)
        members.renew(CHIEF, 1, 20.0)
        assert members.is_alive(CHIEF, 20.0)
        members.join(claim(0, 2), 40.0)
        calls: list[Callable[[], None]] = [
            lambda: members.renew(CHIEF, 1, 41.0),
            lambda: members.connect(CHIEF, 1, 41.0),
        ]
        for call in calls:
            with pytest.raises(
                AbortedError, match="worker 0 is the process at host2, as incarnation 2: the lease of this process"
            ):
                call()
        members.leave(CHIEF, 1)
        assert members.is_alive(CHIEF, 41.0), "the one before cannot give it up"

    def test_a_member_that_announces_itself_again_keeps_its_incarnation(self) -> None:
        members = JobMembers()
        with pytest.raises(NotFoundError):
            members.renew(CHIEF, 1, 0.0)
        assert members.join(claim(0, 1, incarnation=5), 0.0) == 5
        for stale in (4, 5):
            with pytest.raises(AbortedError):
                members.join(claim(0, 2, incarnation=stale), 1.0)
        assert members.join(claim(0, 3, incarnation=6), 1.0) == 6, "the later one goes first, whoever comes first"
        with pytest.raises(AbortedError):
            members.renew(CHIEF, 1, 2.0)

    def test_incarnations_of_before_are_not_given_out_again(self) -> None:
        members = JobMembers()
        members.expect({CHIEF: 3})
        with pytest.raises(AbortedError):
            members.join(claim(0, 1, incarnation=2), 0.0)
        assert members.join(claim(0, 2, incarnation=3), 0.0) == 3
        members.leave(CHIEF, 2)
        assert members.join(claim(0, 4), 0.0) == 4

    def test_a_coordinator_that_was_suspended_extends_every_lease_by_that_time(self) -> None:
        """As after SIGSTOP of the home server: renewals wait in its sockets while its clock goes on."""
        job = two()
        wait_until(job, 0.0, 5.0, (CHIEF, 10), (WORKER, 11))
        job.disconnect(11, now=5.0)
        wait_until(job, 5.0, 5.5, (CHIEF, 10))
        job.tick(steps=0, clocks={}, now=500.0)
        assert [each.alive for each in job.state(500.0).members] == [True, True]
        wait_until(job, 500.0, 500.0 + LEASE)
        assert [each.alive for each in job.state(500.0 + LEASE).members] == [False, False]

    def test_a_member_lost_before_a_pause_is_not_revived_by_it(self) -> None:
        job = two()
        wait_until(job, 0.0, 11.0, (CHIEF, 10))
        job.tick(steps=0, clocks={}, now=1000.0)
        assert [each.alive for each in job.state(1000.0).members] == [True, False]


class TestMemberReports:
    def test_versions_grow_with_what_is_new_and_not_with_figures(self) -> None:
        job = two()
        first = job.state(0.0)
        job.renew(WORKER, 11, progress=100, now=0.1)
        job.tick(steps=5, clocks={}, now=0.2)
        second = job.state(0.2)
        assert (second.version, second.steps, second.members[1].progress) == (first.version, 5, 100)
        job.set_step_offset(CHIEF, 10, offset=3, now=0.3)
        assert (job.state(0.3).version, job.state(0.3).global_step) == (first.version + 1, 8)

    def test_flags_of_workers_are_their_own(self) -> None:
        job = two()
        job.set_flag(WORKER, 11, index=1, value=True, now=0.1)
        with pytest.raises(PermissionDeniedError, match="worker 1 alone sets it, and worker 0 wants to"):
            job.set_flag(CHIEF, 10, index=1, value=True, now=0.1)
        with pytest.raises(InvalidArgumentError, match=r"index in \[0, 2\) expected, got 2"):
            job.set_flag(CHIEF, 10, index=2, value=True, now=0.1)
        assert job.state(0.1).training == {1}

    def test_the_barrier_has_one_owner_and_falls_with_it(self, caplog: pytest.LogCaptureFixture) -> None:
        job = two()
        job.place_barrier(CHIEF, 10, action="Save", now=0.1)
        with pytest.raises(BarrierAlreadyPlacedError):
            job.place_barrier(WORKER, 11, action="Stop", now=0.1)
        job.set_waits(WORKER, 11, value=True, now=0.2)
        with pytest.raises(InvalidArgumentError, match="workers from 1 on wait"):
            job.set_waits(CHIEF, 10, value=True, now=0.2)
        with caplog.at_level(logging.WARNING):
            wait_until(job, 0.2, 11.0, (WORKER, 11))
        state = job.state(11.0)
        assert (state.barrier_placed, state.barrier_action, set(state.blocked)) == (False, "", {1})
        assert "the barrier falls: worker 0, which had placed it (action 'Save'), was lost" in caplog.text

    def test_calls_of_an_unknown_member_change_nothing(self) -> None:
        job = two()
        before = job.state(0.1)
        for place, token in ((CHIEF, 99), (("worker", 5), 10), (("ps", 0), 10)):
            for call in (
                lambda p=place, t=token: job.set_flag(p, t, index=0, value=True, now=0.1),
                lambda p=place, t=token: job.place_barrier(p, t, action="", now=0.1),
                lambda p=place, t=token: job.remove_barrier(p, t, now=0.1),
                lambda p=place, t=token: job.request_stop(p, t, now=0.1),
                lambda p=place, t=token: job.finish(p, t, clocks={}, now=0.1),
                lambda p=place, t=token: job.adopt(p, t, now=0.1),
                lambda p=place, t=token: job.report_lost(p, t, worker=0, server=0, batches=range(1), now=0.1),
                lambda p=place, t=token: job.reset(p, t, now=0.1),
            ):
                with pytest.raises((AbortedError, NotFoundError)):
                    call()
            job.leave(place, token, now=0.1)
        assert job.state(0.1) == before

    def test_wrong_places_are_refused(self) -> None:
        job = Coordinator(7, 0.0)
        for wrong, num_workers in ((claim(2, 1), 2), (claim(-1, 1), 2), (claim(0, 0), 2), (claim(0, 1), 0)):
            with pytest.raises(InvalidArgumentError):
                job.join(wrong, num_workers=num_workers, now=0.0)
        job.join(claim(0, 1), num_workers=2, now=0.0)
        with pytest.raises(FailedPreconditionError, match="worker 1 was started for 3 workers, and worker 0 for 2"):
            job.join(claim(1, 2), num_workers=3, now=0.0)
        assert job.state(0.0).num_workers == 2


class TestEndsOfInputs:
    def test_a_finished_worker_is_finished_as_long_as_all_of_it_is_applied(self) -> None:
        job = two()
        job.finish(WORKER, 11, clocks=CLOCKS, now=0.1)
        assert job.state(0.1).finished == {1}
        saved = json.loads(json.dumps(job.state_dict()))
        restored = two()
        restored.load_state_dict(saved)
        restored.tick(steps=0, clocks={"rows/model": {1: 6}, "dense": {1: 6}}, now=0.1)
        assert restored.state(0.1).finished == set(), "a batch of it came behind what was saved"
        restored.tick(steps=0, clocks=CLOCKS, now=0.2)
        assert restored.state(0.2).finished == {1}

    def test_a_present_worker_reports_itself_when_its_input_has_ended(self) -> None:
        before = two()
        before.tick(steps=13, clocks=CLOCKS, now=0.1)
        before.finish(WORKER, 11, clocks=CLOCKS, now=0.1)
        saved = before.state_dict()

        here = two()  # came before the checkpoint was read, whose input may have grown since
        here.tick(steps=13, clocks=CLOCKS, now=0.1)
        here.restore(saved, 0.1)
        assert here.state(0.1).finished == set()

        late = Coordinator(7, 0.0)
        late.join(claim(0, 10), num_workers=2, now=0.0)
        late.tick(steps=13, clocks=CLOCKS, now=0.1)
        late.restore(saved, 0.1)
        assert late.state(0.1).finished == {1}, "nobody is here who could say otherwise"
        late.join(claim(1, 11), num_workers=2, now=0.2)
        assert late.state(0.2).finished == set()

        late.finish(WORKER, 11, clocks=CLOCKS, now=0.3)
        late.join(claim(1, 11, incarnation=1), num_workers=2, now=0.4)  # only announces itself again
        assert late.state(0.4).finished == {1}

    def test_what_survives_the_process(self) -> None:
        job = two()
        job.set_flag(CHIEF, 10, index=0, value=True, now=0.1)
        job.set_step_offset(CHIEF, 10, offset=9, now=0.1)
        for _ in range(2):  # said again, as after an answer that was lost, it counts once
            job.report_lost(CHIEF, 10, worker=1, server=3, batches=range(8, 10), now=0.1)
        job.finish(WORKER, 11, clocks=CLOCKS, now=0.1)
        after = Coordinator(8, 0.0)
        after.load(job.dump())
        after.tick(steps=0, clocks=CLOCKS, now=0.1)
        state = after.state(0.1)
        assert (state.restored, state.step_offset, dict(state.lost_updates)) == (True, 9, {(1, 3): 2})
        assert (state.num_workers, set(state.finished), state.members) == (2, {1}, ())
        after.join(claim(0, 10, incarnation=1), num_workers=2, now=0.1)
        after.report_lost(CHIEF, 10, worker=1, server=3, batches=range(9, 12), now=0.1)
        assert dict(after.state(0.1).lost_updates) == {(1, 3): 4}
        assert after.join(claim(1, 11, incarnation=1), num_workers=2, now=0.2) == 1

    def test_a_range_of_lost_batches_begins_at_0_or_later_and_may_be_empty(self) -> None:
        job = two()
        for batches in (range(-1, 2), range(3, 2)):
            with pytest.raises(InvalidArgumentError, match="lost updates: batches from 0 on expected"):
                job.report_lost(CHIEF, 10, worker=1, server=0, batches=batches, now=0.1)
        for batches in (range(0), range(2), range(5, 5)):
            job.report_lost(CHIEF, 10, worker=1, server=0, batches=batches, now=0.1)
        assert dict(job.state(0.1).lost_updates) == {(1, 0): 2}

    def test_only_workers_that_took_files_are_lost_and_only_after_a_full_lease_adopted(self) -> None:
        job = two()
        job.note_takers({1, 5})
        assert (set(job.state(0.1).lost), set(job.state(0.1).adoptable)) == ({5}, {5}), (
            "5 is of a run with more workers"
        )
        assert job.adopt(CHIEF, 10, now=0.1) == 5
        assert job.adopt(CHIEF, 10, now=0.1) == NO_WORKER
        job.connect(WORKER, 11, now=0.2)
        job.disconnect(11, now=0.2)
        wait_until(job, 0.2, 5.0, (CHIEF, 10))
        assert (set(job.state(5.0).lost), set(job.state(5.0).adoptable)) == ({1}, set()), "it may be started again"
        wait_until(job, 5.0, 11.0, (CHIEF, 10))
        assert job.adopt(CHIEF, 10, now=11.0) == 1
        with pytest.raises(AbortedError, match="worker 1 was lost, and worker 0 at host10 trains the rest"):
            job.renew(WORKER, 11, now=11.1)
        job.release(CHIEF, 10, worker=1, finished=True, clocks=CLOCKS, now=11.2)
        assert job.state(11.2).finished == {1}
        with pytest.raises(FailedPreconditionError):
            job.release(CHIEF, 10, worker=1, finished=True, clocks={}, now=11.3)

    def test_a_worker_that_has_yet_to_join_is_not_adopted_immediately(self) -> None:
        """As after a restore: its number took files, and its process starts slowly."""
        job = Coordinator(7, 0.0)
        job.join(claim(0, 10), num_workers=2, now=0.0)
        job.note_takers({0, 1})
        assert (set(job.state(0.0).lost), set(job.state(0.0).adoptable)) == ({1}, set())
        wait_until(job, 0.0, 9.0, (CHIEF, 10))
        assert job.adopt(CHIEF, 10, now=9.0) == NO_WORKER
        assert job.adopt(CHIEF, 10, now=100.0) == NO_WORKER, "the home server stood still"
        wait_until(job, 100.0, 102.0, (CHIEF, 10))
        assert job.adopt(CHIEF, 10, now=102.0) == 1

    def test_a_worker_that_has_left_on_purpose_is_not_adopted(self) -> None:
        job = two()
        job.note_takers({1})
        job.set_left(WORKER, 11, now=0.1)
        job.leave(WORKER, 11, now=0.2)
        wait_until(job, 0.2, 30.0, (CHIEF, 10))
        assert (set(job.state(30.0).lost), set(job.state(30.0).left)) == (set(), {1})

    def test_an_adopted_number_waits_at_no_barrier_and_trains_in_no_session(self) -> None:
        job = two()
        job.note_takers({5})
        job.set_flag(CHIEF, 10, index=0, value=True, now=0.1)
        job.adopt(WORKER, 11, now=0.1)
        state = job.state(0.1)
        assert not state.training | state.awaited | state.blocked


class AnyOrder(RuleBasedStateMachine):
    """Whatever processes do, and whenever: a place has one holder, who has heard of it, and nobody is adopted twice."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.job = Coordinator(7, 0.0)
        self.held: dict[int, int] = {}
        """Worker -> token of the process that was given the place last."""
        self.incarnations: dict[int, int] = {}
        self.renewed: dict[int, float] = {}
        self.tokens = 100

    @initialize()
    def begin(self) -> None:
        self.job.note_takers({0, 1, 2, 3})

    @rule(worker=st.integers(0, 2))
    def come(self, worker: int) -> None:
        self.tokens += 1
        alive = self._alive(worker)
        try:
            incarnation = self.job.join(claim(worker, self.tokens), num_workers=3, now=self.now)
        except PlaceTakenError:
            assert alive
            return
        assert not alive
        assert incarnation > self.incarnations.get(worker, 0)
        self.incarnations[worker] = incarnation
        self.held[worker], self.renewed[self.tokens] = self.tokens, self.now

    @rule(worker=st.integers(0, 2), back=st.integers(0, 3))
    def renew(self, worker: int, back: int) -> None:
        token = self.held.get(worker, 0) - back
        try:
            self.job.renew(("worker", worker), token, now=self.now)
        except (AbortedError, NotFoundError):
            assert token != self.held.get(worker)
        else:
            assert token == self.held[worker]
            self.renewed[token] = self.now

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        token = self.held[worker]
        self.job.leave(("worker", worker), token, now=self.now)
        for each in [number for number, holder in self.held.items() if holder == token]:
            del self.held[each]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        token = self.held[worker]
        alive = {number for number in range(4) if self._alive(number)}
        try:
            number = self.job.adopt(("worker", worker), token, now=self.now)
        except OpError:
            assert not 0 <= worker < 3
            return
        if number != NO_WORKER:
            assert number not in alive
            self.held[number] = token
            self.renewed.setdefault(token, self.now)
            self.incarnations[number] = self.incarnations.get(number, 0) + 1

    @rule(seconds=st.sampled_from([0.1, 0.9, 3.0, LEASE]))
    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 0.5, end)
            self.job.tick(steps=0, clocks={}, now=self.now)

    @invariant()
    def members_are_who_was_given_a_place(self) -> None:
        state = self.job.state(self.now)
        assert sorted(each.index for each in state.members) == sorted(self.held)
        for each in state.members:
            assert each.incarnation == self.incarnations[each.index]
        assert state.adoptable <= state.lost <= {0, 1, 2, 3}

    def _alive(self, worker: int) -> bool:
        found = self.job.state(self.now).member("worker", worker)
        return found is not None and found.alive


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase
