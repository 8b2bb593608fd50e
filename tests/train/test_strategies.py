"""What each strategy decides, and a fourth one: two stores in one process, written without a change of the trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monolith.checkpoint import Saver
from monolith.errors import AbortedError, FailedPreconditionError, InvalidArgumentError, OpError, UnavailableError
from monolith.hook import Hook, StepContext
from monolith.job.state import JobMember, JobState
from monolith.ps import PsCluster, PsServer, PsStore
from monolith.tables import BatchStamp, Store, TableConfig
from monolith.testing import ExampleTask, FakeClock
from monolith.train import (
    DenseConfig,
    JobConfig,
    ParameterServers,
    PipelineConfig,
    Ranks,
    SavingConfig,
    Session,
    SingleProcess,
    Strategy,
    Trainer,
    TrainerConfig,
)
from monolith.train._table_pipeline import TablePipeline
from monolith.train.config.job_config import SyncConfig
from monolith.train.saving.resuming import OwnerProgress
from ps.dense_fakes import FakeServers


def make_task() -> ExampleTask:
    params = ExampleTask.params()
    params.set(num_batches=8)
    return ExampleTask(params)


def stamp(seq: int, worker: int = 0) -> BatchStamp:
    return BatchStamp(worker=worker, seq=seq, position=b"at %d" % seq)


class TwoStores(Strategy):
    """Rows in two stores of this process, each with half of the buckets; saves and hooks are those of one process."""

    def __init__(self, cluster: PsCluster) -> None:
        super().__init__()
        self._cluster = cluster
        self.calls: list[str] = []

    def join(self, config: TrainerConfig) -> TrainerConfig:
        self.calls.append("join")
        return super().join(config)

    def store_factory(self) -> Callable[[Mapping[str, TableConfig]], Store]:
        self.calls.append("stores")
        return lambda configs: PsStore(configs, servers=self._cluster, name="divided")

    def hooks_after_savers(self) -> list[Hook]:
        return [Counts(self.calls)]

    def reconnect(self) -> None:
        self.calls.append("reconnect")


class Counts(Hook):
    """Notes each step."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def after_run(self, context: StepContext) -> None:
        self._calls.append(f"step {context.global_step}")


class FailOnce(Hook):
    """Raises an error before a step, the first time."""

    def __init__(self, step: int, error: OpError) -> None:
        self._step, self._error = step, error

    def before_run(self, context: StepContext) -> None:
        if context.global_step == self._step:
            self._step = -1
            raise self._error


@pytest.fixture
def two_stores() -> Iterator[TwoStores]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(PsServer(index, num_ps=2)) for index in range(2)]
        yield TwoStores(stack.enter_context(PsCluster([server.address for server in servers])))


def content(task: Any) -> list[torch.Tensor]:
    """All rows, and the dense weights."""
    rows = [task.emb.lookup(name, torch.arange(1000)) for name in task.emb.slots]
    return [*rows, *(weight.detach().clone() for weight in task.top.parameters())]


def trained(
    strategy: Strategy,
    folder: Path | None = None,
    *,
    steps: int,
    pipeline: PipelineConfig | None = None,
    hooks: tuple[Hook, ...] = (),
) -> list[torch.Tensor]:
    config = TrainerConfig(
        model_dir=None if folder is None else str(folder),
        saving=SavingConfig(every_steps=2, background=False),
        pipeline=pipeline or PipelineConfig(),
        deterministic=True,
    )
    trainer = Trainer(make_task(), config, strategy=strategy, hooks=hooks, clock=FakeClock())
    assert trainer.train(max_steps=steps).global_step == steps
    return content(trainer.task)


