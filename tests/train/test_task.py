from __future__ import annotations

import contextvars
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import monolith as ml
from monolith.errors import FailedPreconditionError
from monolith.testing import ExampleTask
from monolith.train import (
    Collections,
    Context,
    ExportMode,
    Params,
    SingleTaskModelParams,
    Task,
    add_to_collections,
    current_context,
    find_task,
    get_collection,
    use_context,
)
from monolith.train.parameters.registry import TaskRegistry


class TestParameters:
    def test_the_documented_defaults(self) -> None:
        p = Task.params()
        assert p.name == "Task"
        assert p.accelerator is None
        assert (p.eval.steps_per_eval, p.train.repeat, p.train.label_key) == (10000, False, "label")
        assert (p.train.max_pending_seconds_for_barrier, p.train.slow_start_steps, p.train.sample_bias) == (30, 0, 0.0)
        assert (p.metrics.deep_insight_target, p.metrics.deep_insight_sample_ratio) == ("ctr_head", 0.01)
        assert p.serving.export_mode is ExportMode.STANDALONE
        assert [mode.value for mode in ExportMode] == [0, 1, 2]
        assert p.serving.export_dir_base == "exported_models"
        assert all(p.train[name] is None for name in ("steps", "max_steps", "save_checkpoints_steps", "file_pattern"))

    def test_two_tasks_share_no_list(self) -> None:
        Task.params().metrics.extra_fields_keys.append("uid")
        assert Task.params().metrics.extra_fields_keys == []

    def test_a_task_needs_a_name(self) -> None:
        p = Task.params()
        p.name = ""
        with pytest.raises(AssertionError, match=r"params\.name"):
            p.instantiate()

    def test_parameters_make_the_task_they_are_of(self) -> None:
        p = ExampleTask.params()
        p.num_batches = 3
        task = p.instantiate()
        assert type(task) is ExampleTask
        assert task.p.num_batches == 3
        assert task.instantiate() is task


class TestModel:
    def test_modules_assigned_in_build_are_the_model(self) -> None:
        assert [name for name, _ in ExampleTask().make_model().named_children()] == ["emb", "top"]

    def test_a_module_that_build_returns_is_the_model(self) -> None:
        layer = nn.Linear(1, 1)

        class Returning(Task):
            def build(self) -> nn.Module:
                return layer

        assert Returning().make_model() is layer

    def test_a_parameter_outside_of_modules_is_refused(self) -> None:
        class Loose(Task):
            def build(self) -> None:
                self.bias = nn.Parameter(torch.zeros(1))

        with pytest.raises(FailedPreconditionError, match="'bias' belongs to no module"):
            Loose().make_model()

    def test_anything_else_is_refused(self) -> None:
        class Wrong(Task):
            def build(self) -> nn.Module:
                return "model"  # type: ignore[return-value]

        with pytest.raises(TypeError, match="expected a Module or nothing, got str"):
            Wrong().make_model()

    def test_what_was_not_written_is_named(self) -> None:
        with pytest.raises(NotImplementedError, match=r"Task: write input_fn"):
            Task().input_fn("train")
        with pytest.raises(NotImplementedError, match=r"Task: write model_fn"):
            Task().model_fn({}, "train")

    def test_a_model_without_weights_has_no_optimizer(self) -> None:
        assert Task().optimizers(nn.ModuleDict()) is None


