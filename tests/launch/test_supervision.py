"""Who is started again, when, and when a job is over; time is a number here."""

from __future__ import annotations

import signal

import pytest

from monolith.launch import RestartConfig, Role
from monolith.launch.supervision import Say, Send, ShutdownConfig, Start, Supervision

PS, CHIEF, WORKER = Role("ps", 0), Role("worker", 0), Role("worker", 1)
ROLES = (PS, CHIEF, WORKER)


def running(policy: RestartConfig | None = None) -> Supervision:
    supervision = Supervision(ROLES, RestartConfig() if policy is None else policy)
    assert supervision.due(0.0) == [Start(role) for role in ROLES]
    return supervision


def deeds(supervision: Supervision, now: float) -> list[Start | Send]:
    return [action for action in supervision.due(now) if not isinstance(action, Say)]


def words(supervision: Supervision, now: float) -> str:
    return "; ".join(action.text for action in supervision.due(now) if isinstance(action, Say))


def test_all_are_started_once() -> None:
    supervision = running()
    assert supervision.due(1.0) == []
    assert supervision.next_deadline() is None
    assert (supervision.num_alive("ps"), supervision.num_alive("worker")) == (1, 2)


class TestRestarts:
    def test_the_first_restart_is_immediate_and_backoff_grows(self) -> None:
        supervision = running()
        now = 0.0
        for pause in (0.0, 1.0, 2.0, 4.0):
            supervision.ended(CHIEF, -9, now)
            assert supervision.next_deadline() == now + pause
            if pause:
                assert deeds(supervision, now + pause - 0.1) == []
            now += pause
            assert deeds(supervision, now) == [Start(CHIEF)]
        assert supervision.restarts == 4

    def test_a_role_that_was_well_begins_a_new_row(self) -> None:
        supervision = running(RestartConfig(limit=2, healthy_seconds=60))
        now = 0.0
        for _ in range(5):
            now += 60.0
            supervision.ended(PS, -11, now)
            assert deeds(supervision, now) == [Start(PS)]
        supervision.ended(PS, -11, now + 59.0)
        assert deeds(supervision, now + 60.0) == [Start(PS)]
        supervision.ended(PS, -11, now + 61.0)
        assert supervision.failure == 128 + 11

    def test_a_limit_of_zero_allows_no_restarts(self) -> None:
        supervision = running(RestartConfig(limit=0))
        supervision.ended(CHIEF, 75, 1.0)
        assert supervision.failure == 75

    def test_roles_count_for_themselves(self) -> None:
        supervision = running(RestartConfig(limit=1))
        for role in ROLES:
            supervision.ended(role, -9, 1.0)
        assert deeds(supervision, 1.0) == [Start(role) for role in ROLES]
        assert supervision.failure is None

    def test_a_server_that_a_signal_stopped_is_started_again_while_workers_need_it(self) -> None:
        supervision = running()
        supervision.ended(PS, 130, 1.0)
        assert deeds(supervision, 1.0) == [Start(PS)]
        supervision.stop(2.0)
        supervision.due(2.0)
        supervision.ended(PS, 130, 2.0)
        assert deeds(supervision, 3.0) == [Start(PS)], "for the last save"
        supervision.ended(CHIEF, 130, 4.0)
        supervision.ended(WORKER, 130, 4.0)
        supervision.ended(PS, 130, 4.0)
        assert (supervision.is_over, supervision.exit_code) == (True, 130)

    def test_a_server_that_the_chief_ended_stays_so(self) -> None:
        supervision = running()
        supervision.ended(PS, 0, 1.0)
        assert deeds(supervision, 100.0) == []


class TestEnd:
    def test_servers_have_time_to_end_by_themselves(self) -> None:
        supervision = running()
        supervision.ended(CHIEF, 0, 5.0)
        assert supervision.next_deadline() is None
        supervision.ended(WORKER, 0, 6.0)
        assert supervision.next_deadline() == 16.0
        assert deeds(supervision, 15.9) == []
        assert deeds(supervision, 16.0) == [Send(PS, signal.SIGTERM)]
        assert deeds(supervision, 30.9) == []
        assert deeds(supervision, 31.0) == [Send(PS, signal.SIGKILL)]
        supervision.ended(PS, -9, 31.1)
        assert (supervision.is_over, supervision.exit_code) == (True, 0)

    def test_a_server_that_dies_after_the_last_worker_is_not_missed(self) -> None:
        supervision = running()
        supervision.ended(CHIEF, 0, 5.0)
        supervision.ended(WORKER, 0, 5.0)
        supervision.ended(PS, -9, 5.1)
        assert supervision.due(5.1) == []
        assert (supervision.is_over, supervision.exit_code) == (True, 0)

    def test_a_server_pending_restart_is_not_started_once_all_workers_finished(self) -> None:
        supervision = running()
        for now in (1.0, 1.0):
            supervision.ended(PS, -9, now)
            supervision.due(now)
        supervision.ended(CHIEF, 0, 1.5)
        supervision.ended(WORKER, 0, 1.5)
        assert supervision.is_over
        assert deeds(supervision, 9.0) == []

    def test_workers_stopped_from_outside_make_a_stopped_job(self) -> None:
        supervision = running()
        supervision.ended(CHIEF, 130, 1.0)
        supervision.ended(WORKER, 130, 1.0)
        supervision.ended(PS, 0, 1.0)
        assert supervision.exit_code == 130


