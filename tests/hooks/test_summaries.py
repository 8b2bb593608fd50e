"""Records of a run: what is measured, when, and who gets it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from monolith.errors import UnavailableError
from monolith.hook import Hook, StepContext
from monolith.hooks import MlflowHook, RecordHook, TensorBoardHook, WandbHook, summaries
from monolith.metrics import ExactAUC
from monolith.observe.summaries import SummaryWriter
from monolith.testing import ExampleTask, FakeClock
from monolith.train import Session, Spec


class Kept:
    """A writer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def open(self) -> None:
        self.told.append("open")

    def write(self, step: int, record: Mapping[str, float]) -> None:
        self.told.append((step, dict(record)))

    def close(self) -> None:
        self.told.append("close")

    @property
    def records(self) -> list[tuple[int, dict[str, float]]]:
        return [each for each in self.told if isinstance(each, tuple)]


class Losses(Hook):
    """Keeps the loss of every step, and lets a clock go on."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.losses: list[float] = []
        self._clock = clock

    def after_run(self, context: StepContext) -> None:
        last = context.session.last
        assert last is not None
        assert last.loss is not None
        self.losses.append(float(last.loss))
        if self._clock is not None:
            self._clock.advance(0.5)


def run(*hooks: Hook, batches: int = 20, task: ExampleTask | None = None) -> Session:
    task = ExampleTask() if task is None else task
    task.p.num_batches = batches
    session = Session(task, hooks=hooks)
    with session:
        for batch in task.input_fn("train"):
            session.run(batch)
    return session


def test_a_record_is_written_every_n_steps_and_at_the_end_for_the_rest() -> None:
    kept, losses = Kept(), Losses()
    run(losses, RecordHook(kept, every_steps=8))
    assert [step for step, _ in kept.records] == [8, 16, 20]
    parts = losses.losses[:8], losses.losses[8:16], losses.losses[16:]
    means = [record["loss"] for _, record in kept.records]
    assert means == pytest.approx([sum(part) / len(part) for part in parts], rel=1e-5)
    assert (kept.told[0], kept.told[-1]) == ("open", "close")


def test_no_record_comes_twice_where_the_run_ends_with_one() -> None:
    kept = Kept()
    run(RecordHook(kept, every_steps=10))
    assert [step for step, _ in kept.records] == [10, 20]


def test_a_record_has_metrics_rates_speed_and_table_sizes() -> None:
    clock = FakeClock()
    kept = Kept()
    session = run(Losses(clock), RecordHook(kept, every_steps=10, clock=clock))
    (_, _), (_, last) = kept.records
    emb = session.state.embeddings["emb"]
    assert set(last) == {
        "loss",
        "auc",
        "steps_per_second",
        "examples_per_second",
        "learning_rate/dense",
        "learning_rate/4-adagrad",
        "rows",
        "memory_bytes",
        "table_rows/4-adagrad",
    }
    assert (last["steps_per_second"], last["examples_per_second"]) == (2.0, 64.0)
    assert (last["learning_rate/dense"], last["learning_rate/4-adagrad"]) == (0.001, 0.05)
    assert last["rows"] == last["table_rows/4-adagrad"] == emb.num_rows
    assert last["memory_bytes"] == emb.store.stats().memory_bytes
    assert 0.0 <= last["auc"] <= 1.0


def test_the_time_before_a_session_does_not_count_as_training() -> None:
    clock = FakeClock()
    kept = Kept()
    hook = RecordHook(kept, every_steps=10, clock=clock)
    clock.advance(3600.0)
    run(Losses(clock), hook, batches=10)
    ((_, record),) = kept.records
    assert record["steps_per_second"] == 2.0


def test_metrics_are_those_of_the_last_steps_by_head() -> None:
    class TwoHeads(ExampleTask):
        def model_fn(self, features: Any, mode: Any) -> Spec:
            spec = super().model_fn(features, mode)
            label = features["label"]
            predictions = {"click": spec.predictions, "seconds": 10 * spec.predictions}
            return Spec(spec.loss, predictions, {"click": label, "seconds": 60 * label})

    class Steps(Hook):
        def __init__(self) -> None:
            self.steps: list[Any] = []

        def after_run(self, context: StepContext) -> None:
            self.steps.append(context.session.last)

    kept, steps = Kept(), Steps()
    run(steps, RecordHook(kept, every_steps=40), batches=40, task=TwoHeads())
    recent = steps.steps[-32:]
    auc = ExactAUC()
    for step in recent:
        auc.update(step.predictions["click"], step.label["click"])
    errors = [(step.predictions["seconds"] - step.label["seconds"]).square() for step in recent]
    ((_, record),) = kept.records
    assert record["click_auc"] == pytest.approx(auc.compute(), abs=0.01)  # the one is by bins
    assert record["seconds_mse"] == pytest.approx(float(torch.cat(errors).mean()), rel=1e-5)
    assert "seconds_auc" not in record


def test_several_rates_of_an_optimizer_are_numbered() -> None:
    class TwoRates(ExampleTask):
        def optimizers(self, model: Any) -> Any:
            weight, bias = self.top.weight, self.top.bias
            return torch.optim.SGD([{"params": [weight], "lr": 0.5}, {"params": [bias], "lr": 0.25}])

    kept = Kept()
    run(RecordHook(kept, every_steps=20), task=TwoRates())
    ((_, record),) = kept.records
    assert (record["learning_rate/dense/0"], record["learning_rate/dense/1"]) == (0.5, 0.25)


def test_writers_are_closed_also_by_an_error() -> None:
    class Fail(Hook):
        def after_run(self, context: StepContext) -> None:
            raise ArithmeticError

    kept = Kept()
    with pytest.raises(ArithmeticError):
        run(RecordHook(kept), Fail())
    assert kept.told == ["open", "close"]


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="WandbHook: every_steps must be at least 1, got 0"):
        WandbHook(every_steps=0)


# TensorBoard


def scalars_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_every_record(tmp_path: Path) -> None:
    kept = Kept()
    run(RecordHook(kept, every_steps=8), TensorBoardHook(tmp_path, every_steps=8))
    found = scalars_of(tmp_path)
    assert [step for step, _ in found["loss"]] == [8, 16, 20]
    assert [loss for _, loss in found["loss"]] == pytest.approx([record["loss"] for _, record in kept.records])
    assert found["rows"] == [(step, record["rows"]) for step, record in kept.records]
    assert {"auc", "learning_rate/dense", "memory_bytes"} <= found.keys()


def test_a_run_without_a_step_leaves_no_file(tmp_path: Path) -> None:
    run(TensorBoardHook(tmp_path / "log"), batches=0)
    assert not (tmp_path / "log").exists()


def test_a_file_system_that_fails_ends_the_summaries_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: object, *args: object, **options: object) -> None:
        raise UnavailableError("the disk is gone")

    monkeypatch.setattr(SummaryWriter, "add_summary", fail)
    assert run(TensorBoardHook(tmp_path, every_steps=5)).global_step == 20
    (warning,) = [each for each in caplog.records if each.name == "monolith.hooks.summaries"]
    assert f"no more are written to '{tmp_path}': the disk is gone" in warning.getMessage()


# Trackers, with the real packages and without a network


RUN_WITH_WANDB = """
import wandb
from monolith.hooks import WandbHook
from monolith.testing import ExampleTask
from monolith.train import Trainer
Trainer(ExampleTask(), hooks=[WandbHook(project="ranker", name="first", every_steps=10)]).train()
assert wandb.run is None
"""


@pytest.mark.slow
def test_wandb_gets_the_records_and_its_run_is_finished(tmp_path: Path) -> None:
    variables = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true", "TMPDIR": str(tmp_path)}
    subprocess.run(  # the package leaves a process behind that ends with the one that used it
        [sys.executable, "-c", RUN_WITH_WANDB],
        check=True,
        timeout=300,
        env=os.environ | variables,  # noqa: TID251 - a child's is its parent's
    )
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    data = b"".join(path.read_bytes() for path in folder.glob("*.wandb"))
    assert b"learning_rate/dense" in data
    assert b"ranker" in data


class FakeRun:
    """What is used of a run of Weights & Biases."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.is_finished = False

    def log(self, record: dict[str, float], step: int) -> None:
        self.logged.append((step, record))

    def finish(self) -> None:
        self.is_finished = True


