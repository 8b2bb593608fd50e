"""What is taken in and put together, decided by a clock that the test owns."""

from __future__ import annotations

import pytest

from monolith.errors import UnavailableError
from monolith.serving.server.request_queue import (
    CostModel,
    OverloadedError,
    RequestQueue,
    RequestQueueConfig,
    Ticket,
    WaitSlip,
)

FAR = 1e9


def ticket(rows: int = 1, *, likeness: object = "a", cost: object = "m", deadline: float = FAR) -> Ticket:
    return Ticket(likeness=likeness, cost=cost, rows=rows, deadline=deadline, work=None)


def learned(rules: RequestQueueConfig, *, seconds: float, rows: int = 1) -> RequestQueue:
    """A queue that has seen one call."""
    queue = RequestQueue(rules)
    assert queue.offer(ticket(rows), 0.0) is None
    batch = queue.take(0.0).batch
    queue.done(queue.begin(batch, 0.0), batch, seconds)
    assert queue.is_idle
    return queue


def test_requests_that_wait_are_put_together_in_order() -> None:
    queue = RequestQueue(RequestQueueConfig(batch_examples=10))
    tickets = [ticket(4), ticket(4), ticket(4), ticket(1)]
    assert [queue.offer(each, 0.0) for each in tickets] == [None] * 4
    assert queue.take(0.0).batch == tickets[:2]
    assert queue.take(0.0).batch == tickets[2:]
    assert queue.take(0.0) == ([], [], None)
    assert queue.num_waiting == 0


def test_unlike_requests_and_large_ones_go_alone_oldest_first() -> None:
    queue = RequestQueue(RequestQueueConfig(batch_examples=10))
    first, alone, large, other = ticket(likeness="b"), ticket(likeness=None), ticket(10), ticket(likeness="b")
    for now, each in enumerate([first, alone, large, other]):
        queue.offer(each, float(now))
    assert [queue.take(9.0).batch for _ in range(3)] == [[first, other], [alone], [large]]


def test_a_request_waits_for_others_no_longer_than_the_delay() -> None:
    queue = RequestQueue(RequestQueueConfig(batch_examples=3, batch_delay_seconds=0.05))
    one, two, three = ticket(), ticket(), ticket()
    queue.offer(one, 1.0)
    assert queue.take(1.0).wait_seconds == pytest.approx(0.05)
    queue.offer(two, 1.03)
    assert queue.take(1.03).wait_seconds == pytest.approx(0.02)
    queue.offer(three, 1.04)
    assert queue.take(1.04).batch == [one, two, three], "a full batch waits no more"
    queue.offer(one, 2.0)
    assert queue.take(2.05).batch == [one], "nor does one whose delay is over"


def test_a_draining_queue_waits_for_no_request_and_accepts_none() -> None:
    queue = RequestQueue(RequestQueueConfig(batch_delay_seconds=0.05))
    one = ticket()
    queue.offer(one, 0.0)
    queue.is_draining = True
    assert isinstance(queue.offer(ticket(), 0.0), UnavailableError)
    assert queue.take(0.0).batch == [one]


def test_a_request_past_its_deadline_leaves_the_queue_unanswered() -> None:
    queue = RequestQueue(RequestQueueConfig())
    late, other = ticket(deadline=1.0), ticket(deadline=2.0)
    queue.offer(late, 0.0)
    queue.offer(other, 0.0)
    taken = queue.take(1.0)
    assert (taken.expired, taken.batch, queue.num_waiting) == ([late], [other], 0)


def test_a_waiting_thread_wakes_for_the_nearest_deadline() -> None:
    queue = RequestQueue(RequestQueueConfig(batch_delay_seconds=0.1))
    queue.offer(ticket(deadline=0.03), 0.0)
    assert queue.take(0.0).wait_seconds == pytest.approx(0.03)


