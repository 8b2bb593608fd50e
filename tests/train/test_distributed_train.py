"""`distributed_train`: what the processes of a job do together, from the first look for others to the last save."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from contracts.store_contents import changes_of
from hooks.day_by_day import ITEMS_OF_A_DAY, DayByDay
from monolith import environment
from monolith.checkpoint import SaveProtocol, get_checkpoint_state
from monolith.cluster.discovery import HostServiceDiscovery
from monolith.errors import (
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
)
from monolith.hook import Hook
from monolith.ps.places import stop_servers
from monolith.serving import DiscoverySyncBackend
from monolith.testing import ExampleTask
from monolith.train import JobConfig, RunnerConfig, Trainer, TrainerConfig, distributed_train
from monolith.train.roles import server_watch
from monolith.train.roles import worker as _worker_role
from monolith.train.strategies.servers import ParameterServers
from train.job_threads import ThreadJob
from train.shared_clicks import SharedClicks

if TYPE_CHECKING:
    from pathlib import Path

    from monolith.hook import HookedSession, StepContext
    from monolith.train import Params


def params(num_batches: int = 20) -> Params:
    made = ExampleTask.params()
    made.num_batches = num_batches
    return made


def rows_of(store: Any) -> Any:
    with store.cut() as cut:
        return changes_of(cut.blocks(range(1024), state=True)).rows


def last_step(model_dir: Path) -> int:
    state = get_checkpoint_state(str(model_dir))
    assert state is not None
    return int(state.model_checkpoint_path.rpartition("-")[2])


class Trains(Hook):
    """Says that a step was made."""

    def __init__(self, trains: threading.Event) -> None:
        self._trains = trains

    def after_run(self, context: StepContext) -> None:
        self._trains.set()


class DayTogether(Hook):
    """Lets workers make their steps at the same time, as live traffic does."""

    def __init__(self, together: threading.Barrier) -> None:
        self._together = together

    def after_run(self, context: StepContext) -> None:
        self._together.wait()


class TestTogether:
    def test_the_last_checkpoint_holds_the_steps_of_all_workers(self, tmp_path: Path) -> None:
        trainers = ThreadJob(tmp_path, num_ps=2, num_workers=3, params=params).run()
        assert len(trainers) == 3
        intervals = {
            (each.config.reporting.log_every_steps, each.config.reporting.summary_every_steps) for each in trainers
        }
        assert intervals == {(300, 300)}  # 100 steps of each of three workers
        assert last_step(tmp_path) == 20  # which they share
        found = trainers[0].evaluate(steps=2)
        assert found["global_step"] == 20
        assert found["examples"] == 64

    def test_servers_remove_rows_that_have_expired(self, tmp_path: Path) -> None:
        job = ThreadJob(tmp_path, num_ps=2, num_workers=2, params=DayByDay.params)
        together = threading.Barrier(2, timeout=60)
        for index in range(2):
            job.start("worker", index, hooks=[DayTogether(together)])
        for index in range(2):
            job.start("ps", index)
        chief, _ = job.result("worker", 0), job.result("worker", 1)
        assert chief is not None
        removed = chief.history.expired_rows
        chief.evaluate(steps=1)
        assert chief.state is not None
        (emb,) = chief.state.embeddings.values()
        days = {key // ITEMS_OF_A_DAY for key in emb.vectors("item").ids.tolist()}
        # Items live for a day and updates are a day apart, so that those of two days are there, whoever trained them.
        assert {19} <= days <= {18, 19}
        batches = [dict(DayByDay().input_fn("train").make(day)) for day in range(20)]
        trained = {(name, key) for each in batches for name in ("user", "item") for key in each[name].tolist()}
        assert removed >= len(trained) - emb.num_rows > 0

    def test_steps_are_counted_for_all_and_end_the_job(self, tmp_path: Path) -> None:
        job = ThreadJob(tmp_path, num_workers=2, params=lambda: params(10_000), settings={"max_steps": 50})
        job.run()
        assert 50 <= last_step(tmp_path) <= 54

    def test_one_worker_equals_one_process_bit_for_bit(self, tmp_path: Path) -> None:
        alone = Trainer(ExampleTask(), TrainerConfig(model_dir=str(tmp_path / "alone"), deterministic=True))
        alone.train()
        job = ThreadJob(tmp_path / "job", num_ps=2, params=params, settings={"deterministic": True})
        (trainer,) = job.run()
        for each in (alone, trainer):
            each.evaluate(steps=1)
        (expected,), (found,) = (list(each.state.stores.values()) for each in (alone, trainer))  # type: ignore[union-attr]
        assert rows_of(found) == rows_of(expected)
        weights, others = (dict(each.state.model.top.named_parameters()) for each in (alone, trainer))  # type: ignore[union-attr]
        assert all(others[name].equal(value) for name, value in weights.items())

    def test_a_job_resumes_from_its_model_directory(self, tmp_path: Path) -> None:
        ThreadJob(tmp_path, num_ps=2, num_workers=2, params=lambda: params(10)).run()
        ThreadJob(tmp_path, num_ps=3, num_workers=2, params=lambda: params(15)).run()
        assert last_step(tmp_path) == 15

    def test_batches_split_by_the_number_of_workers_do_not_resume_with_another_number(self, tmp_path: Path) -> None:
        ThreadJob(tmp_path, num_workers=2, params=SharedClicks.params, settings={"max_steps": 4}).run()
        job = ThreadJob(tmp_path, num_workers=1, params=SharedClicks.params)
        job.start_all()
        with pytest.raises(
            InvalidArgumentError, match=r"checkpoint is of 2 workers.* now there are 1.*current_context"
        ):
            job.result("worker", 0)
        assert job.result("ps", 0) is None  # the chief has told it to stop


class StepsBeside(Hook):
    """Tells that a step was made while something is going on."""

    def __init__(self, going_on: threading.Event) -> None:
        self._going_on = going_on
        self.stepped = threading.Event()

    def after_run(self, context: StepContext) -> None:
        if self._going_on.is_set():
            self.stepped.set()


class TestSaves:
    def test_workers_continue_while_a_save_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        writing, write, went_on = threading.Event(), SaveProtocol.write, list[bool]()
        beside = [StepsBeside(writing), StepsBeside(writing)]

        def held(protocol: SaveProtocol, *arguments: Any, **options: Any) -> Any:
            if not went_on:
                writing.set()
                went_on.extend(each.stepped.wait(60) for each in beside)
            return write(protocol, *arguments, **options)

        monkeypatch.setattr(SaveProtocol, "write", held)
        job = ThreadJob(
            tmp_path,
            num_workers=2,
            params=lambda: params(10_000),
            options={"save_checkpoints_steps": 10},
            settings={"max_steps": 200},
        )
        for index, hook in enumerate(beside):
            job.start("worker", index, hooks=[hook])
        job.start("ps", 0)
        for index in (0, 1):
            job.result("worker", index)
        assert went_on == [True, True]


class Seen(Hook):
    """Remembers what code of a task finds around it."""

    def __init__(self) -> None:
        self.tf_configs: list[Any] = []

    def after_create_session(self, session: HookedSession) -> None:
        self.tf_configs.append(json.loads(environment.get("TF_CONFIG") or ""))


class StopJob(Hook):
    """Lets a worker stop once all have begun."""

    def __init__(self, at: threading.Barrier) -> None:
        self._at = at
        self._is_first = True

    def after_run(self, context: StepContext) -> None:
        if self._is_first:
            self._is_first = False
            self._at.wait(120)
            if context.session.model_dir is not None:  # type: ignore[attr-defined]
                context.request_stop()


class TestSurroundings:
    def test_tf_config_exists_during_training_and_not_after(self, tmp_path: Path) -> None:
        seen = Seen()
        job = ThreadJob(tmp_path, num_ps=2, params=params)
        job.run([seen])
        (told,) = seen.tf_configs
        assert len(told["cluster"]["ps"]) == 2
        assert told["task"] == {"type": "chief", "index": 0}
        assert environment.get("TF_CONFIG") is None

    def test_workers_that_stop_early_are_in_the_last_checkpoint(self, tmp_path: Path) -> None:
        all_there = threading.Barrier(2)
        job = ThreadJob(tmp_path, num_workers=2, params=lambda: params(10_000))
        job.start("worker", 0, hooks=[StopJob(all_there)])
        job.start("worker", 1, hooks=[StopJob(all_there)])
        job.start("ps", 0)
        job.result("worker", 1)
        job.result("worker", 0)
        assert last_step(tmp_path) >= 2

    def test_a_worker_without_the_token_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "good").write_text("secret")
        (tmp_path / "bad").write_text("another")
        job = ThreadJob(tmp_path / "m", params=params)
        server = job.start("ps", 0, token_file=str(tmp_path / "good"))
        worker = job.start("worker", 0, token_file=str(tmp_path / "bad"))
        with pytest.raises(OpError, match="token"):
            worker.result(120)
        assert not server.done()
        job.start("worker", 0, token_file=str(tmp_path / "good")).result(120)
        server.result(120)

    @pytest.mark.slow
    def test_a_second_chief_is_refused_while_the_first_one_lives(self, tmp_path: Path) -> None:
        begun, may_end = threading.Event(), threading.Event()

        class Hold(Hook):
            def after_run(self, context: StepContext) -> None:
                begun.set()
                may_end.wait(120)
                context.request_stop()

        job = ThreadJob(tmp_path, params=params)
        job.start("ps", 0)
        first = job.start("worker", 0, hooks=[Hold()])
        assert begun.wait(120)
        second = job.start("worker", 0)
        with pytest.raises(AlreadyExistsError, match=r"worker 0 is the process at 127\.0\.0\.1"):
            second.result(120)
        may_end.set()
        first.result(120)

    def test_workers_started_for_another_number_are_refused(self, tmp_path: Path) -> None:
        begun, may_end = threading.Event(), threading.Event()

        class Hold(Hook):
            def after_create_session(self, session: HookedSession) -> None:
                begun.set()
                may_end.wait(120)
                session.request_stop()

        job = ThreadJob(tmp_path, num_workers=1, params=params)
        job.start("ps", 0)
        first = job.start("worker", 0, hooks=[Hold()])
        assert begun.wait(120)
        with pytest.raises(FailedPreconditionError, match="was started for 3 workers"):
            job.start("worker", 1, num_workers=3).result(120)
        may_end.set()
        first.result(120)


class TestPatience:
    @pytest.mark.slow
    def test_a_worker_without_its_servers_ends_soon_after_a_stop_request(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server_watch, "GIVE_UP_SECONDS", 0.5)
        parts: list[ParameterServers] = []

        class Parts(ParameterServers):
            def __init__(self, *arguments: Any, **more: Any) -> None:
                super().__init__(*arguments, **more)
                parts.append(self)

        monkeypatch.setattr(_worker_role, "ParameterServers", Parts)
        trains = [threading.Event(), threading.Event()]
        job = ThreadJob(tmp_path, num_ps=2, num_workers=2, params=lambda: params(10_000))
        for index in (0, 1):
            job.start("worker", index, hooks=[Trains(trains[index])])
            job.start("ps", index)
        assert all(each.wait(60) for each in trains)
        assert not stop_servers(list(job.discovery.query("ps").values()))
        for index in (0, 1):
            job.roles["ps", index].result(60)
        for part in parts:
            part.stop_job()
        for index in (0, 1):
            with pytest.raises(
                CancelledError, match="stopped without a last save, because a parameter server is unavailable"
            ):
                job.roles["worker", index].result(60)

    @pytest.mark.slow
    def test_servers_that_never_come_are_waited_for_so_long(self, tmp_path: Path) -> None:
        job = ThreadJob(tmp_path, params=params, options={"session_creation_timeout_secs": 1})
        with pytest.raises(DeadlineExceededError, match="found 0 of 1 ps"):
            job.start("worker", 0).result(120)

    @pytest.mark.slow
    def test_a_chief_that_never_comes_is_waited_for_so_long(self, tmp_path: Path) -> None:
        job = ThreadJob(tmp_path, num_workers=2, params=params, options={"session_creation_timeout_secs": 1})
        job.start("ps", 0)
        with pytest.raises(DeadlineExceededError, match="worker"):
            job.start("worker", 1).result(120)
        job.start("worker", 0, num_workers=1).result(120)  # which ends the server


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"model_dir": ""}, "model_dir must name the folder of checkpoints"),
            ({"num_ps": 0}, "num_ps must be >= 1"),
            ({"num_workers": 0}, "num_workers must be >= 1"),
            ({"restart_input": True, "restore_dir": "x"}, "restart_input.* is for a run of one process"),
            ({"server_type": "dispatcher"}, "server_type must be ps or worker, got 'dispatcher'"),
            ({"index": 1}, "index of a worker must be from 0 to 0, got 1"),
            ({"server_type": "ps", "index": 3}, "index of a ps must be from 0 to 0, got 3"),
        ],
    )
    def test_a_role_that_cannot_be(self, options: dict[str, Any], said: str, tmp_path: Path) -> None:
        config = RunnerConfig(**{"model_dir": str(tmp_path), "num_ps": 1, **options})
        with pytest.raises(ValueError, match=said):
            distributed_train(config, HostServiceDiscovery(str(tmp_path / "d")), params())

    def test_a_sync_backend_where_nothing_is_published(self, tmp_path: Path) -> None:
        config = RunnerConfig(model_dir=str(tmp_path), num_ps=1)
        with HostServiceDiscovery(str(tmp_path / "d")) as discovery:
            backend = DiscoverySyncBackend(discovery, str(tmp_path / "log"), "m", 1)
            with pytest.raises(ValueError, match="pushes what the run publishes, and it publishes nothing"):
                distributed_train(config, discovery, params(), sync_backend=backend)


def test_how_often_another_cluster_is_taken() -> None:
    assert JobConfig().most_retries == 0
    assert JobConfig(partial_recovery=True).most_retries == 6
    assert JobConfig(partial_recovery=True, max_retry_times=2).most_retries == 2


def test_servers_that_outlive_a_job() -> None:
    assert JobConfig().ends_servers
    assert not JobConfig(keep_servers=True).ends_servers
    assert JobConfig(keep_servers=True, force_shutdown_ps=True).ends_servers