def test_wandb_continues_an_active_run_and_keeps_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    active = FakeRun()
    monkeypatch.setattr(wandb, "run", active)
    kept = Kept()
    run(RecordHook(kept, every_steps=10), WandbHook(every_steps=10))
    assert not active.is_finished
    assert [step for step, _ in active.logged] == [10, 20]
    assert [record["loss"] for _, record in active.logged] == [record["loss"] for _, record in kept.records]


@pytest.fixture
def local_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield mlflow
    mlflow.set_tracking_uri("")


@pytest.mark.filterwarnings("ignore")  # of the package itself
def test_mlflow_gets_the_records_and_its_run_is_ended(local_mlflow: Any) -> None:
    kept = Kept()
    run(RecordHook(kept, every_steps=10), MlflowHook(run_name="first", every_steps=10))
    assert mlflow.active_run() is None
    client = mlflow.MlflowClient()
    (found,) = client.search_runs(["0"])
    assert found.info.run_name == "first"
    assert found.info.status == "FINISHED"
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [(each.step, each.value) for each in history] == [(step, record["loss"]) for step, record in kept.records]
    assert "table_rows/4-adagrad" in found.data.metrics


@pytest.mark.filterwarnings("ignore")  # of the package itself
def test_mlflow_continues_an_active_run_and_keeps_it_open(local_mlflow: Any) -> None:
    with mlflow.start_run() as active:
        run(MlflowHook(every_steps=10))
        assert mlflow.active_run() is not None
    assert "loss" in mlflow.MlflowClient().get_run(active.info.run_id).data.metrics


@pytest.mark.parametrize(("hook", "package"), [(WandbHook, "wandb"), (MlflowHook, "mlflow")])
def test_a_tracker_is_imported_when_a_run_begins_and_its_absence_reported(
    hook: type[WandbHook | MlflowHook], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    made = hook()  # nothing is imported yet
    with pytest.raises(ModuleNotFoundError, match=rf"{hook.__name__} needs {package}.*monolith-torch\[{package}\]'"):
        run(made)
    assert package not in vars(summaries)
