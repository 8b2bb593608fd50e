from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from monolith import environment, observe, train
from monolith.testing import ExampleTask
from monolith.train import Estimator, RunConfig, RunnerConfig, local_train


def steps_of(model_dir: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1].split(".")[0]) for path in model_dir.glob("model.ckpt-*.manifest"))


class TestLocalTrain:
    def test_local_train_has_the_upstream_signature(self) -> None:
        found = {name: each.default for name, each in inspect.signature(local_train).parameters.items()}
        assert found == {
            "params": inspect.Parameter.empty,
            "num_ps": 0,
            "model_dir": None,
            "steps": 100,
            "save_checkpoints_steps": 50,
            "profiling": False,
            "enable_embedding_prefetch": True,
            "enable_embedding_postpush": True,
            "remove_model_dir_if_exists": True,
            "only_feature_engineering": False,
        }

    def test_local_train_starts_from_scratch_and_returns_a_trainer_that_can_evaluate(self, tmp_path: Path) -> None:
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "left").write_text("over")
        for _ in range(2):
            trainer = local_train(
                ExampleTask.params(), model_dir=str(tmp_path / "m"), steps=6, save_checkpoints_steps=4
            )
            assert steps_of(tmp_path / "m") == [4, 6]
        assert not (tmp_path / "m" / "left").exists()
        assert trainer.evaluate(steps=1)["global_step"] == 6
        pipeline = trainer.config.pipeline
        assert (pipeline.prefetch, pipeline.postpush) == (1, True)

    @pytest.mark.parametrize("model_dir", ["memory://local-train/m", "file://{tmp_path}/m"])
    def test_a_directory_of_another_file_system_is_removed_too(self, tmp_path: Path, model_dir: str) -> None:
        model_dir = model_dir.format(tmp_path=tmp_path)
        files, folder = fsspec.core.url_to_fs(model_dir)
        files.makedirs(folder)
        files.pipe_file(f"{folder}/left", b"over")
        for _ in range(2):
            trainer = local_train(ExampleTask.params(), model_dir=model_dir, steps=3)
            assert trainer.state is not None
            assert trainer.state.global_step == 3
        assert not files.exists(f"{folder}/left")
        assert files.exists(f"{folder}/model.ckpt-3.manifest")
        files.rm(folder, recursive=True)

    def test_local_train_resumes_when_the_model_dir_is_kept(self, tmp_path: Path) -> None:
        for steps in (3, 6):
            trainer = local_train(
                ExampleTask.params(),
                model_dir=str(tmp_path),
                steps=3,
                remove_model_dir_if_exists=False,
                enable_embedding_prefetch=False,
                enable_embedding_postpush=False,
            )
            assert trainer.state is not None
            assert trainer.state.global_step == steps

    def test_without_a_directory_it_takes_one_of_the_users(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr("getpass.getuser", lambda: "me")
        local_train(ExampleTask.params(), steps=1)
        assert steps_of(tmp_path / "me" / "ExampleTask") == [1]

    def test_profiling_traces_the_first_steps(self, tmp_path: Path) -> None:
        local_train(ExampleTask.params(), model_dir=str(tmp_path), steps=3, profiling=True)
        assert [path.name for path in (tmp_path / "profile").iterdir()] == ["step_0-2.json"]

    def test_what_is_refused_removes_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("")
        with pytest.raises(ValueError, match="num_ps must be at most 1024, got 2000"):
            local_train(ExampleTask.params(), model_dir=str(tmp_path), num_ps=2000)
        assert (tmp_path / "mine").exists()


class TestEstimator:
    def test_the_four_verbs(self, tmp_path: Path) -> None:
        with Estimator(ExampleTask, RunConfig(model_dir=str(tmp_path))) as estimator:
            assert estimator.train(steps=4).global_step == 4
            assert estimator.train(max_steps=6).global_step == 6
            assert estimator.evaluate(steps=1)["examples"] == 32
            first = next(estimator.predict(steps=1))
            path = estimator.export_saved_model()
            batch = ExampleTask().input_fn("predict").make(0)
            with estimator.import_saved_model() as served:
                assert torch.allclose(served.predict(batch).outputs["predictions"], first, atol=1e-3)
                assert path == f"{tmp_path}/exported_models/{served.version.export}"

    def test_a_task_parameters_or_a_class_and_none_of_them_is_changed(self, tmp_path: Path) -> None:
        task, params = ExampleTask(), ExampleTask.params()
        for model in (task, params, ExampleTask):
            runner = RunnerConfig(params_override='{"num_batches": 2}')
            assert Estimator(model, runner).train().global_step == 2
        assert task.p.num_batches == params.num_batches == 20

    def test_a_run_config_reads_ahead_and_pushes_later(self) -> None:
        pipeline = Estimator(ExampleTask).trainer.config.pipeline
        assert (pipeline.prefetch, pipeline.postpush) == (1, True)

    def test_it_begins_with_another_model(self, tmp_path: Path) -> None:
        Estimator(ExampleTask, RunConfig(model_dir=str(tmp_path / "old"))).train(steps=3)
        new = Estimator(ExampleTask, RunConfig(model_dir=str(tmp_path / "new")), warm_start_from=str(tmp_path / "old"))
        assert new.train(steps=1).global_step == 4

    def test_the_name_of_the_job_goes_into_the_metrics_of_its_runs_and_of_no_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MONOLITH_METRIC_PREFIX", "site")
        prefixes: list[str] = []

        class Asking(ExampleTask):
            def model_fn(self, features: Any, mode: Any) -> Any:
                prefixes.append(observe.MetricClient().prefix)
                return super().model_fn(features, mode)

        ranker = Estimator(Asking, RunnerConfig(deep_insight_name="ranker"))
        recall = Estimator(Asking, RunnerConfig(deep_insight_name="recall"))
        for each in (ranker, recall, ranker, Estimator(Asking)):
            each.train(steps=1)
            assert observe.get_metric_prefix() == "site"
            assert environment.get("MONOLITH_METRIC_PREFIX") == "site", "child processes are told nothing of a run"
        assert prefixes == ["site.ranker", "site.recall", "site.ranker", "site"]

    def test_steps_are_counted_under_the_name_of_the_job(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("MONOLITH_METRIC_PREFIX", "counted")
        estimator = Estimator(ExampleTask, RunnerConfig(deep_insight_name="job", model_dir=str(tmp_path)))
        estimator.train(steps=2)
        estimator.train(steps=2)
        named = {reading.name for reading in observe.process_recorder().read() if reading.name.startswith("counted.")}
        assert named
        assert all(name.startswith("counted.job.") and ".job.job." not in name for name in named)

    def test_options_can_change_until_the_first_call(self) -> None:
        estimator = Estimator(ExampleTask)
        estimator.config.checkpoints_max_to_keep = 3
        estimator.train(steps=1)
        with pytest.raises(AttributeError, match="the run has started"):
            estimator.config.checkpoints_max_to_keep = 4
        assert train.get_current_session() is None