class TestRegistry:
    @pytest.fixture
    def module(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
        made = types.ModuleType("a_tasks_module")
        made.Ranker = type("Ranker", (ExampleTask,), {"__module__": made.__name__})  # type: ignore[attr-defined]
        made.number = 7  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, made.__name__, made)
        return made

    def test_a_task_is_found_by_module_and_class(self, module: types.ModuleType) -> None:
        assert find_task("a_tasks_module:Ranker").cls is module.Ranker

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("a_tasks_module:Rnker", "has no 'Rnker'; its tasks are Ranker"),
            ("a_tasks_module:number", "'number' is no Task but 7"),
            ("no_such_module:Ranker", "there is no module 'no_such_module'"),
            ("a_tasks_module", "task 'a_tasks_module': expected module:Class, such as my_module:MyTask"),
            ("nothing.here", "not registered; write module:Class"),
            ("a_tasks_module.Ranker", r"not registered; did you mean a_tasks_module:Ranker\?"),
        ],
    )
    def test_find_task_reports_what_is_missing(self, module: types.ModuleType, text: str, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            find_task(text)

    def test_a_misspelt_module_of_this_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "click_ranker.py").touch()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ValueError, match=r"no module 'click_rankr' .*; did you mean 'click_ranker'\?"):
            find_task("click_rankr:Ranker")

    def test_a_registered_name_needs_a_dot(self) -> None:
        with pytest.raises(ValueError, match=r"expected module\.Class, got no dot"):
            TaskRegistry().get_params("Ranker")

    def test_an_import_that_fails_inside_the_module_is_not_hidden(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "broken_tasks.py").write_text("import not_installed_anywhere\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
            find_task("broken_tasks:Ranker")

    def test_names_long_and_short(self) -> None:
        registry = TaskRegistry(__name__)

        class Model(SingleTaskModelParams):
            def task(self) -> Params:
                return ExampleTask.params()

        registry.register(Model)
        assert registry.names() == sorted([f"{Model.__module__}.Model", "Model"])
        assert registry.get_params("Model").cls is ExampleTask
        with pytest.raises(ValueError, match="is registered already"):
            registry.register(Model)
        with pytest.raises(LookupError, match="did you mean"):
            registry.get_params(f"{Model.__module__}.Modell")

    def test_only_model_params_are_registered(self) -> None:
        with pytest.raises(TypeError, match="SingleTaskModelParams"):
            TaskRegistry().register(ExampleTask)  # type: ignore[type-var]


class TestContext:
    def test_outside_of_a_job(self) -> None:
        context = contextvars.Context().run(current_context)
        assert (context.num_ps, context.ps_index, context.num_workers, context.worker_index) == (0, 0, 1, 0)
        assert (context.model_name, context.sync_backend, context.server_type) == ("", None, "")

    def test_it_nests_and_is_put_back(self) -> None:
        before = current_context()
        with use_context(Context(model_name="outer")):
            with use_context(Context(model_name="inner")):
                assert current_context().model_name == "inner"
            assert current_context().model_name == "outer"
        assert current_context() is before


class TestCollections:
    def test_the_published_case(self) -> None:
        collections = Collections()
        for value in (1, 2):
            collections.add("int", value)
        collections.add("str", "str")
        collections.add("bool", True)
        for many in ([1, 2, 3], [4, 5, 6], [], None):
            collections.add("ints", many)
        for texts in (["hello", "world"], []):
            collections.add("strs", texts)
        collections.add("bools", [False])
        last = {name: (collections.get(name) or [None])[-1] for name in ("int", "str", "bool", "ints", "strs", "bools")}
        assert last == {
            "int": 2,
            "str": "str",
            "bool": True,
            "ints": [4, 5, 6],
            "strs": ["hello", "world"],
            "bools": [False],
        }

    @pytest.mark.parametrize("value", [0, 0.0, "", False, torch.zeros(1), torch.zeros(2, 2)])
    def test_numbers_texts_and_tensors_are_kept_whatever_they_are(self, value: object) -> None:
        collections = Collections()
        collections.add("x", value)
        assert collections.get("x") == [value]

    @pytest.mark.parametrize("value", [None, [], {}, ()])
    def test_what_is_empty_is_passed_over(self, value: object, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        collections = Collections()
        collections.add(["x", "y"], value)
        assert collections.get("x") is None
        assert f"value is {value}, skip" in caplog.text

    def test_add_accepts_several_names_and_skips_duplicates(self) -> None:
        collections = Collections()
        collections.add(["a", "b", "a"], 1)
        assert (collections.get("a"), collections.get("b")) == ([1], [1])

    def test_outside_of_a_session_there_are_none(self) -> None:
        with pytest.raises(FailedPreconditionError, match="no session is open"):
            add_to_collections("a", 1)
        with pytest.raises(FailedPreconditionError, match="no session is open"):
            get_collection("a")

    def test_those_of_the_innermost_session_are_used(self) -> None:
        with ml.train.Session(ExampleTask()) as outer, ml.train.Session(ExampleTask()) as inner:
            add_to_collections("losses", 0.5)
            assert get_collection("losses") == [0.5]
            assert (inner.collections.get("losses"), outer.collections.get("losses")) == ([0.5], None)