def assert_same(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


class TestAFourthStrategy:
    def test_its_rows_and_weights_are_those_of_one_process(self, two_stores: TwoStores) -> None:
        ahead = PipelineConfig(prefetch=1, postpush=True)
        assert_same(trained(two_stores, steps=5, pipeline=ahead), trained(SingleProcess(), steps=5, pipeline=ahead))
        assert two_stores.calls == ["join", "stores", *(f"step {step}" for step in range(1, 6))]

    def test_its_checkpoints_are_those_of_one_process(self, two_stores: TwoStores, tmp_path: Path) -> None:
        trained(two_stores, tmp_path, steps=4)
        assert_same(trained(SingleProcess(), tmp_path, steps=6), trained(SingleProcess(), steps=6))

    def test_it_resumes_from_its_checkpoint_after_a_failure(self, two_stores: TwoStores, tmp_path: Path) -> None:
        fails = FailOnce(3, UnavailableError("gone"))
        assert_same(trained(two_stores, tmp_path, steps=5, hooks=(fails,)), trained(SingleProcess(), steps=5))
        steps = ["step 1", "step 2", "step 3"]
        assert two_stores.calls == ["join", "stores", *steps, "reconnect", "stores", "step 3", "step 4", "step 5"]

    def test_a_session_without_a_trainer_uses_it(self, two_stores: TwoStores) -> None:
        task = make_task()
        with Session(task, strategy=two_stores, deterministic=True) as session:
            for batch in task.input_fn("train"):
                session.run(batch)
        assert isinstance(task.emb.store, PsStore)
        assert session.global_step == 8


class TestSingleProcess:
    def test_only_worker_0_is_the_chief(self) -> None:
        strategy = SingleProcess()
        for index, is_chief in ((0, True), (1, False)):
            strategy.join(TrainerConfig(worker_index=index, num_workers=2))
            assert (strategy.is_chief, strategy.is_first) == (is_chief, is_chief)

    def test_it_saves_where_there_is_a_model_directory(self, tmp_path: Path) -> None:
        strategy = SingleProcess()
        assert strategy.open_saver() is None
        strategy.join(TrainerConfig(model_dir=str(tmp_path)))
        saver = strategy.open_saver()
        assert type(saver) is Saver
        saver.close()

    def test_a_worker_resumes_after_the_newest_batch_of_state_rows_and_weights(self) -> None:
        known = [OwnerProgress(0, stamp(9)), OwnerProgress(0, stamp(4), is_dense=True), OwnerProgress(1, None)]

        def resume(last: BatchStamp | None, next_batch: int) -> int:
            found = SingleProcess().resume(0, last, known, next_batch=next_batch)
            assert found.behind is last, "its input resumes where the state says"
            return found.next_seq

        assert resume(None, 0) == 5
        assert resume(stamp(6), 3) == 7
        assert resume(stamp(6), 8) == 8

    def test_it_refuses_what_would_have_no_effect(self) -> None:
        with pytest.raises(ValueError, match=r"SingleProcess does not train in step .* give strategy=Ranks\(\)"):
            Trainer(ExampleTask(), TrainerConfig(sync=SyncConfig()), strategy=SingleProcess())
        with pytest.raises(InvalidArgumentError, match=r"dense\.prefetch"):
            Trainer(ExampleTask(), TrainerConfig(dense=DenseConfig(prefetch=True)))
        with pytest.raises(InvalidArgumentError, match="servers keep dense weights that are trained"):
            Session(ExampleTask(), mode="predict", strategy=SingleProcess(FakeServers(1)))

    def test_it_rebuilds_after_a_preemption_only(self) -> None:
        strategy = SingleProcess()
        assert strategy.is_recoverable(UnavailableError("gone"), 3)
        assert not strategy.is_recoverable(FailedPreconditionError("refused"), 3)

    def test_a_stop_request_is_for_its_session(self) -> None:
        strategy, stopped = SingleProcess(), list[bool]()
        strategy.request_stop(lambda: stopped.append(True))
        assert stopped == [True]
        assert not strategy.stop_requested


class FakeClient:
    """A coordinator's client whose state a test sets."""

    def __init__(self, *, index: int = 0, num_workers: int = 2) -> None:
        self.index, self.num_workers = index, num_workers
        self.state = JobState(num_workers=num_workers, members=(JobMember(role="worker", index=0),))
        self.barrier = SimpleNamespace(capacity=num_workers)
        self.flags = [False] * num_workers
        self.error: OpError | None = None

    def require_connected(self) -> None:
        if self.error is not None:
            raise self.error


def in_job(client: FakeClient) -> ParameterServers:
    unused: Any = None
    given: Any = client
    return ParameterServers(unused, given, JobConfig(), servers_back=unused, clock=FakeClock())


class TestParameterServers:
    def test_only_the_chief_saves(self, tmp_path: Path) -> None:
        config = TrainerConfig(model_dir=str(tmp_path), num_workers=2)
        chief, worker = in_job(FakeClient()), in_job(FakeClient(index=1))
        for strategy in (chief, worker):
            strategy.join(config)
        saver = chief.open_saver()
        assert isinstance(saver, Saver)
        saver.close()
        assert worker.open_saver() is None
        assert (chief.is_chief, worker.is_chief) == (True, False)
        assert not chief.is_alone

    def test_workers_wait_for_the_cut_of_a_save_only_unless_runs_must_repeat(self) -> None:
        strategy = in_job(FakeClient())
        for deterministic in (False, True):
            strategy.join(TrainerConfig(deterministic=deterministic))
            assert strategy.saver_options(others_wait=True)["background"] is not deterministic

    def test_the_first_refusal_at_a_step_is_recoverable_and_the_second_is_not(self) -> None:
        strategy, refused = in_job(FakeClient()), FailedPreconditionError("rolled back")
        assert strategy.is_recoverable(refused, 3)
        assert not strategy.is_recoverable(refused, 3)
        assert strategy.is_recoverable(refused, 4)
        strategy.join(TrainerConfig())
        assert strategy.is_recoverable(refused, 4), "another run"

    def test_a_replaced_worker_recovers_from_nothing(self) -> None:
        client = FakeClient()
        strategy = in_job(client)
        assert strategy.is_recoverable(UnavailableError("gone"), 3)
        client.error = UnavailableError("the coordinator is gone")
        assert strategy.is_recoverable(UnavailableError("gone"), 3)
        client.error = AbortedError("another has the index")
        assert not strategy.is_recoverable(UnavailableError("gone"), 3)

    def test_there_is_no_limit_of_rebuilt_sessions(self) -> None:
        assert in_job(FakeClient()).rebuild_limit is None
        assert SingleProcess().rebuild_limit == 20

    def test_the_global_step_counts_the_steps_of_other_workers_and_never_falls(self) -> None:
        strategy = in_job(FakeClient())
        store = SimpleNamespace(name="rows", owners=None, steps_of_others=-1, refresh_newest_time=lambda: None)
        state: Any = SimpleNamespace(stores={"rows": store}, dense=None)
        strategy.attach(state)
        assert strategy.count_step(0, stamp(0), in_flight=0) == 1
        store.steps_of_others = 10
        assert strategy.count_step(1, stamp(1), in_flight=0) == 12
        assert strategy.count_step(20, stamp(2), in_flight=0) == 20

    def test_it_refuses_a_session_that_only_looks(self) -> None:
        with pytest.raises(InvalidArgumentError, match="servers keep dense weights that are trained"):
            Session(ExampleTask(), mode="eval", strategy=in_job(FakeClient()))


class TestRanks:
    def test_a_config_with_sync_selects_them(self) -> None:
        trainer = Trainer(make_task(), TrainerConfig(sync=SyncConfig()))
        assert isinstance(trainer._strategy, Ranks)
        assert trainer.train(max_steps=2).global_step == 2

    def test_they_need_a_synchronous_run_and_its_rank(self) -> None:
        with pytest.raises(ValueError, match=r"strategy=Ranks\(\) is of a synchronous run, and config\.sync is None"):
            Trainer(ExampleTask(), strategy=Ranks())
        with pytest.raises(ValueError, match="must be rank and size of the run, 0 and 1, got 1 and 2"):
            Ranks().join(TrainerConfig(sync=SyncConfig(), worker_index=1, num_workers=2))
        with pytest.raises(FailedPreconditionError, match=r"call join\(config\) first"):
            Session(ExampleTask(), strategy=Ranks()).__enter__()
        with pytest.raises(InvalidArgumentError, match="ranks keep rows that are trained, and mode is 'eval'"):
            Session(ExampleTask(), mode="eval", strategy=Ranks())

    def test_one_rank_is_a_single_process_that_numbers_exports_by_step(self) -> None:
        ranks = Ranks()
        ranks.join(TrainerConfig(sync=SyncConfig()))
        assert (ranks.is_alone, ranks.is_first, ranks.is_synchronous, ranks.follows_steps) == (True, True, True, False)
        assert ranks.store_factory() is None
        assert type(ranks.open_pipeline(PipelineConfig())) is TablePipeline
        assert ranks.is_recoverable(UnavailableError("gone"), 1)
        assert ranks.fails_alike(ValueError("own"))

    def test_one_rank_with_servers_cannot_restart_alone(self) -> None:
        servers: Any = object()
        ranks = Ranks(servers)
        ranks.join(TrainerConfig(sync=SyncConfig()))
        assert not ranks.shares_rows
        assert not ranks.is_recoverable(UnavailableError("gone"), 1)
        assert ranks.removes_rows, "rank 0 removes those of the servers"

    def test_a_stop_request_is_for_all_ranks(self) -> None:
        ranks, stopped = Ranks(), list[bool]()
        ranks.join(TrainerConfig(sync=SyncConfig()))
        ranks.request_stop(lambda: stopped.append(True))
        assert ranks.stop_requested, "a single rank stops after this step"
        assert not stopped


class TestFormerNames:
    """They work for one more version."""

    def test_keywords_of_servers_choose_the_strategy_and_warn(self) -> None:
        servers: Any = FakeServers(1)
        with pytest.warns(DeprecationWarning, match=r"Session\(servers=.* use strategy=SingleProcess") as warned:
            Session(ExampleTask(), servers=servers, dense=DenseConfig(prefetch=True))
        assert warned[0].filename == __file__
        with pytest.warns(DeprecationWarning, match=r"Trainer\(servers=.* use strategy=SingleProcess") as warned:
            Trainer(ExampleTask(), TrainerConfig(dense=DenseConfig(prefetch=True)), servers=servers)
        assert warned[0].filename == __file__
        with pytest.warns(DeprecationWarning, match=r"Trainer\(row_servers=.* use strategy=Ranks") as warned:
            trainer = Trainer(ExampleTask(), TrainerConfig(sync=SyncConfig()), row_servers=servers)
        assert warned[0].filename == __file__
        assert not trainer._strategy.shares_rows

    def test_a_strategy_and_servers_together_are_refused(self) -> None:
        servers: Any = FakeServers(1)
        with pytest.raises(InvalidArgumentError, match="servers and strategy are both given"):
            Session(ExampleTask(), servers=servers, strategy=SingleProcess())
        with pytest.raises(ValueError, match="strategy, or one of the deprecated servers and row_servers"):
            Trainer(ExampleTask(), servers=servers, strategy=SingleProcess())

    def test_former_methods_of_a_trainer_call_the_new_ones_and_warn(self) -> None:
        trainer = Trainer(make_task())
        trainer.train(steps=2)
        with (
            pytest.warns(DeprecationWarning, match=r"use inference_session\(\)") as warned,
            trainer.looking() as session,
        ):
            assert session.mode == "predict"
        assert warned[0].filename == __file__
        with pytest.warns(DeprecationWarning, match=r"use release_state\(\)") as warned:
            trainer.forget_state()
        assert warned[0].filename == __file__
        assert (trainer.state, trainer.global_step) == (None, 2)


@pytest.mark.parametrize("strategy", [SingleProcess, "ranks"])
def test_what_is_not_a_strategy_is_refused_by_name(strategy: Any) -> None:
    with pytest.raises(TypeError, match=r"Trainer: strategy must be an object such as Ranks\(\)"):
        Trainer(make_task(), strategy=strategy)
    with pytest.raises(TypeError, match="session: strategy must be an object"):
        Session(make_task(), strategy=strategy)
