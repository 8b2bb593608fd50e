from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from monolith.cluster import get_discovery
from monolith.cluster.discovery import ServiceDiscoveryType
from monolith.train import (
    CpuTrainingConfig,
    DistributedCpuTrainingConfig,
    Origin,
    RunConfig,
    RunnerConfig,
    trainer_config_of,
)
from monolith.train.compat.refusal import require_one_process


class TestNames:
    def test_the_classes_have_the_options_and_flags_of_upstream_and_some_of_our_own(self) -> None:
        # Flags of upstream, options of ours, and the options of upstream by class.
        counts = [
            len(options.option_names()) for options in (CpuTrainingConfig, DistributedCpuTrainingConfig, RunnerConfig)
        ]
        assert counts == [2 + 11 + 72, 2 + 16 + 72 + 14, 2 + 18 + 72 + 14 + 39]

    @pytest.mark.parametrize(
        ("name", "default"),
        [
            ("filter_capacity", 300_000_000),
            ("filter_type", "sliding_hash_filter"),
            ("use_native_multi_hash_table", None),
            ("merge_sync_training_ckpt", True),
            ("chief_timeout_secs", 1800),
            ("profile_save_steps_interval", 5000),
            ("checkpoints_max_to_keep", 10),
            ("log_step_count_steps", 100),
            ("operation_timeout_in_ms", -1),
            ("session_creation_timeout_secs", 7200),
            ("intra_op_parallelism_threads", 8),
            ("discovery_type", ServiceDiscoveryType.CONSUL),
            ("zk_watch_address_family", "ipv4"),
            ("sort_id", True),
            ("disable_native_metrics", True),
        ],
    )
    def test_defaults(self, name: str, default: Any) -> None:
        assert getattr(RunnerConfig(), name) == default

    def test_unknown_options_are_refused_with_what_was_meant(self) -> None:
        with pytest.raises(TypeError, match=r"unknown option 'modeldir'; did you mean 'model_dir'\?"):
            RunnerConfig(modeldir="x")  # type: ignore[call-arg]
        config = RunnerConfig()
        with pytest.raises(TypeError, match="did you mean 'num_workers'"):
            config.num_worker = 3
        with pytest.raises(TypeError, match=r"unknown option 'zzz'$"):
            config.update({"zzz": 1}, Origin.FLAG)

    @pytest.mark.parametrize(
        ("name", "value"),
        [("index", "1"), ("index", True), ("index", 1.0), ("index", None), ("sort_id", 1), ("model_dir", None)],
    )
    def test_values_of_another_kind_are_refused(self, name: str, value: Any) -> None:
        with pytest.raises(TypeError, match=f"RunnerConfig: {name} must be "):
            RunnerConfig(**{name: value})
        with pytest.raises(TypeError, match=f"RunnerConfig: {name} must be "):
            setattr(RunnerConfig(), name, value)

    def test_contradictions_are_refused(self) -> None:
        with pytest.raises(ValueError, match="save_checkpoints_secs and save_checkpoints_steps contradict"):
            CpuTrainingConfig(save_checkpoints_secs=1, save_checkpoints_steps=1)
        with pytest.raises(ValueError, match="dense_only_save_checkpoints_secs and"):
            CpuTrainingConfig(dense_only_save_checkpoints_secs=1, dense_only_save_checkpoints_steps=1)

    def test_full_synchronous_training_is_derived(self) -> None:
        assert CpuTrainingConfig(enable_sync_training=True).enable_full_sync_training
        assert not CpuTrainingConfig(
            enable_sync_training=True, enable_partial_sync_training=True
        ).enable_full_sync_training


