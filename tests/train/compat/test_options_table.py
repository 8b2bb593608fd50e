"""Every option of the original does what its line in the table says and nothing else, or is refused with the reason."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path
from typing import Annotated, Any

import pytest

from monolith.cluster import DiscoveryConfig
from monolith.cluster.discovery import ServiceDiscoveryType
from monolith.train import (
    CpuTrainingConfig,
    MarkerFilesConfig,
    Origin,
    PublishingConfig,
    RunConfig,
    RunnerConfig,
    TrainerConfig,
    trainer_config_of,
)
from monolith.train.compat.effects import Effect, InDiscoveryConfig, Makes, ReadBy, Refused, Sets, effects_of
from monolith.train.compat.flat_config import _kinds_of, flat_config
from monolith.train.compat.refusal import REFUSED_VARIABLES
from monolith.train.parameters import flags
from programs import Programs
from train.compat.evidence import exists

TABLE = effects_of(RunnerConfig)
REFUSED = {name: each for name, effects in TABLE.items() for each in effects if isinstance(each, Refused)}

SHOWN_BY = {
    "task": "tests/train/test_options.py::TestIdentity::test_the_name_of_another_task_is_refused",
    "server_type": "tests/train/test_options.py::TestIdentity::test_a_task_sees_its_place_and_its_name",
    "enable_partial_sync_training": (
        "tests/train/test_partial_sync.py::TestEqual::test_weights_and_rows_are_those_of_one_process_bit_for_bit"
    ),
    "intra_op_parallelism_threads": "tests/train/test_options.py::TestPipeline::test_threads_are_set",
    "inter_op_parallelism_threads": "tests/train/test_options.py::TestPipeline::test_threads_are_set",
    "params_override": "tests/train/test_options.py::TestInput::test_parameters_of_the_task_are_overridden",
    "enable_parameter_sync": (
        "tests/train/compat/test_flat_config.py::TestRunConfig::test_parameter_sync_means_realtime_training"
    ),
    "enable_local_profiling": (
        "tests/train/compat/test_flat_config.py::TestRunConfig::test_local_profiling_traces_the_first_steps"
    ),
}
"""Options that somebody reads who is no config, and the test that shows it."""

TIDE = {"tide_start_hour": 1, "tide_start_minute": 1, "tide_end_hour": 2, "tide_end_minute": 2, "tide_save_secs": 5}
TOGETHER: dict[str, dict[str, Any]] = {
    "filter_equal_probability": {"filter_type": "probabilistic_filter"},
    "continue_training": {"clear_nn": True},
    "restart_input": {"restore_dir": "m"},
    "index": {"num_workers": 5},
    "enable_realtime_training": {"model_dir": "m", "enable_sync_training": True},
    **{
        name: {"model_dir": "m", "enable_realtime_training": True}
        for name in ("delta_log", "delta_log_interval_secs", "delta_log_dense_interval_secs", "delta_log_base_dir")
    },
    "only_feature_engineering": {"model_dir": "m"},
    **{
        name: {"enable_sync_training": True}
        for name in (
            "sync_combine",
            "sync_timeout_secs",
            "merge_sync_training_ckpt",
            "enable_alltoall_metrics",
            "enable_async_optimize",
            "enable_pipelined_fwda2a",
        )
    },
    "enable_alltoall_metrics_for_slot": {"enable_sync_training": True, "enable_alltoall_metrics": True},
    "enable_pipelined_bwda2a": {"enable_sync_training": True, "enable_async_optimize": True},
    "processes_per_gpu": {"enable_gpu_training": True},
    "profile_save_steps_interval": {"profile_some_steps_from": 0},
    **{name: {**TIDE, "save_checkpoints_secs": 9} for name in TIDE},
    "enable_resource_constrained_roughsort": {"model_dir": "m"},
    **{
        name: {"model_dir": "m", "enable_resource_constrained_roughsort": True, "roughsort_candidate_items_path": "p"}
        for name in (
            "roughsort_candidate_items_path",
            "roughsort_items_use_parquet",
            "items_input_lagrangex_header",
            "items_input_has_sort_id",
            "items_input_kafka_dump",
            "items_input_kafka_dump_prefix",
        )
    },
}
"""Options that only mean something beside others."""

NEEDED = {"enable_resource_constrained_roughsort": {"roughsort_candidate_items_path": "p"}}
"""Options that are set together or not at all."""

OTHERS: dict[str, Any] = {
    "server_type": "ps",
    "mode": "eval",
    "filter_type": "no_filter",
    "filter_split_num": 5,
    "zk_watch_address_family": "ipv6",
    "discovery_type": ServiceDiscoveryType.ZK,
    "reload_alias_map": {"a": "b"},
    "use_native_multi_hash_table": False,
    "serve_controller": False,
    "sync_combine": "mean",
    "enable_alias_map_auto_gen": False,
    "device_fn": lambda _: "cpu",
    "operation_timeout_in_ms": 3000,
}
"""Values of options that do not take just any."""


def other_value(name: str) -> Any:
    default = RunnerConfig.default_of(name)
    if name in OTHERS:
        return OTHERS[name]
    kinds = [kind for kind in _kinds_of(RunnerConfig, name) if kind is not type(None)]
    return {bool: not default, int: 3, float: 0.5, str: "something"}[kinds[0]]


def fields_of(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every field of a config and of those inside it, by its dotted name."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        is_section = not prefix and dataclasses.is_dataclass(getattr(TrainerConfig(), field.name, None))
        found |= fields_of(value, f"{field.name}.") if is_section else {f"{prefix}{field.name}": value}
    return found


def changed(before: Any, after: Any) -> set[str]:
    old, new = fields_of(before), fields_of(after)
    return {name for name in old if old[name] != new[name]}


def fields_set_by(effects: tuple[Effect, ...]) -> set[str]:
    return {each.field for each in effects if isinstance(each, Sets | Makes)}


class TestTheTable:
    @pytest.mark.parametrize("name", RunnerConfig.option_names())
    def test_every_option_has_its_line(self, name: str) -> None:
        assert TABLE[name], f"{name} says neither what it sets nor why it is refused"
        assert all(isinstance(each, Effect) for each in TABLE[name])
        assert any(isinstance(each, ReadBy) for each in TABLE[name]) == (name in SHOWN_BY)

    def test_a_base_has_the_lines_of_its_options(self) -> None:
        assert effects_of(CpuTrainingConfig).items() <= TABLE.items()

    def test_what_is_set_is_a_field_of_our_own_configs(self) -> None:
        known = fields_of(TrainerConfig())
        assert {field for effects in TABLE.values() for field in fields_set_by(effects)} <= known.keys()

    def test_every_option_that_identifies_a_runner_is_in_the_discovery_config(self) -> None:
        told = {name for name, effects in TABLE.items() if InDiscoveryConfig() in effects}
        assert told == {field.name for field in dataclasses.fields(DiscoveryConfig)} & TABLE.keys()

    def test_the_short_list_repeats_nothing(self) -> None:
        lines = effects_of(RunConfig)
        own = [name for name in lines if name not in TABLE]
        assert own == ["enable_parameter_sync", "enable_local_profiling"]
        assert all(lines[name] for name in own)
        assert [name for name in lines if name in TABLE and lines[name]] == []
        other = {
            name for name in lines if name in TABLE and RunConfig.default_of(name) != RunnerConfig.default_of(name)
        }
        assert other == {"partial_recovery", "max_retry_times", "retry_wait_in_secs"}

    @pytest.mark.parametrize("name", SHOWN_BY)
    def test_every_option_that_is_read_is_shown_by_a_test(self, name: str) -> None:
        assert exists(SHOWN_BY[name])


class TestEffects:
    """No option is taken without effect, and none has another one than its line says."""

    @pytest.mark.parametrize("name", sorted(TABLE.keys() - REFUSED.keys()))
    def test_an_option_changes_the_fields_of_its_line_only(self, name: str) -> None:
        beside = TOGETHER.get(name, {})
        set_too = {**beside, **NEEDED.get(name, {})}
        before, after = RunnerConfig(**beside), RunnerConfig(**{**set_too, name: other_value(name)})
        settings = changed(before.runner_settings(), after.runner_settings())
        assert settings == ({name} if InDiscoveryConfig() in TABLE[name] else set())
        if name != "server_type":  # any other role is refused
            assert changed(trainer_config_of(before), trainer_config_of(after)) == fields_set_by(TABLE[name])

    @pytest.mark.parametrize("name", sorted(TOGETHER))
    def test_an_option_without_those_that_it_needs_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"\w"):
            trainer_config_of(RunnerConfig(**{name: other_value(name)}))

    def test_a_new_option_is_one_line(self) -> None:
        @flat_config
        class Later(RunnerConfig):
            keep_hours: Annotated[float | None, Sets("saving.keep_every_hours")] = None
            shards: Annotated[int, Refused("there are none")] = 1

        options = flags.parse(Later(), ["--keep_hours", "0.5"])
        assert trainer_config_of(options).saving.keep_every_hours == 0.5
        with pytest.raises(ValueError, match=r"option shards=2 \(from code\) is refused: there are none"):
            trainer_config_of(Later(shards=2))

    def test_realtime_training_sets_all_implied_options_unless_they_are_overridden(self) -> None:
        made = trainer_config_of(RunnerConfig(enable_realtime_training=True, model_dir="m"))
        assert made.publishing == PublishingConfig()
        assert (made.job.partial_recovery, made.job.ends_servers) == (True, False)
        assert made.saving.dense_every_seconds == 1800
        assert made.saving.ignore_errors
        assert made.saving.marker_files is None
        other = trainer_config_of(
            RunnerConfig(
                enable_realtime_training=True,
                model_dir="m",
                partial_recovery=False,
                force_shutdown_ps=True,
                dense_only_save_checkpoints_steps=7,
                delta_log="kafka://broker:9092/topic",
                delta_log_base_dir="bases",
                delta_log_interval_secs=0.1,
                delta_log_dense_interval_secs=5,
            )
        )
        assert (other.job.partial_recovery, other.job.ends_servers) == (False, True)
        assert other.saving.dense_every_seconds is None
        assert other.publishing == PublishingConfig(
            log="kafka://broker:9092/topic", base_folder="bases", interval=0.1, dense_interval=5
        )

    def test_realtime_ranks_save_dense_weights_while_the_marker_file_requests_it(self) -> None:
        ranks = trainer_config_of(RunnerConfig(enable_realtime_training=True, enable_sync_training=True, model_dir="m"))
        files = MarkerFilesConfig(dump_look_steps=None, limit_look_steps=None, online_look_steps=100)
        assert ranks.saving.marker_files == files
        offline = trainer_config_of(RunnerConfig(enable_sync_training=True, model_dir="m"))
        assert (offline.saving.marker_files, offline.saving.ignore_errors) == (None, False)

    def test_a_log_without_training_in_real_time_and_one_without_a_place_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"option delta_log='x' \(from code\) is refused.*enable_realtime"):
            trainer_config_of(RunnerConfig(delta_log="x"))
        with pytest.raises(ValueError, match=r"the delta log is in the model directory: give model_dir"):
            trainer_config_of(RunnerConfig(enable_realtime_training=True))
        with pytest.raises(ValueError, match=r"a log at 'kafka://.*' has no room for bases; give base_folder"):
            PublishingConfig(log="kafka://broker:9092/topic")

    def test_nothing_set_means_the_defaults_of_our_own_configs(self) -> None:
        made = trainer_config_of(RunnerConfig())
        assert dataclasses.replace(made, control=None) == TrainerConfig()


class TestRefused:
    @pytest.mark.parametrize("name", sorted(REFUSED))
    def test_an_option_that_would_do_nothing_is_refused_with_the_reason(self, name: str) -> None:
        value, default = other_value(name), RunnerConfig.default_of(name)
        said = f"option {name}={value!r} (from code) is refused: {REFUSED[name].reason}; leave it at {default!r}"
        with pytest.raises(ValueError, match=re.escape(said)):
            trainer_config_of(RunnerConfig(**{name: value}))
        trainer_config_of(RunnerConfig(**{name: default}))

    @pytest.mark.parametrize("name", sorted(name for name in REFUSED if name in flags.flag_names(RunnerConfig)))
    def test_a_default_that_is_written_out_as_a_flag_is_taken(self, name: str) -> None:
        default = RunnerConfig.default_of(name)
        if default is not None:
            written = flags.parse(RunnerConfig(), [f"--{name}={getattr(default, 'name', default)}"])
            assert written.is_set(name)
            assert trainer_config_of(written) == trainer_config_of(RunnerConfig())

    def test_an_option_that_was_not_set_explicitly_is_not_rejected(self) -> None:
        options = RunnerConfig().update({"discovery_type": ServiceDiscoveryType.ZK}, Origin.DEFAULT)
        trainer_config_of(options)

    def test_an_option_set_to_what_holds_anyway_is_accepted(self) -> None:
        trainer_config_of(RunnerConfig(use_native_multi_hash_table=True))

    @pytest.mark.parametrize("name", sorted(REFUSED_VARIABLES))
    def test_a_variable_that_would_do_nothing_is_refused(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(name, "1")
        with pytest.raises(ValueError, match=f"environment variable {name} is refused: {REFUSED_VARIABLES[name]}"):
            trainer_config_of(RunnerConfig())


class TestThePage:
    def check(self, programs: Programs, project_root: Path, page: Path) -> subprocess.CompletedProcess[str]:
        script = project_root / "scripts" / "update-options-page"
        return programs.run(script, "--check", "--page", str(page), folder=project_root)

    def test_it_is_what_the_tables_give(self, programs: Programs, project_root: Path) -> None:
        result = self.check(programs, project_root, project_root / "docs" / "options.md")
        assert result.returncode == 0, result.stdout + result.stderr

    def test_a_check_shows_the_difference_and_the_command(
        self, programs: Programs, project_root: Path, tmp_path: Path
    ) -> None:
        page = (project_root / "docs" / "options.md").read_text(encoding="utf-8")
        stale = tmp_path / "options.md"
        stale.write_text(page.replace("| `num_ps` | `0` |", "| `num_ps` | `5` |"), encoding="utf-8")
        result = self.check(programs, project_root, stale)
        assert result.returncode == 1
        assert "-| `num_ps` | `5` |" in result.stdout
        assert "scripts/update-options-page" in result.stdout


class TestRanks:
    """Options of synchronous training, which mean something beside others only."""

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("sync_combine", "mean"),
            ("sync_timeout_secs", 5.0),
            ("merge_sync_training_ckpt", False),
            ("enable_alltoall_metrics", True),
            ("enable_alltoall_metrics_for_slot", "user"),
            ("enable_async_optimize", True),
            ("enable_pipelined_fwda2a", True),
        ],
    )
    def test_one_that_needs_ranks_is_refused_without_them(self, name: str, value: Any) -> None:
        said = f"option {name}={value!r} (from code) is refused: it is about the ranks of synchronous training"
        with pytest.raises(ValueError, match=re.escape(said)):
            trainer_config_of(RunnerConfig(**{name: value}))

    def test_a_late_update_needs_one_that_is_put_off(self) -> None:
        options = RunnerConfig(enable_sync_training=True, enable_pipelined_bwda2a=True, enable_embedding_postpush=True)
        with pytest.raises(ValueError, match="enable_pipelined_bwda2a=True needs enable_async_optimize"):
            trainer_config_of(options)

    def test_pipelines_add_up(self) -> None:
        options = RunnerConfig(
            enable_sync_training=True,
            embedding_prefetch_capacity=2,
            enable_pipelined_fwda2a=True,
            enable_async_optimize=True,
            enable_pipelined_bwda2a=True,
        )
        pipeline = trainer_config_of(options).pipeline
        assert (pipeline.prefetch, pipeline.postpush, pipeline.push_delay) == (3, True, 2)

    def test_a_slot_is_counted_only_with_the_other_numbers(self) -> None:
        options = RunnerConfig(enable_sync_training=True, enable_alltoall_metrics_for_slot="user")
        with pytest.raises(ValueError, match="counts nothing without enable_alltoall_metrics; set it"):
            trainer_config_of(options)

    def test_a_sum_or_a_mean(self) -> None:
        with pytest.raises(ValueError, match="combine must be 'sum' or 'mean', got 'max'"):
            trainer_config_of(RunnerConfig(enable_sync_training=True, sync_combine="max"))

    def test_no_controller_is_served(self) -> None:
        with pytest.raises(ValueError, match="serve_controller=True is refused with enable_sync_training"):
            trainer_config_of(RunnerConfig(enable_sync_training=True, serve_controller=True))
