"""Parameters that every task declares: each works, or is refused with the reason that docs/options.md gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from monolith.hooks import ProfilerHook, ThroughputMetricHook
from monolith.testing import ExampleTask
from monolith.train import (
    Estimator,
    ExportMode,
    Params,
    RunConfig,
    RunnerConfig,
    Session,
    Task,
    Trainer,
    TrainerConfig,
    current_context,
    trainer_config_of,
)
from monolith.train._chief_hooks import chief_hooks
from monolith.train.refused_parameters import REFUSED_PARAMETERS

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "options.md").read_text(encoding="utf-8")


def names_of(params: Params, prefix: str = "") -> list[str]:
    found = []
    for name, value in params.iter_params():
        found += names_of(value, f"{prefix}{name}.") if isinstance(value, Params) else [f"{prefix}{name}"]
    return found


def test_the_page_lists_every_parameter_once_with_its_default() -> None:
    rows = re.findall(r"^\| `p\.([a-z_0-9.]+)` \| `([^`]*)` \|", PAGE, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(set(names_of(Task.params())) - {"cls"})
    for name, default in rows:
        value = Task.params().get(name)
        assert default in {
            repr(value),
            value.name if isinstance(value, ExportMode) else "",
            '""' if value == "" else "",
        }


class TestRefused:
    def other(self, default: Any) -> Any:
        if isinstance(default, bool):
            return not default
        if isinstance(default, ExportMode):
            return ExportMode.STANDALONE
        return {int: 7, float: 0.5, str: "something", list: ["uid"]}.get(type(default), "something")

    @pytest.mark.parametrize("name", sorted(REFUSED_PARAMETERS))
    def test_one_that_would_do_nothing_is_refused_with_the_reason(self, name: str) -> None:
        params = ExampleTask.params()
        params.set(**{name: self.other(params.get(name))})
        said = f"task ExampleTask: parameter {re.escape(name)}=.* is refused: {re.escape(REFUSED_PARAMETERS[name])}"
        for task in (params, params.instantiate()):
            with pytest.raises(ValueError, match=said):
                Trainer(task)
        with pytest.raises(ValueError, match=said):
            Estimator(params).train(steps=1)
        with pytest.raises(ValueError, match=said):
            Session(params.instantiate())

    def test_a_value_that_says_what_is_so_anyway_is_taken(self) -> None:
        params = ExampleTask.params()
        params.serving.export_mode = ExportMode.DISTRIBUTED
        params.metrics.extra_fields_keys = []
        assert Trainer(params).train(steps=1).global_step == 1


class TestEffective:
    def test_how_long_training_goes(self) -> None:
        params = ExampleTask.params()
        params.train.set(steps=3, max_steps=4)
        trainer = Trainer(params)
        assert [trainer.train().global_step for _ in range(3)] == [3, 4, 4]

    def test_an_evaluation_of_so_many_batches(self) -> None:
        params = ExampleTask.params()
        params.eval.steps = 2
        trainer = Trainer(params)
        trainer.train(steps=1)
        assert trainer.evaluate()["examples"] == 2 * 32
        assert trainer.evaluate(steps=1)["examples"] == 32

    @pytest.mark.parametrize(("examples", "batches"), [(100, 3), (96, 3), (31, 0)])
    def test_an_evaluation_of_so_many_examples(self, examples: int, batches: int) -> None:
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
        assert trainer.state is not None

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
        with trainer._saver() as saver:  # type: ignore[union-attr]
            kinds = {type(hook) for hook in chief_hooks(trainer.config, saver, model_name="m")}
        assert (ThroughputMetricHook in kinds, ProfilerHook in kinds) == (on, on)

    def test_where_exports_go(self, tmp_path: Path) -> None:
        params = ExampleTask.params()
        params.serving.export_dir_base = "served"
        with Estimator(params, RunConfig(model_dir=str(tmp_path))) as estimator:
            estimator.train(steps=2)
            assert estimator.export_saved_model().startswith(str(tmp_path / "served"))