def test_what_would_wait_too_long_is_rejected_with_a_retry_time() -> None:
    queue = learned(RequestQueueConfig(max_wait_seconds=0.1, batch_examples=1), seconds=0.04)
    running = ticket(likeness=None)
    assert queue.offer(running, 1.0) is None
    batch = queue.take(1.0).batch
    queue.begin(batch, 1.0)
    taken = 0
    while (refused := queue.offer(ticket(likeness=None), 1.0)) is None:
        taken += 1
    assert taken == 2, "40 ms run and 2 * 40 ms wait: one more would wait 120"
    assert isinstance(refused, OverloadedError)
    assert refused.retry_after_seconds == pytest.approx(0.12)
    assert "would wait 120 ms, and may 100 ms" in refused.message
    assert queue.offer(ticket(likeness=None), 1.03) is None, "time that passed counts"


def test_what_could_only_be_answered_too_late_is_rejected_immediately() -> None:
    queue = learned(RequestQueueConfig(max_wait_seconds=10.0), seconds=1.0)
    queue.begin([ticket()], 5.0)
    assert queue.offer(ticket(deadline=5.9), 5.0) is not None
    assert queue.offer(ticket(deadline=6.1), 5.0) is None


def test_a_free_thread_means_no_wait_whatever_runs_concurrently() -> None:
    queue = learned(RequestQueueConfig(threads=2, max_wait_seconds=0.1), seconds=60.0)
    queue.begin([ticket()], 100.0)
    assert queue.expected_wait(100.0) == 0.0
    assert queue.offer(ticket(), 100.0) is None
    assert queue.offer(ticket(), 100.0) is not None


def test_the_number_of_waiting_requests_has_a_bound_of_its_own() -> None:
    queue = RequestQueue(RequestQueueConfig(max_waiting=3))
    refusals = [queue.offer(ticket(), 0.0) for _ in range(4)]
    assert refusals[:3] == [None] * 3
    assert isinstance(refusals[3], OverloadedError)


def test_a_queue_that_is_slower_than_its_calls_refuses_earlier() -> None:
    """Calls take 10 ms each, and are begun every 15 ms: what lies between them counts, too."""
    queue = learned(RequestQueueConfig(max_wait_seconds=0.1, batch_examples=1), seconds=0.01)
    now, waits, most = 1.0, list[float](), list[int]()
    for _ in range(300):
        while queue.offer(ticket(likeness=None), now) is None:
            pass
        most.append(queue.num_waiting)
        (taken,) = queue.take(now).batch
        waits.append(now - taken.since)
        call = queue.begin([taken], now)
        queue.done(call, [taken], now + 0.01)
        now += 0.015
    assert max(waits[:50]) > 0.13, "it does not know yet"
    assert max(waits[-100:]) <= 0.1
    assert most[-1] >= 4, "it still takes in what it can answer"


def test_one_long_stop_does_not_close_a_queue_for_good() -> None:
    slip = WaitSlip()
    slip.add(0.01, 100.0)
    assert 1.0 < slip.factor < 2.0
    for _ in range(200):
        slip.add(0.01, 100.0)
    assert slip.factor == 4.0
    for _ in range(200):
        slip.add(0.01, 0.001)
    assert slip.factor == 1.0, "requests that wait less than they might let nobody wait longer"


def test_small_waits_do_not_change_the_factor() -> None:
    slip = WaitSlip()
    slip.add(1e-4, 1.0)
    slip.add(0.0, 1.0)
    assert slip.factor == 1.0


def test_a_failure_does_not_count_towards_the_time_of_answers() -> None:
    queue = RequestQueue(RequestQueueConfig(batch_examples=1))
    queue.offer(ticket(), 0.0)
    batch = queue.take(0.0).batch
    queue.done(queue.begin(batch, 0.0), batch, 100.0, counts=False)
    queue.begin([ticket()], 100.0)
    assert queue.expected_wait(100.0) == 0.0


def test_costs_are_a_constant_plus_a_cost_per_example() -> None:
    model = CostModel()
    for rows in (1, 50, 10, 100, 7):
        model.add(rows, 2e-4 + 1e-5 * rows)
    assert model.seconds(1000) == pytest.approx(2e-4 + 1e-2)
    assert model.seconds(1000, calls=4) == pytest.approx(8e-4 + 1e-2)
    for _ in range(400):
        model.add(10, 1.0)
    assert model.seconds(10) == pytest.approx(1.0, rel=1e-3), "what was long ago is forgotten"


def test_rules_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_delay_seconds must be from 0 to max_wait_seconds"):
        RequestQueueConfig(batch_delay_seconds=2.0, max_wait_seconds=1.0)
