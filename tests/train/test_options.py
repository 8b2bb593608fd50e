"""What flat options do to a run; ``compat/test_options_table.py`` shows which fields of our configs each one sets."""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as ml
from monolith.checkpoint import Saver
from monolith.cluster.discovery import HostServiceDiscovery
from monolith.errors import ResourceExhaustedError
from monolith.observe import MetricClient
from monolith.tables.filters import NoFilter, ProbabilisticFilter, SlidingHashFilter
from monolith.testing import ExampleTask, FakeClock
from monolith.train import (
    ControlConfig,
    Estimator,
    ReportingConfig,
    RunConfig,
    RunnerConfig,
    Session,
    Trainer,
    TrainerConfig,
    current_context,
    distributed_sync_train,
    distributed_train,
    trainer_config_of,
)
from monolith.train.compat import conversions
from monolith.train.roles.local_runner import make_trainer
from train.renamed_task import ALIASES, RenamedTask


def steps_of(model_dir: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1].split(".")[0]) for path in model_dir.glob("model.ckpt-*.manifest"))


def trained(tmp_path: Path, steps: int = 6, **options: Any) -> Trainer:
    trainer = make_trainer(RunnerConfig(model_dir=str(tmp_path), **options), ExampleTask.params())
    trainer.train(steps=steps)
    return trainer


class TestContradictions:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"server_type": "ps"}, "a trainer is a worker, got 'ps'"),
            ({"mode": "training"}, "mode must be one of train, eval, infer, predict, got 'training'"),
            ({"filter_type": "bloom"}, "Invalid filter type"),
            ({"filter_type": "no_filter", "filter_capacity": 5}, "filter_capacity needs filter_type=sliding"),
            ({"filter_equal_probability": False}, "needs filter_type=probabilistic_filter"),
            ({"tide_start_hour": 1}, "tide"),
            ({"tide_save_secs": 5}, "belong together"),
            ({"continue_training": True}, "needs clear_nn"),
            ({"restart_input": True}, r"give from_dir \(--restore_dir\) and a new model_dir"),
            ({"restart_input": True, "restore_dir": "x", "enable_sync_training": True}, "for a run of one process"),
            ({"index": 1, "num_workers": 3}, "option index=1 .* is refused: it is about a job of several processes"),
            ({"enable_partial_sync_training": True}, r"start a job \(docs/how-to/torchrun.md\), or leave it at False"),
            ({"feature_evict_every_n_hours": 1, "feature_evict_every_n_steps": 1}, "contradict each other"),
            ({"feature_evict_every_n_steps": -1}, "evict_every_steps must be > 0"),
            ({"params_override": "[]"}, "must be a JSON object"),
            ({"params_override": "{"}, "must be a JSON object"),
            ({"params_override": '{"num_batchez": 1}'}, "did you mean"),
        ],
    )
    def test_they_are_refused(self, options: dict[str, Any], said: str, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=said):
            make_trainer(RunnerConfig(model_dir=str(tmp_path), **options), ExampleTask.params()).train(steps=1)


