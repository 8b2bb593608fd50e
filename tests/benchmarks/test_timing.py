from __future__ import annotations

import gc
import threading
import time

import pytest
import torch

from benchmarks.suites.tables.training_thread import TrainingThread
from monolith.cli._bench.timing import TimedStep, percentile, quiet_collector, take_turns
from monolith.cli._bench.workload import WorkloadBatch

BATCH = WorkloadBatch(rows=torch.zeros(1, dtype=torch.int64), ids=torch.zeros(1, dtype=torch.int64))


def test_a_turn_counts_steps_per_second() -> None:
    rate = TimedStep(lambda _: time.sleep(0.01), [0]).turn(0.2)
    assert 50 < rate <= 100


def test_a_step_longer_than_the_turn_is_still_counted_once() -> None:
    rate = TimedStep(lambda _: time.sleep(0.05), [0]).turn(0.001)
    assert 10 < rate <= 20


def test_a_contestant_resumes_where_its_last_turn_ended() -> None:
    seen: list[int] = []
    contestant = TimedStep(seen.append, list(range(5)))
    contestant.turn(1e-9)
    contestant.turn(1e-9)
    assert seen == [step % 5 for step in range(len(seen))]


def test_every_contestant_runs_in_each_round_and_the_first_one_rotates() -> None:
    order: list[str] = []
    contestants = {name: TimedStep(order.append, [name]) for name in "abc"}
    rates = take_turns(contestants, rounds=3, seconds=1e-9)
    assert {name: len(each) for name, each in rates.items()} == {"a": 3, "b": 3, "c": 3}
    firsts = [order.index(name) for name in "abc"]
    assert firsts == sorted(firsts)
    turns = [name for number, name in enumerate(order) if number == 0 or order[number - 1] != name]
    assert turns == list("abcbcacab"), "the order turns by one each round"


def test_the_collector_is_back_even_after_an_error() -> None:
    def collect_nothing_and_fail() -> None:
        with quiet_collector():
            assert not gc.isenabled()
            raise KeyError

    with pytest.raises(KeyError):
        collect_nothing_and_fail()
    assert gc.isenabled()


def test_a_percentile_is_a_value_that_occurred() -> None:
    assert percentile([1.0, 2.0, 3.0, 1000.0], 99) == 1000.0
    assert percentile([5.0], 50) == 5.0


def test_a_training_thread_records_steps_and_stops() -> None:
    with TrainingThread(lambda _: time.sleep(0.002), [BATCH]) as training:
        begin = time.perf_counter()
        time.sleep(0.05)
        end = time.perf_counter()
        inside = training.steps_between(begin, end)
        assert len(training.steps_touching(begin, end)) >= len(inside) >= 3
    assert all(begin <= step.begin and step.end <= end and step.seconds >= 0.002 for step in inside)
    assert "bench-training" not in {thread.name for thread in threading.enumerate()}


def test_an_error_of_the_training_thread_reaches_its_owner() -> None:
    def fail(_: WorkloadBatch) -> None:
        raise ValueError("no such row")

    with pytest.raises(ValueError, match="no such row"), TrainingThread(fail, [BATCH]):
        time.sleep(0.01)
