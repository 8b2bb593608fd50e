"""Parameters that every task declares: each works, or is refused with the reason that the table gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from monolith.hooks import ProfilerHook, ThroughputMetricHook
from monolith.testing import ExampleTask
from monolith.train import (
    Estimator,
    Params,
    RunConfig,
    RunnerConfig,
    Session,
    SingleProcess,
    Task,
    Trainer,
    TrainerConfig,
    current_context,
    trainer_config_of,
)
from monolith.train._run_hooks import chief_hooks
from monolith.train.compat.effects import ReadBy, Refused, Sets
from monolith.train.compat.task_parameters import FOR_THE_TASK, PARAMETERS
from train.compat.evidence import exists

REFUSED = {each.name: each.effect for each in PARAMETERS if isinstance(each.effect, Refused)}

_HERE = "tests/train/test_task_parameters.py::TestEffective::"
_CLIPPING = "tests/train/test_session.py::TestClipping::"
_EXPORTS = "tests/train/test_export_when_saving.py::test_exports_come_and_go_with_their_checkpoints"
_INTERVALS = (
    "tests/train/test_options.py::TestSaving::test_the_parameters_of_the_task_give_intervals_where_the_options_do_not"
)
SHOWN_BY = {
    "name": "tests/train/test_options.py::TestIdentity::test_a_task_sees_its_place_and_its_name",
    "accelerator": "tests/train/test_sync_alone.py::test_the_accelerator_of_a_task_means_the_same",
    "clip_norm": f"{_CLIPPING}test_one_norm_over_weights_and_rows",
    "sparse_norm_warmup_steps": f"{_CLIPPING}test_the_warm_up_of_the_rows_begins_with_nothing",
    "dense_weight_decay": f"{_CLIPPING}test_decay_comes_after_clipping",
    "input.eval_examples": f"{_HERE}test_eval_examples_sets_the_number_of_examples_of_an_evaluation",
    "eval.per_replica_batch_size": f"{_HERE}test_eval_examples_sets_the_number_of_examples_of_an_evaluation",
    "eval.steps": f"{_HERE}test_eval_steps_sets_the_number_of_batches_of_an_evaluation",
    "train.steps": f"{_HERE}test_how_long_training_goes",
    "train.max_steps": f"{_HERE}test_how_long_training_goes",
    "train.use_gpu_emb_table": ("tests/train/test_gpu_tables.py::TestTheParameter::test_it_puts_the_tables_on_the_gpu"),
    "train.save_checkpoints_steps": _INTERVALS,
    "train.save_checkpoints_secs": _INTERVALS,
    "train.dense_only_save_checkpoints_secs": _INTERVALS,
    "train.dense_only_save_checkpoints_steps": _INTERVALS,
    "metrics.deep_insight_name": f"{_HERE}test_the_name_of_the_model",
    "metrics.enable_tf2_profiler_hook": f"{_HERE}test_speed_and_profiles_can_be_switched_off",
    "serving.export_dir_base": f"{_HERE}test_where_exports_go",
    "serving.export_when_saving": _EXPORTS,
    "serving.export_mode": "tests/train/test_exports_of_jobs.py::test_shards_of_an_export_are_as_many_as_servers",
    "serving.shared_embedding": _EXPORTS,
}
"""Parameters that are read by what runs a task, and the test that shows it."""


def names_of(params: Params, prefix: str = "") -> list[str]:
    found = []
    for name, value in params.iter_params():
        found += names_of(value, f"{prefix}{name}.") if isinstance(value, Params) else [f"{prefix}{name}"]
    return found


class TestTheTable:
    def test_every_task_declares_all_of_it_and_nothing_else(self) -> None:
        declared = Task.params()
        assert names_of(declared) == ["cls", *(each.name for each in PARAMETERS)]
        for each in PARAMETERS:
            assert declared.get(each.name) == each.default
            section, _, name = each.name.rpartition(".")
            assert (declared.get(section) if section else declared).description(name) == each.meaning

    def test_tasks_share_no_value_that_can_change(self) -> None:
        Task.params().metrics.extra_fields_keys.append("uid")
        assert Task.params().metrics.extra_fields_keys == []

    def test_what_is_read_is_shown_by_a_test(self) -> None:
        read = {each.name for each in PARAMETERS if isinstance(each.effect, ReadBy) and each.effect != FOR_THE_TASK}
        assert read == SHOWN_BY.keys()
        assert [name for name in SHOWN_BY if not exists(SHOWN_BY[name])] == []

    def test_what_is_set_is_a_field_of_our_own_configs(self) -> None:
        for each in PARAMETERS:
            if isinstance(each.effect, Sets):
                other = not each.default if isinstance(each.default, bool) else each.default + 1
                params = Task.params().set(**{each.name: other})
                section, _, field = each.effect.field.rpartition(".")
                made = [trainer_config_of(RunnerConfig(), given) for given in (params, Task.params(), Params(), None)]
                found = [getattr(getattr(config, section), field) for config in made]
                assert found == [other, each.default, each.default, each.default]


class TestRefused:
    def other(self, default: Any) -> Any:
        if isinstance(default, bool):
            return not default
        return {int: 7, float: 0.5, str: "something", list: ["uid"]}.get(type(default), "something")

    @pytest.mark.parametrize("name", sorted(REFUSED))
    def test_one_that_would_do_nothing_is_refused_with_the_reason(self, name: str) -> None:
        params = ExampleTask.params()
        params.set(**{name: self.other(params.get(name))})
        default = Task.params().get(name)
        told = re.escape(f"is refused: {REFUSED[name].reason}; leave it at {default!r}")
        said = f"task ExampleTask: parameter {re.escape(name)}=.* {told}"
        for task in (params, params.instantiate()):
            with pytest.raises(ValueError, match=said):
                Trainer(task)
        with pytest.raises(ValueError, match=said):
            Estimator(params).train(steps=1)
        with pytest.raises(ValueError, match=said):
            Session(params.instantiate())

    def test_an_option_set_to_what_holds_anyway_is_accepted(self) -> None:
        params = ExampleTask.params()
        params.metrics.extra_fields_keys = []
        assert Trainer(params).train(steps=1).global_step == 1


class TestEffective:
    def test_how_long_training_goes(self) -> None:
        params = ExampleTask.params()
        params.train.set(steps=3, max_steps=4)
        trainer = Trainer(params)
        assert [trainer.train().global_step for _ in range(3)] == [3, 4, 4]

    def test_eval_steps_sets_the_number_of_batches_of_an_evaluation(self) -> None:
        params = ExampleTask.params()
        params.eval.steps = 2
        trainer = Trainer(params)
        trainer.train(steps=1)
        assert trainer.evaluate()["examples"] == 2 * 32
        assert trainer.evaluate(steps=1)["examples"] == 32

    @pytest.mark.parametrize(("examples", "batches"), [(100, 3), (96, 3), (31, 0)])
    def test_eval_examples_sets_the_number_of_examples_of_an_evaluation(self, examples: int, batches: int) -> None:
        params = ExampleTask.params()
        params.set(**{"input.eval_examples": examples, "eval.per_replica_batch_size": 32})
        trainer = Trainer(params)
        trainer.train(steps=1)
        assert trainer.evaluate().get("examples", 0) == batches * 32
        params.eval.steps = 1
        assert trainer.evaluate()["examples"] == 32, "so many batches are said more directly"

    def test_what_a_task_reads_for_itself(self) -> None:
        given = {
            "input.train_examples": 640,
            "train.per_replica_batch_size": 8,
            "train.file_pattern": "*.rec",
            "train.repeat": True,
            "train.label_key": "label",
            "train.sample_bias": 0.5,
            "eval.per_replica_batch_size": 16,
        }
        seen: dict[str, Any] = {}

        class Reading(ExampleTask):
            def input_fn(self, mode: Any) -> Any:
                seen.update({name: self.p.get(name) for name in given})
                self.p.batch_size = self.p.train.per_replica_batch_size
                return super().input_fn(mode)

        params = Reading.params()
        params.set(**given)
        trainer = Trainer(params)
        trainer.train(steps=1)
        assert seen == given
        assert {each.name for each in PARAMETERS if each.effect == FOR_THE_TASK} <= seen.keys()

    def test_the_name_of_the_model(self) -> None:
        seen = []

        class Asking(ExampleTask):
            def build(self) -> None:
                seen.append(current_context().model_name)
                super().build()

        params = Asking.params()
        Trainer(params).train(steps=1)
        params.metrics.deep_insight_name = "insight"
        Trainer(params).train(steps=1)
        Trainer(params, TrainerConfig(model_name="told")).train(steps=1)
        assert seen == ["Asking", "insight", "told"]

    @pytest.mark.parametrize("on", [True, False])
    def test_speed_and_profiles_can_be_switched_off(self, on: bool, tmp_path: Path) -> None:
        params = ExampleTask.params()
        params.metrics.set(enable_throughput_hook=on, enable_tf2_profiler_hook=on)
        options = RunnerConfig(model_dir=str(tmp_path), profile_some_steps_from=1)
        trainer = Trainer(params, trainer_config_of(options, params))
        strategy = SingleProcess()
        strategy.join(trainer.config)
        with strategy.open_saver() as saver:  # type: ignore[union-attr]
            kinds = {type(hook) for hook in chief_hooks(trainer.config, saver, strategy, model_name="m")}
        assert (ThroughputMetricHook in kinds, ProfilerHook in kinds) == (on, on)

    def test_where_exports_go(self, tmp_path: Path) -> None:
        params = ExampleTask.params()
        params.serving.export_dir_base = "served"
        with Estimator(params, RunConfig(model_dir=str(tmp_path))) as estimator:
            estimator.train(steps=2)
            assert estimator.export_saved_model().startswith(str(tmp_path / "served"))