class TestRealTime:
    def test_a_checkpoint_that_fails_ends_no_run_on_live_traffic_and_every_other_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As an estimator has it, and as the runners have it."""

        def full(*_: Any, **__: Any) -> None:
            raise ResourceExhaustedError("file 'tensors': no space left")

        monkeypatch.setattr(Saver, "save", full)
        live = RunConfig(enable_parameter_sync=True, model_dir=str(tmp_path / "estimator"), save_checkpoints_steps=2)
        estimator = Estimator(ExampleTask.params(), live)
        estimator.train(steps=5)
        assert estimator.trainer.state is not None
        assert estimator.trainer.state.global_step == 5
        assert "no space left" in caplog.text
        runner = trained(tmp_path / "runner", 5, enable_realtime_training=True, save_checkpoints_steps=2)
        assert runner.state is not None
        assert runner.state.global_step == 5
        with pytest.raises(ResourceExhaustedError, match="no space left"):
            trained(tmp_path / "other", 5, save_checkpoints_steps=2)


class TestIdentity:
    @pytest.mark.parametrize("mode", ["eval", "infer", "predict"])
    def test_a_mode_that_does_not_train_trains_and_saves_nothing(self, tmp_path: Path, mode: str) -> None:
        trainer = make_trainer(RunnerConfig(model_dir=str(tmp_path / "m"), mode=mode), ExampleTask.params())
        with pytest.raises(ValueError, match=r"Trainer\.train: mode is '(eval|predict)', and only 'train' trains"):
            trainer.train(steps=1)
        said, hosts = (
            r"mode is '(eval|predict)', and only 'train' trains",
            HostServiceDiscovery(str(tmp_path / "hosts")),
        )
        options = RunnerConfig(model_dir=str(tmp_path / "m"), mode=mode, num_ps=1)
        with pytest.raises(ValueError, match=f"distributed_train: {said}"):
            distributed_train(options, hosts, ExampleTask.params())
        with pytest.raises(ValueError, match=f"distributed_sync_train: {said}"):
            distributed_sync_train(options, ExampleTask.params())
        assert not (tmp_path / "m").exists()

    def test_the_name_of_another_task_is_refused(self, tmp_path: Path) -> None:
        def made(task: str) -> Trainer:
            options = RunnerConfig(model_dir=str(tmp_path / "m"), task=task)
            return make_trainer(options, ExampleTask.params())

        assert type(made("monolith.testing:ExampleTask").task) is ExampleTask
        with pytest.raises(ValueError, match=r"option task='hooks.day_by_day:DayByDay' .* got those of ExampleTask"):
            made("hooks.day_by_day:DayByDay")
        with pytest.raises(ValueError, match="task 'no_such:Task': there is no module"):
            made("no_such:Task")

    def test_a_task_sees_its_place_and_its_name(self) -> None:
        seen: list[Any] = []

        class Asking(ExampleTask):
            def build(self) -> None:
                seen.append(current_context())
                super().build()

        options = RunnerConfig(model_name="served", server_type="worker")
        make_trainer(options, Asking.params()).train(steps=1)
        make_trainer(RunnerConfig(), Asking.params()).train(steps=1)
        Trainer(Asking, TrainerConfig(worker_index=1, num_workers=3)).train(steps=1)
        assert (seen[0].worker_index, seen[0].num_workers, seen[0].model_name) == (0, 1, "served")
        assert (seen[2].worker_index, seen[2].num_workers) == (1, 3)
        assert (seen[0].server_type, seen[1].model_name) == ("worker", "Asking")

    def test_a_worker_that_is_no_chief_saves_nothing(self, tmp_path: Path) -> None:
        config = TrainerConfig(model_dir=str(tmp_path), worker_index=1, num_workers=2)
        Trainer(ExampleTask, config).train(steps=2)
        assert steps_of(tmp_path) == []


class TestTables:
    @pytest.mark.parametrize(
        ("options", "admission"),
        [
            ({}, SlidingHashFilter()),
            ({"filter_capacity": 1000, "filter_split_num": 5}, SlidingHashFilter(capacity=1000, split_num=5)),
            ({"filter_type": "no_filter"}, NoFilter()),
            ({"filter_type": "probabilistic_filter"}, ProbabilisticFilter(equal_probability=True)),
            (
                {"filter_type": "probabilistic_filter", "filter_equal_probability": False},
                ProbabilisticFilter(equal_probability=False),
            ),
        ],
    )
    def test_filters_reach_the_tables(
        self, options: dict[str, Any], admission: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        configs: list[Any] = []

        class Seeing(ExampleTask):
            def build(self) -> None:
                def store(tables: Any) -> Any:
                    configs.extend(tables.values())
                    return ml.tables.LocalStore(tables)

                self.emb = ml.Embeddings({"user": ml.Slot(dim=2, min_count=2), "item": ml.Slot(dim=2)}, store=store)
                self.top = torch.nn.Linear(4, 1)

        make_trainer(RunnerConfig(hashtable_init_capacity=500, **options), Seeing.params()).train(steps=1)
        assert {each.admission for each in configs} == {admission}
        assert {each.initial_capacity for each in configs} == {500}

    @pytest.mark.parametrize("own", [NoFilter(), SlidingHashFilter(capacity=500), None], ids=repr)
    def test_a_task_that_names_its_filter_keeps_it(self, own: Any) -> None:
        configs: list[Any] = []

        class Own(ExampleTask):
            def build(self) -> None:
                def store(tables: Any) -> Any:
                    configs.extend(tables.values())
                    return ml.tables.LocalStore(tables)

                slots = {"user": ml.Slot(dim=4, min_count=3), "item": ml.Slot(dim=4)}
                self.emb = ml.Embeddings(slots, admission=own, store=store)
                self.top = torch.nn.Linear(8, 1)

        make_trainer(RunnerConfig(filter_capacity=1000), Own.params()).train(steps=1)
        assert {each.admission for each in configs} == {own or SlidingHashFilter(capacity=1000)}

    def test_expired_rows_are_dropped_with_each_checkpoint(self, tmp_path: Path) -> None:
        class TwoDays(ExampleTask):
            def input_fn(self, mode: Any) -> Any:
                days: list[dict[str, Any]] = [{**ExampleTask.input_fn(self, mode).make(0)} for _ in range(4)]
                for day in (1, 2, 3):
                    days[day]["req_time"] = days[day]["req_time"] + day * 24 * 3600
                    days[day]["item"] = days[day]["item"] + 100_000
                return days

        for evict in (True, False):
            options = RunnerConfig(
                model_dir=str(tmp_path / str(evict)),
                save_checkpoints_steps=2,
                feature_eviction_on_save=evict,
                feature_evict_every_n_hours=0,
            )
            state = make_trainer(options, TwoDays.params()).train()
            rows = state.embeddings["emb"].num_rows
            columns: Any = ExampleTask().input_fn("train").make(0)
            items, users = (len(set(columns[name].tolist())) for name in ("item", "user"))
            assert rows == users + items * (1 if evict else 2)

    def test_expired_rows_are_evicted_every_n_steps_or_hours(self) -> None:
        config = trainer_config_of(RunnerConfig(feature_evict_every_n_hours=2))
        assert (config.tables.evict_every_seconds, config.tables.evict_every_steps) == (7200, None)
        config = trainer_config_of(RunnerConfig(feature_evict_every_n_steps=50))
        assert (config.tables.evict_every_seconds, config.tables.evict_every_steps) == (None, 50)
        off = trainer_config_of(RunnerConfig(feature_evict_every_n_hours=0)).tables
        assert (off.evict_every_seconds, off.evict_every_steps) == (0, None)
        unsaid = trainer_config_of(RunnerConfig()).tables
        assert (unsaid.evict_every_seconds, unsaid.evict_every_steps) == (None, None)


class TestPipeline:
    def test_prefetch_and_postpush_reach_the_session(self) -> None:
        config = trainer_config_of(RunnerConfig(embedding_prefetch_capacity=3, enable_embedding_postpush=True))
        assert (config.pipeline.prefetch, config.pipeline.postpush) == (3, True)

    def test_threads_are_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[tuple[str, int]] = []
        monkeypatch.setattr(torch, "set_num_threads", lambda n: calls.append(("intra", n)))
        monkeypatch.setattr(torch, "set_num_interop_threads", lambda n: calls.append(("inter", n)))
        make_trainer(RunnerConfig(), ExampleTask.params())
        assert calls == [], "torch decides where nothing was said"
        options = RunnerConfig(intra_op_parallelism_threads=3, inter_op_parallelism_threads=2)
        make_trainer(options, ExampleTask.params())
        assert calls == [("intra", 3), ("inter", 2)]


class TestSaving:
    def test_steps_and_how_many_stay(self, tmp_path: Path) -> None:
        trained(tmp_path, save_checkpoints_steps=2, checkpoints_max_to_keep=2)
        assert steps_of(tmp_path) == [4, 6]

    def test_one_checkpoint_a_day_stays_for_good(self, tmp_path: Path) -> None:
        saving = trainer_config_of(RunnerConfig(save_checkpoints_steps=2, checkpoints_max_to_keep=1)).saving
        assert saving.keep_every_hours == 24
        often = dataclasses.replace(saving, keep_every_hours=1e-9)
        Trainer(ExampleTask, TrainerConfig(model_dir=str(tmp_path / "a"), saving=often)).train(steps=6)
        assert steps_of(tmp_path / "a") == [2, 4, 6]
        Trainer(ExampleTask, TrainerConfig(model_dir=str(tmp_path / "b"), saving=saving)).train(steps=6)
        assert steps_of(tmp_path / "b") == [6]

    def test_seconds(self, tmp_path: Path) -> None:
        config = trainer_config_of(RunnerConfig(save_checkpoints_secs=60))
        assert (config.saving.every_seconds, config.saving.every_steps) == (60, None)

    def test_the_parameters_of_the_task_give_intervals_where_the_options_do_not(self) -> None:
        params = ExampleTask.params()
        params.train.set(save_checkpoints_secs=9, dense_only_save_checkpoints_steps=4)
        saving = trainer_config_of(RunnerConfig(), params).saving
        assert (saving.every_seconds, saving.every_steps, saving.dense_every_steps) == (9, None, 4)
        saving = trainer_config_of(RunnerConfig(save_checkpoints_steps=5), params).saving
        assert (saving.every_seconds, saving.every_steps) == (None, 5)

    def test_checkpoints_without_tables(self, tmp_path: Path) -> None:
        trained(tmp_path, save_checkpoints_steps=4, dense_only_save_checkpoints_steps=2)
        assert steps_of(tmp_path) == [4, 6]
        assert 2 in steps_of(tmp_path / "dense_only")
        assert 4 not in steps_of(tmp_path / "dense_only"), "the full one has it"
        assert not list((tmp_path / "dense_only").glob("*.assets"))
        assert trainer_config_of(RunnerConfig(dense_only_save_checkpoints_secs=3)).saving.dense_every_seconds == 3

    def test_the_tide_changes_the_interval(self) -> None:
        options = RunnerConfig(
            save_checkpoints_secs=1000,
            tide_start_hour=22,
            tide_start_minute=30,
            tide_end_hour=6,
            tide_end_minute=0,
            tide_save_secs=10,
        )
        saving = trainer_config_of(options).saving
        assert saving.tide_every_seconds == 10
        assert saving.tide_window is not None
        assert saving.tide_window.is_open(FakeClock(now=23 * 3600))
        assert not saving.tide_window.is_open(FakeClock(now=22 * 3600))


class TestRestoring:
    def test_another_checkpoint_than_the_latest_once(self, tmp_path: Path) -> None:
        trained(tmp_path, save_checkpoints_steps=2)
        first = trained(tmp_path, steps=1, restore_ckpt="model.ckpt-2")
        assert first.state is not None
        assert first.state.global_step == 3
        second = trained(tmp_path, steps=1, restore_ckpt="model.ckpt-2")
        assert second.state is not None
        assert second.state.global_step == 4, "it is applied once to a directory"

    @pytest.mark.parametrize("folder", ["", "/elsewhere/"])
    def test_a_checkpoint_is_named_with_or_without_a_folder(self, tmp_path: Path, folder: str) -> None:
        trained(tmp_path, save_checkpoints_steps=2)
        state = trained(tmp_path, steps=1, restore_ckpt=f"{folder}model.ckpt-2").state
        assert state is not None
        assert state.global_step == 3

    def test_an_evaluation_reads_the_named_checkpoint_each_time_and_writes_nothing(self, tmp_path: Path) -> None:
        trained(tmp_path, save_checkpoints_steps=2)
        before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.is_file()}
        for _ in range(2):
            options = RunnerConfig(model_dir=str(tmp_path), restore_ckpt="model.ckpt-2")
            assert make_trainer(options, ExampleTask.params()).evaluate(steps=1)["global_step"] == 2
        assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.is_file()} == before

    def test_a_run_alone_waits_for_no_other_worker_to_prepare_the_directory(self, tmp_path: Path) -> None:
        trained(tmp_path / "old")
        options = RunnerConfig(model_dir=str(tmp_path / "new"), is_local=True, restore_dir=str(tmp_path / "old"))
        config = dataclasses.replace(trainer_config_of(options), worker_index=1, num_workers=2)
        assert Trainer(ExampleTask, config).train(steps=1).global_step == 7

    def test_the_checkpoint_of_another_directory(self, tmp_path: Path) -> None:
        trained(tmp_path / "old", save_checkpoints_steps=2)
        state = trained(tmp_path / "new", steps=1, restore_dir=str(tmp_path / "old")).state
        assert state is not None
        assert state.global_step == 7
        assert trained(tmp_path / "new", steps=1, restore_dir=str(tmp_path / "old")).state.global_step == 8  # type: ignore[union-attr]

    def test_the_input_is_read_from_its_beginning_once(self, tmp_path: Path) -> None:
        trained(tmp_path / "old")
        for step, position in ((7, b"1"), (8, b"2")):
            state = trained(tmp_path / "new", steps=1, restore_dir=str(tmp_path / "old"), restart_input=True).state
            assert state is not None
            assert (state.global_step, state.position()) == (step, position)

    def test_a_worker_waits_for_the_chief_to_prepare_the_directory(self, tmp_path: Path) -> None:
        trained(tmp_path / "old")
        options = RunnerConfig(model_dir=str(tmp_path / "new"), restore_dir=str(tmp_path / "old"))

        class Preparing(FakeClock):
            def sleep(self, seconds: float) -> None:
                assert seconds == 30
                trained(tmp_path / "new", steps=0, restore_dir=str(tmp_path / "old"))

        params = ExampleTask.params()
        config = dataclasses.replace(trainer_config_of(options, params), worker_index=1, num_workers=2)
        worker = Trainer(params, config, clock=Preparing())
        assert worker.train(steps=1).global_step == 7

    def test_clear_nn_restarts_the_dense_part_from_scratch(self, tmp_path: Path) -> None:
        trained(tmp_path / "a")
        state = trained(tmp_path / "a", steps=0, clear_nn=True).state
        assert state is not None
        assert state.global_step == 0
        assert state.embeddings["emb"].num_rows > 0
        trained(tmp_path / "b")
        kept = trained(tmp_path / "b", steps=0, clear_nn=True, continue_training=True).state
        assert kept is not None
        assert kept.global_step == 6

    def test_weights_under_new_names(self, tmp_path: Path) -> None:
        before = trained(tmp_path).state
        assert before is not None
        assert before.model is not None
        options = RunnerConfig(model_dir=str(tmp_path), reload_alias_map=ALIASES, enable_alias_map_auto_gen=False)
        trainer = make_trainer(options, RenamedTask.params())
        state = trainer.train(steps=0)
        assert state.model is not None
        assert torch.equal(state.model["head"].weight, before.model["top"].weight)  # type: ignore[index]
        assert not trainer.config.restoring.auto_alias
        assert trainer_config_of(RunnerConfig()).restoring.auto_alias


class TestReporting:
    def test_speed_loss_and_metrics_of_training_are_logged(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        trained(tmp_path / "a", log_step_count_steps=3, disable_native_metrics=False)
        assert len(re.findall(r"step [36], loss \S+, \S+ steps/s", caplog.text)) == 2
        assert len(re.findall(r"step [36]: auc \S+, examples 96, loss", caplog.text)) == 2
        caplog.clear()
        trained(tmp_path / "b")
        assert "auc" not in caplog.text

    def test_an_interval_of_profiles_without_a_profile_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"option profile_save_steps_interval=7 .* set profile_some_steps_from"):
            trainer_config_of(RunnerConfig(profile_save_steps_interval=7))
        with pytest.raises(ValueError, match=r"ReportingConfig: profile_every_steps=7 .* give profile_from"):
            ReportingConfig(profile_every_steps=7)

    def test_some_steps_are_profiled(self, tmp_path: Path) -> None:
        trained(tmp_path, profile_some_steps_from=2, profile_save_steps_interval=100)
        assert [path.name for path in (tmp_path / "profile").iterdir()] == ["step_2-5.json"]

    def test_start_up_is_measured_from_the_submission(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        emitted: list[tuple[str, Any]] = []
        monkeypatch.setattr(
            MetricClient, "emit_timer", lambda self, name, value, tags=None: emitted.append((name, dict(tags or {})))
        )
        trained(tmp_path, submit_time_secs=1, cluster_type="k8s", model_name="served")
        assert ("run_start_elapsed_time.all", {"model_name": "served", "cluster_type": "k8s"}) in emitted


class TestInput:
    def test_a_task_reads_the_input_options_of_the_run(self) -> None:
        given: dict[str, Any] = {
            "data_type": "Example",
            "feature_list": "all",
            "lagrangex_header": True,
            "sort_id": False,
            "kafka_dump": True,
            "kafka_dump_prefix": True,
            "kafka_topics": "a, b",
            "kafka_group_id": "g",
            "kafka_servers": "h:1",
            "input_path": "/data",
            "wildcard": "*.pb",
            "start_date": "20260101",
            "end_date": "20260102",
            "is_hourly": True,
            "start_hour": 3,
            "end_hour": 5,
        }
        seen: list[Any] = []

        class Reading(ExampleTask):
            def input_fn(self, mode: Any) -> Any:
                seen.append(self.ctx.input)
                return super().input_fn(mode)

        make_trainer(RunnerConfig(**given), Reading.params()).train(steps=1)
        assert {name: getattr(seen[0], name) for name in given} == given
        assert seen[0].topics == ["a", "b"]

    def test_parameters_of_the_task_are_overridden(self) -> None:
        options = RunnerConfig(params_override='{"num_batches": 2, "train.max_steps": 9}')
        trainer = make_trainer(options, ExampleTask.params())
        assert (trainer.train().global_step, trainer.task.p.train.max_steps) == (2, 9)


def test_an_exported_state_is_no_training_session(tmp_path: Path) -> None:
    """A saver of one's own can save what a session trained, whatever options it ran with."""
    task = ExampleTask()
    with Session(task) as session, Saver(tmp_path) as saver:
        session.run(task.input_fn("train").make(0))
        assert saver.save(session.state, background=False).step == 1


class TestController:
    def test_it_is_served_unless_it_is_switched_off(self) -> None:
        assert trainer_config_of(RunnerConfig()).control == ControlConfig()
        assert trainer_config_of(RunnerConfig(serve_controller=True)).control == ControlConfig()
        assert trainer_config_of(RunnerConfig(serve_controller=False)).control is None

    def test_a_run_without_grpc_logs_once_that_it_serves_no_controller(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("monolith.train.compat.conversions.find_spec", lambda _: None)
        conversions._say_that_there_is_no_controller.cache_clear()
        trainer_config_of(RunnerConfig(serve_controller=False))
        trainer_config_of(RunnerConfig(mode="eval"))
        assert "controller" not in caplog.text
        for _ in range(2):
            assert trainer_config_of(RunnerConfig()).control is None
        assert caplog.text.count("no controller is served") == 1
        assert "pip install 'monolith-torch[control]'" in caplog.text

    def test_a_requested_controller_needs_grpc(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("monolith.train.compat.conversions.find_spec", lambda _: None)
        with pytest.raises(ValueError, match="option serve_controller=True needs grpcio; run: pip install"):
            trainer_config_of(RunnerConfig(serve_controller=True))
