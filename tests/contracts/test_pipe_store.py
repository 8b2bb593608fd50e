"""The store behind a pipe ends with its process, and the process with its store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from contracts.one_worker import ONE_TABLE, Worker, rows_of, stamp
from contracts.pipe_store import PipeHost, PipeStore
from monolith.errors import InternalError, InvalidArgumentError, UnavailableError
from monolith.tables import Segment, TableConfig
from monolith.tables.filters import SlidingHashFilter


@pytest.fixture(scope="module")
def host() -> Iterator[PipeHost]:
    with closing(PipeHost()) as host:
        yield host


@pytest.mark.slow
def test_a_store_has_a_process_of_its_own_unless_it_is_given_one(host: PipeHost) -> None:
    with closing(PipeStore(ONE_TABLE)) as own, closing(PipeStore(ONE_TABLE, host)) as shared:
        assert own.host.process.pid != host.process.pid
        Worker(own).train([1])
        Worker(shared).train([1], 3.0)
        assert (rows_of(own, [1]), rows_of(shared, [1])) == ([[-1.0, -1.0]], [[-3.0, -3.0]])
        own.host.process.kill()
        with pytest.raises(UnavailableError, match="its process has ended"):
            own.stats()
        assert shared.stats().rows == 1
    assert own.host.process.poll() is not None
    assert host.process.poll() is None


def test_it_is_remote(host: PipeHost) -> None:
    with closing(PipeStore(ONE_TABLE, host)) as store:
        assert store.traits.remote


def test_configs_cross_the_pipe_intact(host: PipeHost) -> None:
    config = TableConfig(
        [Segment(2)], slot_min_counts={3: 2}, slot_expire_days={3: 5}, admission=SlidingHashFilter(capacity=100)
    )
    with closing(PipeStore({"user": config}, host)) as store:
        in_slot = 3 << 48
        worker = Worker(store)
        assert worker.train([in_slot, 1]).filtered == 1
        assert worker.session.evict(now=5 * 86400) == 0


def test_errors_keep_their_class_and_wrong_calls_of_ours_are_internal_ones(host: PipeHost) -> None:
    with closing(PipeStore(ONE_TABLE, host)) as store:
        with pytest.raises(InvalidArgumentError, match="unknown table 'nobody'"):
            store.touch("nobody", torch.tensor([1]))
        with pytest.raises(InternalError, match="TypeError"):
            store.touch("user")


def test_unreferenced_plans_are_released(host: PipeHost) -> None:
    with closing(PipeStore(ONE_TABLE, host)) as store:
        plan = store.plan(torch.tensor([1]), torch.tensor([0, 1]), stamp=stamp(0))
        number = plan.number
        del plan
        store.stats()
        with pytest.raises(InternalError, match="KeyError"):
            host.call(number, "num_values")