class TestStop:
    def test_workers_are_signalled_first_and_servers_after_the_last_worker_ended(self) -> None:
        supervision = running()
        supervision.stop(1.0)
        assert deeds(supervision, 1.0) == [Send(CHIEF, signal.SIGINT), Send(WORKER, signal.SIGINT)]
        assert supervision.next_deadline() is None, "a save may take long"
        supervision.ended(WORKER, 130, 2.0)
        supervision.ended(CHIEF, 130, 500.0)
        assert deeds(supervision, 500.0) == [Send(PS, signal.SIGTERM)]
        supervision.ended(PS, 0, 501.0)
        assert (supervision.is_over, supervision.exit_code) == (True, 130)

    def test_a_server_is_brought_back_for_the_last_save_and_a_worker_is_not(self) -> None:
        supervision = running()
        supervision.stop(1.0)
        supervision.due(1.0)
        supervision.ended(WORKER, -9, 2.0)
        supervision.ended(PS, -9, 2.0)
        assert deeds(supervision, 2.0) == [Start(PS)]
        assert supervision.num_alive("worker") == 1

    def test_a_worker_that_waits_for_its_restart_stays_away(self) -> None:
        supervision = running()
        for now in (1.0, 1.0):
            supervision.ended(WORKER, -9, now)
            supervision.due(now)
        supervision.stop(1.5)
        assert deeds(supervision, 60.0) == [Send(CHIEF, signal.SIGINT)]

    def test_the_second_stop_kills_all_roles_and_restarts_none(self) -> None:
        supervision = running()
        supervision.stop(1.0)
        supervision.due(1.0)
        supervision.stop(2.0)
        assert deeds(supervision, 2.0) == [Send(role, signal.SIGKILL) for role in ROLES]
        for role in ROLES:
            supervision.ended(role, -9, 2.1)
        assert deeds(supervision, 90.0) == []
        assert (supervision.is_over, supervision.exit_code) == (True, 130)

    def test_one_after_all_workers_hurries_the_servers(self) -> None:
        supervision = running()
        supervision.ended(CHIEF, 0, 1.0)
        supervision.ended(WORKER, 0, 1.0)
        supervision.stop(2.0)
        assert deeds(supervision, 2.0) == [Send(PS, signal.SIGTERM)]
        supervision.stop(3.0)
        assert deeds(supervision, 3.0) == [Send(PS, signal.SIGKILL)]
        supervision.ended(PS, -9, 3.1)
        assert supervision.exit_code == 0, "the training was done"


class TestFailure:
    def test_a_worker_that_fails_lets_the_others_save_for_a_while(self) -> None:
        supervision = running()
        supervision.ended(WORKER, 1, 1.0)
        assert deeds(supervision, 1.0) == [Send(CHIEF, signal.SIGINT)]
        assert supervision.next_deadline() == 301.0
        assert deeds(supervision, 301.0) == [Send(CHIEF, signal.SIGKILL)]
        supervision.ended(CHIEF, -9, 302.0)
        assert deeds(supervision, 302.0) == [Send(PS, signal.SIGTERM)]
        supervision.ended(PS, 0, 303.0)
        assert (supervision.is_over, supervision.exit_code) == (True, 1)

    def test_without_the_chief_nothing_can_be_saved(self) -> None:
        supervision = running()
        supervision.ended(CHIEF, 74, 1.0)
        assert words(supervision, 1.0) == "worker 0 failed (exit code 74): the job ends"
        assert supervision.next_deadline() == 16.0
        assert deeds(supervision, 16.0) == [Send(WORKER, signal.SIGKILL)]
        supervision.ended(WORKER, -9, 17.0)
        supervision.ended(PS, 0, 17.0)
        assert (supervision.is_over, supervision.exit_code) == (True, 74)

    def test_without_a_server_nothing_can_be_saved(self) -> None:
        supervision = running()
        supervision.ended(PS, 2, 1.0)
        assert words(supervision, 1.0) == "ps 0 failed (exit code 2): the job ends"
        assert supervision.next_deadline() == 16.0
        assert deeds(supervision, 16.0) == [Send(CHIEF, signal.SIGKILL), Send(WORKER, signal.SIGKILL)]

    def test_the_first_one_counts(self) -> None:
        supervision = running()
        supervision.ended(WORKER, 1, 1.0)
        supervision.ended(CHIEF, 74, 1.1)
        assert "worker 0 failed (exit code 74)" in words(supervision, 1.1)
        supervision.ended(PS, 0, 1.2)
        assert supervision.exit_code == 1

    def test_a_failed_job_restarts_no_role(self) -> None:
        supervision = running()
        supervision.ended(WORKER, 1, 1.0)
        supervision.due(1.0)
        supervision.ended(PS, -9, 2.0)
        supervision.ended(CHIEF, 75, 2.0)
        assert deeds(supervision, 90.0) == []
        assert supervision.is_over

    def test_a_stop_after_it_kills_only_when_it_is_repeated(self) -> None:
        supervision = running()
        supervision.ended(WORKER, 1, 1.0)
        supervision.due(1.0)
        supervision.stop(2.0)
        assert deeds(supervision, 2.0) == []
        supervision.stop(3.0)
        assert Send(CHIEF, signal.SIGKILL) in deeds(supervision, 3.0)


@pytest.mark.parametrize("name", ["server_seconds", "stop_seconds", "kill_seconds"])
def test_patience_has_no_negative_numbers(name: str) -> None:
    with pytest.raises(ValueError, match=f"patience: {name} must be >= 0, got -1"):
        ShutdownConfig(**{name: -1})
