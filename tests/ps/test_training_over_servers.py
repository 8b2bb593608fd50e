"""Sessions over real servers: rows and weights of one process, bit for bit, at every depth of the pipeline."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.checkpoint import Saver
from monolith.errors import OutOfRangeError
from monolith.hook import Hook, StepContext
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.ps.client.cluster import PsCluster
from monolith.ps.client.store import PsStore
from monolith.tables.history import ALL_BUCKETS
from monolith.testing import ExampleTask
from monolith.train import PipelineConfig, Session, Spec

NUM_BATCHES = 8
NUMBERS = itertools.count()


@pytest.fixture(params=[1, 3])
def cluster(request: pytest.FixtureRequest, clusters: Mapping[int, PsCluster]) -> PsCluster:
    return clusters[request.param]


@pytest.fixture
def at_servers(cluster: PsCluster) -> TableDefaults:
    """Rows at the servers, in a store of the test's own."""
    return TableDefaults(store=partial(PsStore, servers=cluster, name=f"rows{next(NUMBERS)}"))


def make_task() -> ExampleTask:
    params = ExampleTask.params()
    params.set(num_batches=NUM_BATCHES)
    return ExampleTask(params)


def trained(
    pipeline: PipelineConfig, task: ExampleTask, hooks: tuple[Hook, ...] = ()
) -> tuple[Any, list[torch.Tensor]]:
    """Every bit of the rows, with optimizer state, and of the dense weights."""
    with Session(task, pipeline=pipeline, deterministic=True, hooks=hooks) as session:
        with session.feed(task.input_fn("train")) as feed, contextlib.suppress(OutOfRangeError):
            while True:
                session.run_next(feed)
        session.settle()
        with task.emb.cut() as cut:
            rows = sorted(block.data for block in cut.blocks(ALL_BUCKETS, state=True))
        assert task.emb.store.stats().open_plans == 0
        assert task.emb.store.stats().applied == {0: NUM_BATCHES - 1}
        return rows, [weight.detach().clone() for weight in task.top.parameters()]


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("postpush", [False, True])
def test_results_are_those_of_one_process(prefetch: int, postpush: bool, at_servers: TableDefaults) -> None:
    pipeline = PipelineConfig(prefetch=prefetch, postpush=postpush, wait_for_batches=True)
    expected_rows, expected_weights = trained(pipeline, make_task())
    with use_table_defaults(at_servers):
        rows, weights = trained(pipeline, make_task())
    assert rows == expected_rows
    assert all(map(torch.equal, weights, expected_weights))


def test_no_thread_of_the_session_waits_for_servers(at_servers: TableDefaults) -> None:
    names: set[str] = set()

    class Looking(ExampleTask):
        def model_fn(self, features: Any, mode: Any) -> Spec:
            names.update(each.name for each in threading.enumerate())
            return super().model_fn(features, mode)

    params = Looking.params()
    params.set(num_batches=NUM_BATCHES)
    with use_table_defaults(at_servers):
        trained(PipelineConfig(prefetch=1, postpush=True, wait_for_batches=True), Looking(params))
    assert not [name for name in names if name.startswith("session/tables")]


def test_a_checkpoint_amid_reads_and_pushes_in_flight_resumes_bit_for_bit(
    at_servers: TableDefaults, tmp_path: Path
) -> None:
    pipeline = PipelineConfig(prefetch=2, postpush=True, wait_for_batches=True)

    def saving(folder: Path) -> Hook:
        class Saving(Hook):
            def after_run(self, context: StepContext) -> None:
                session = context.session
                assert isinstance(session, Session)
                if context.global_step == NUM_BATCHES // 2:
                    with Saver(folder) as saver:
                        saver.save(session.state, background=False)

        return Saving()

    expected_rows, expected_weights = trained(pipeline, make_task(), (saving(tmp_path / "here"),))
    with use_table_defaults(at_servers):
        rows, weights = trained(pipeline, make_task(), (saving(tmp_path / "there"),))
    assert rows == expected_rows
    assert all(map(torch.equal, weights, expected_weights))
    resumed = make_task()
    with (
        Session(resumed, pipeline=pipeline, deterministic=True, restore=Saver(tmp_path / "there").restore) as session,
        session.feed(resumed.input_fn("train")) as feed,
    ):
        for _ in range(NUM_BATCHES // 2):
            session.run_next(feed)
        session.settle()
        with resumed.emb.cut() as cut:
            assert sorted(block.data for block in cut.blocks(ALL_BUCKETS, state=True)) == expected_rows
