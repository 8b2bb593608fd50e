"""What is due when: decided without a network, on times that the test gives."""

from __future__ import annotations

from monolith.cluster.discovery.zookeeper import Chores, Upkeep

A, B = "/monolith/job/ps.0", "/monolith/job/ps.1"


def test_nothing_is_due_without_registrations_and_events() -> None:
    upkeep = Upkeep(1800)
    assert not upkeep.take(0)
    assert upkeep.seconds_until_due(0) is None


def test_a_path_is_announced_again_after_each_period() -> None:
    upkeep = Upkeep(1800)
    upkeep.registered(A, now=100)
    assert not upkeep.take(1899)
    assert upkeep.seconds_until_due(1899) == 1
    assert upkeep.take(1900) == Chores(announce=(A,))
    assert upkeep.take(1901) == Chores(announce=(A,))  # until it has happened
    upkeep.registered(A, now=1902)
    assert upkeep.seconds_until_due(1902) == 1800


def test_paths_have_their_own_times() -> None:
    upkeep = Upkeep(10)
    upkeep.registered(A, now=0)
    upkeep.registered(B, now=4)
    assert upkeep.take(10) == Chores(announce=(A,))
    upkeep.removed(A)
    assert upkeep.seconds_until_due(10) == 4
    assert upkeep.take(14) == Chores(announce=(B,))


def test_a_recovered_session_announces_everything_and_refreshes() -> None:
    upkeep = Upkeep(1800)
    upkeep.registered(A, now=0)
    upkeep.registered(B, now=0)
    upkeep.lost()
    assert not upkeep.take(1)
    assert upkeep.seconds_until_due(1) is None
    upkeep.connected()
    assert upkeep.seconds_until_due(1) == 0
    assert upkeep.take(1) == Chores(announce=(A, B), refresh=True)
    upkeep.registered(A, now=1)
    upkeep.registered(B, now=1)
    assert not upkeep.take(2)


def test_a_suspended_connection_only_looks_again() -> None:
    upkeep = Upkeep(1800)
    upkeep.registered(A, now=0)
    upkeep.suspended()
    upkeep.connected()
    assert upkeep.take(1) == Chores(refresh=True)


def test_nothing_is_due_while_there_is_no_connection() -> None:
    upkeep = Upkeep(10)
    upkeep.registered(A, now=0)
    upkeep.changed()
    upkeep.suspended()
    assert not upkeep.take(100)
    assert upkeep.seconds_until_due(100) is None
    upkeep.lost()
    upkeep.suspended()  # trying to connect again does not bring the session back
    upkeep.connected()
    assert upkeep.take(100) == Chores(announce=(A,), refresh=True)


def test_a_failure_is_retried_unless_the_node_was_deregistered() -> None:
    upkeep = Upkeep(10)
    upkeep.registered(A, now=0)
    upkeep.failed(A, now=10, retry_seconds=5)
    upkeep.failed(B, now=10, retry_seconds=5)
    assert not upkeep.take(14)
    assert upkeep.take(15) == Chores(announce=(A,))


def test_a_change_triggers_an_immediate_refresh() -> None:
    upkeep = Upkeep(10)
    upkeep.changed()
    upkeep.changed()
    assert upkeep.take(0) == Chores(refresh=True)
    assert not upkeep.take(0)