class TestPrecedence:
    def test_code_before_flag_before_environment_before_file_before_default(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "run.toml"
        file.write_text("index = 1\nnum_workers = 9\nmodel_name = 'file'\ncluster_type = 'k8s'\n")
        monkeypatch.setenv("MONOLITH_INDEX", "2")
        monkeypatch.setenv("MONOLITH_NUM_WORKERS", "8")
        monkeypatch.setenv("MONOLITH_MODEL_NAME", "environment")
        config = RunnerConfig(index=4)
        config.update({"index": "3", "num_workers": "7"}, Origin.FLAG)
        config.update_from_environment().update_from_file(str(file))
        found = [(name, getattr(config, name), str(config.origin(name))) for name in ("index", "num_workers")]
        assert found == [("index", 4, "code"), ("num_workers", 7, "flag")]
        assert (config.model_name, str(config.origin("model_name"))) == ("environment", "environment")
        assert (config.cluster_type, str(config.origin("cluster_type"))) == ("k8s", "file")
        assert str(config.origin("model_dir")) == "default"

    def test_the_order_of_the_calls_does_not_matter(self) -> None:
        config = RunnerConfig().update({"index": 1}, Origin.FLAG).update({"index": 2}, Origin.FILE)
        assert config.index == 1
        assert RunnerConfig().update({"index": 2}, Origin.FILE).update({"index": 1}, Origin.FLAG).index == 1

    def test_a_value_set_in_code_wins_even_if_it_is_the_default(self) -> None:
        assert RunnerConfig(index=0).update({"index": 5}, Origin.FLAG).index == 0

    def test_json_files_are_read_too(self, tmp_path: Path) -> None:
        file = tmp_path / "run.json"
        file.write_text('{"reload_alias_map": {"a": "b"}}')
        assert RunnerConfig().update_from_file(str(file)).reload_alias_map == {"a": "b"}

    @pytest.mark.parametrize(("name", "text"), [("a.toml", "index = "), ("a.json", "[1]"), ("none.toml", None)])
    def test_files_that_cannot_be_read_are_named(self, tmp_path: Path, name: str, text: str | None) -> None:
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=f"config file '.*{name}'"):
            RunnerConfig().update_from_file(str(tmp_path / name))

    @pytest.mark.parametrize(
        ("name", "text", "value"),
        [
            ("index", "3", 3),
            ("sort_id", "false", False),
            ("kafka_dump", "on", True),
            ("monolith_grpc_worker_service_handler_multiplier", "0.5", 0.5),
            ("discovery_type", "zk", ServiceDiscoveryType.ZK),
            ("reload_alias_map", '{"a": "b"}', {"a": "b"}),
            ("restore_ckpt", "None", None),
            ("restore_ckpt", "model.ckpt-3", "model.ckpt-3"),
        ],
    )
    def test_texts_become_what_the_option_is(self, name: str, text: str, value: Any) -> None:
        assert getattr(RunnerConfig().update({name: text}, Origin.FLAG), name) == value

    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            ("index", "three", "index must be an integer, got 'three'"),
            ("sort_id", "maybe", "sort_id must be true or false, got 'maybe'"),
            ("discovery_type", "dns", "discovery_type must be one of primus, consul, zk, mlp, host, ray, got 'dns'"),
            ("reload_alias_map", "{", "reload_alias_map must be JSON"),
        ],
    )
    def test_texts_that_are_none_of_its_values_are_refused(self, name: str, text: str, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            RunnerConfig().update({name: text}, Origin.FLAG)


class TestConfigLifetime:
    def test_it_can_change_until_the_run_starts(self) -> None:
        config = RunnerConfig()
        config.index = 0
        trainer_config_of(config)
        with pytest.raises(dataclasses.FrozenInstanceError, match="index cannot change to 2: the run has started"):
            config.index = 2

    def test_equal_options_are_equal_configs(self) -> None:
        assert RunnerConfig(index=1) == RunnerConfig().update({"index": 1}, Origin.FLAG)
        assert RunnerConfig(index=1) != RunnerConfig()

    def test_the_text_shows_what_was_set(self) -> None:
        assert repr(RunnerConfig(index=1)) == "RunnerConfig(index=1)"

    def test_runner_settings_have_the_identity_and_discovery_of_the_config(self) -> None:
        config = RunnerConfig(is_local=True, uuid="run-7", kafka_topics="a,b")
        settings = config.runner_settings()
        assert (settings.is_local, settings.uuid, settings.kafka_topics) == (True, "run-7", "a,b")
        assert get_discovery(settings) is None


class TestRunConfig:
    def test_what_is_set_overrides_and_what_is_not_does_not(self) -> None:
        runner = RunnerConfig().update({"checkpoints_max_to_keep": 3, "model_dir": "flag"}, Origin.FLAG)
        made = RunConfig(model_dir="code").to_runner_config(runner)
        assert (made.checkpoints_max_to_keep, made.model_dir) == (3, "code")
        assert (made.max_retry_times, made.retry_wait_in_secs) == (0, 30), "its own defaults never take effect"

    @pytest.mark.parametrize("name", RunConfig.option_names())
    def test_a_default_that_is_written_out_changes_nothing(self, name: str) -> None:
        written = RunConfig(**{name: RunConfig.default_of(name)})
        assert trainer_config_of(written.to_runner_config()) == trainer_config_of(RunConfig().to_runner_config())

    @pytest.mark.parametrize(
        ("name", "value"), [("max_retry_times", 5), ("retry_wait_in_secs", 6), ("partial_recovery", True)]
    )
    def test_another_value_for_one_of_its_own_defaults_is_of_a_job(self, name: str, value: Any) -> None:
        made = RunConfig(**{name: value}).to_runner_config()
        assert getattr(made, name) == value
        with pytest.raises(ValueError, match=f"option {name}={value} .* is refused: it is about a job"):
            require_one_process(made)

    def test_the_pipeline_is_on_and_consul_becomes_zookeeper(self) -> None:
        made = RunConfig().to_runner_config()
        assert (made.embedding_prefetch_capacity, made.enable_embedding_postpush) == (1, True)
        assert made.discovery_type is ServiceDiscoveryType.ZK
        deep = RunConfig().to_runner_config(RunnerConfig(embedding_prefetch_capacity=4))
        assert deep.embedding_prefetch_capacity == 4
        gpu = RunConfig().to_runner_config(RunnerConfig(enable_gpu_training=True))
        assert (gpu.embedding_prefetch_capacity, gpu.enable_embedding_postpush) == (0, False)

    def test_parameter_sync_means_realtime_training(self) -> None:
        assert RunConfig(enable_parameter_sync=True).to_runner_config().enable_realtime_training

    def test_local_profiling_traces_the_first_steps(self) -> None:
        assert RunConfig(enable_local_profiling=True).to_runner_config().profile_some_steps_from == 0
