"""The five tasks of the original's tests of synchronous training, each alone in a process: a run of one rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import monolith as ml
from monolith.tensors import Ragged
from monolith.testing import ExampleTask
from monolith.train import CpuTrainingConfig, RunnerConfig, Spec, Task, Trainer
from monolith.train.roles.local_runner import make_trainer

IDS = Ragged.from_lists([[1, 2, 3, 4]])


class FeatureTask(Task):
    """One slot of dim 5, pooled, and a loss of its output."""

    def build(self) -> None:
        self.emb = ml.Embeddings({"feature": ml.Slot(dim=5)})

    def input_fn(self, mode: Any) -> Iterable[Any]:
        return [{"feature": IDS}] * 5

    def model_fn(self, features: Mapping[str, Any], mode: Any) -> Spec:
        out = self.emb(features)["feature"]
        return Spec(out.sum(), predictions=out)


class EmbeddingUpdateTask(Task):
    """Rows that begin with 0 and learn by Adagrad, beside a dense embedding that does the same."""

    def build(self) -> None:
        adagrad = ml.row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=1.0)
        self.emb = ml.Embeddings({"feature": ml.Slot(dim=5, initializer=ml.initializers.Zeros())}, optimizer=adagrad)
        self.dense = nn.Embedding(5, 5)
        nn.init.zeros_(self.dense.weight)
        self.seen: list[tuple[Tensor, Tensor]] = []

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adagrad([self.dense.weight], lr=0.1, initial_accumulator_value=1.0, eps=0.0)

    def input_fn(self, mode: Any) -> Iterable[Any]:
        return [{"feature": IDS, "step": step} for step in range(10)]

    def model_fn(self, features: Mapping[str, Any], mode: Any) -> Spec:
        out, want = self.emb(features)["feature"], self.dense(torch.arange(1, 5)).sum(0, keepdim=True)
        self.seen.append((out.detach().clone(), want.detach().clone()))
        loss = ((out - features["step"] - 1.0) ** 2).sum() + ((want - features["step"] - 1.0) ** 2).sum()
        return Spec(loss, predictions=out)


class FloatFeatureTask(FeatureTask):
    """A float column beside the ids, which only predictions use."""

    def input_fn(self, mode: Any) -> Iterable[Any]:
        return [{"feature": IDS, "value": torch.tensor([[1.0, 2.0]])}] * 5

    def model_fn(self, features: Mapping[str, Any], mode: Any) -> Spec:
        return Spec(self.emb(features)["feature"].sum(), predictions=features["value"].sum())


class SequenceFeatureTask(FeatureTask):
    """The first two ids of a sequence."""

    def build(self) -> None:
        self.emb = ml.Embeddings({"feature": ml.Slot(dim=5, combiner=ml.nn.FirstN(2))})

    def model_fn(self, features: Mapping[str, Any], mode: Any) -> Spec:
        out = self.emb(features)["feature"]
        assert out.shape == (1, 2, 5)
        return Spec(out.sum(), predictions=features["feature"].values.sum())


class NonFeatureTask(Task):
    """No rows at all, and a train op of its own."""

    def build(self) -> None:
        self.sums = nn.Linear(1, 1).requires_grad_(False)
        nn.init.zeros_(self.sums.weight)

    def input_fn(self, mode: Any) -> Iterable[Any]:
        return [1, 2, 3]

    def model_fn(self, features: Any, mode: Any) -> Spec:
        def train_op() -> None:
            self.sums.weight.add_(features)
            ml.train.get_current_session().state.global_step += 1

        return Spec(torch.tensor(0.1), train_op=train_op)


def trained(task: type[Task], **options: Any) -> tuple[Trainer, Any]:
    trainer = make_trainer(CpuTrainingConfig(enable_sync_training=True, **options), task.params())
    return trainer, trainer.train()


@pytest.mark.parametrize("task", [FeatureTask, FloatFeatureTask, SequenceFeatureTask])
def test_a_task_with_rows_trains_to_the_end_of_its_data(task: type[Task]) -> None:
    _, state = trained(task)
    assert state.global_step == 5
    assert state.stores["emb"].stats().rows == 4


def test_a_task_without_rows_makes_its_own_step() -> None:
    _, state = trained(NonFeatureTask)
    assert state.global_step == 3
    assert float(state.model.state_dict()["sums.weight"]) == 6.0


def test_rows_equal_a_dense_embedding_with_adagrad_for_ten_steps() -> None:
    trainer, state = trained(EmbeddingUpdateTask)
    assert state.global_step == 10
    seen = trainer.task.seen  # type: ignore[attr-defined]
    assert len(seen) == 10
    assert float(seen[-1][0].abs().sum()) > 0
    for out, want in seen:
        torch.testing.assert_close(out, want, rtol=1e-6, atol=1e-6)


def test_the_accelerator_of_a_task_means_the_same() -> None:
    params = FeatureTask.params()
    params.accelerator = "horovod"
    assert make_trainer(CpuTrainingConfig(), params).config.sync is not None
    params.accelerator = "tpu"
    with pytest.raises(ValueError, match="parameter accelerator must be None or 'horovod' for a trainer, got 'tpu'"):
        make_trainer(CpuTrainingConfig(), params)


def test_a_nan_is_refused_before_anything_changes() -> None:
    class Broken(FeatureTask):
        def model_fn(self, features: Mapping[str, Any], mode: Any) -> Spec:
            spec = super().model_fn(features, mode)
            assert spec.loss is not None
            return Spec(spec.loss * float("nan"))

    trainer = make_trainer(CpuTrainingConfig(enable_sync_training=True), Broken.params())
    with pytest.raises(ml.errors.InvalidArgumentError, match="step 1: rank 0 refuses it: its loss is nan"):
        trainer.train()


def test_a_trainer_by_options_takes_its_place_among_the_ranks() -> None:
    options = RunnerConfig(enable_sync_training=True, num_ps=2, is_local=True)
    with pytest.raises(ValueError, match="num_ps must be 0, as ranks keep the rows, got 2"):
        make_trainer(options, ExampleTask.params())
    with pytest.raises(ValueError, match="index must be the rank that the launcher gave, 0, got 3"):
        make_trainer(RunnerConfig(enable_sync_training=True, index=3, is_local=True), ExampleTask.params())
