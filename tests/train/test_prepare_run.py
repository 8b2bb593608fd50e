"""What comes before a run: flags, the MLP platform, MPI, and what the options tell others."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from monolith.cluster import runner_settings
from monolith.errors import UnimplementedError
from monolith.testing import ExampleTask
from monolith.train import CpuTrainingConfig, Origin, RunnerConfig, make_trainer, prepare_run

PARTIAL_SYNC: dict[str, Any] = {"enable_gpu_training": True, "enable_partial_sync_training": True}


def test_prepare_run_follows_the_upstream_order(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(runner_settings, "mlp_pass", lambda **_: order.append("mlp_pass"))
    monkeypatch.setattr(runner_settings, "add_mpi_exception_hook", lambda: order.append("exception hook"))
    monkeypatch.setattr(runner_settings, "mpi_rank", lambda: order.append("rank"))

    class Flags(dict[str, object]):
        def __setitem__(self, name: str, value: object) -> None:
            order.append(name)
            super().__setitem__(name, value)

    options = RunnerConfig(restore_ckpt="model.ckpt-30", kafka_topics="a", kafka_servers="h:1", **PARTIAL_SYNC)
    prepare_run(options, Flags())
    assert order == ["mlp_pass", "exception hook", "rank", "kafka_topics", "kafka_servers", "restore_ckpt"]


class TestFlags:
    def test_they_fill_options_that_only_have_their_default(self) -> None:
        options = RunnerConfig(model_dir="code")
        prepare_run(options, {"model_dir": "flag", "uuid": "run-7", "index": "3", "verbosity": 2, "zk_server": None})
        assert (options.model_dir, options.uuid, options.index, options.zk_server) == ("code", "run-7", 3, None)
        assert [options.origin(name) for name in ("model_dir", "uuid", "zk_server")] == [
            Origin.CODE,
            Origin.FLAG,
            Origin.DEFAULT,
        ]

    def test_one_that_is_no_value_of_its_option_is_refused_before_anything_is_done(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runner_settings, "mlp_pass", lambda **_: pytest.fail("the platform was asked"))
        with pytest.raises(ValueError, match="index"):
            prepare_run(RunnerConfig(), {"index": "first"})

    def test_kafka_settings_reach_them(self) -> None:
        flags: dict[str, object] = {"kafka_topics": "old", "kafka_servers": "kept"}
        options = RunnerConfig(kafka_topics="a,b", kafka_group_id="g")
        prepare_run(options, flags)
        assert flags == {"kafka_topics": "a,b", "kafka_group_id": "g", "kafka_servers": "kept"}
        assert options.kafka_servers == "kept"

    @pytest.mark.parametrize(
        ("option", "flag", "expected"),
        [("model.ckpt-30", None, "model.ckpt-30"), ("model.ckpt-30", "model.ckpt-20", "model.ckpt-20")],
    )
    def test_the_checkpoint_to_begin_with_reaches_them_unless_they_name_one(
        self, option: str, flag: str | None, expected: str
    ) -> None:
        flags: dict[str, object] = {"restore_ckpt": flag}
        prepare_run(RunnerConfig(restore_ckpt=option), flags)
        assert flags == {"restore_ckpt": expected}

    def test_nothing_that_is_not_set_reaches_them(self) -> None:
        flags: dict[str, object] = {}
        prepare_run(RunnerConfig(), flags)
        prepare_run(RunnerConfig())
        assert flags == {}


class TestIndex:
    @pytest.mark.parametrize(
        ("options", "index"),
        [
            (PARTIAL_SYNC, 5),
            (PARTIAL_SYNC | {"index": 2}, 2),
            (PARTIAL_SYNC | {"server_type": "ps"}, 0),
            ({"enable_gpu_training": True}, 0),
        ],
    )
    def test_a_worker_on_a_gpu_takes_its_rank(
        self, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], index: int
    ) -> None:
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "5")
        config = RunnerConfig(**options)
        prepare_run(config)
        assert config.index == index

    def test_flags_can_ask_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "5")
        config = RunnerConfig()
        prepare_run(config, dict(PARTIAL_SYNC))
        assert config.index == 5


class TestTrainersAreMadePrepared:
    def test_an_exception_ends_an_mpi_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = sys.excepthook
        monkeypatch.setattr(sys, "excepthook", before)
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
        make_trainer(RunnerConfig(), ExampleTask.params())
        hooked = sys.excepthook
        assert hooked is not before
        make_trainer(RunnerConfig(), ExampleTask.params())
        assert sys.excepthook is hooked, "once is enough"

    def test_a_process_of_a_data_service_does_not_train(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"MLP_ROLE": "dispatcher", "MLP_DISPATCHER_NUM": "1"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UnimplementedError, match="MLP role dispatcher"):
            make_trainer(RunnerConfig(), ExampleTask.params())

    def test_a_task_sees_where_its_data_service_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runner_settings, "mlp_pass", lambda **_: "grpc://10.0.0.1:5050")
        trainer = make_trainer(RunnerConfig(kafka_topics="a"), ExampleTask.params())
        assert trainer.config.input.data_service_dispatcher == "grpc://10.0.0.1:5050"
        assert trainer.config.input.kafka_topics == "a"

    def test_invalid_options_are_rejected_before_the_run_waits_for_other_processes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runner_settings, "mlp_pass", lambda **_: pytest.fail("the platform was asked"))
        with pytest.raises(ValueError, match="use_estimator"):
            make_trainer(RunnerConfig(use_estimator=True), ExampleTask.params())

    def test_smaller_configs_have_no_scheduler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runner_settings, "mlp_pass", lambda **_: pytest.fail("the platform was asked"))
        make_trainer(CpuTrainingConfig(), ExampleTask.params())
