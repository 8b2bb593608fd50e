"""A task's model by JAX: the numbers of torch, the same checkpoints, and clear words where JAX cannot follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from monolith.data import Batch
from monolith.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from monolith.hook import Hook, StepContext
from monolith.nn import Embeddings, FirstN, Slot
from monolith.tensors import Ragged
from monolith.testing import ExampleTask
from monolith.train import PipelineConfig, SavingConfig, Spec, Task, Trainer, TrainerConfig
from tpu.jax_tasks import (
    assert_close,
    jax_task,
    rows,
    task_with,
    tolerance,
    train_by_jax,
    train_by_torch,
    weights,
)


def test_weights_and_rows_are_those_of_torch() -> None:
    task = ExampleTask()
    assert_close(train_by_jax(task), train_by_torch(ExampleTask()), task)


@pytest.mark.slow
def test_a_gradient_that_is_one_percent_off_would_be_seen() -> None:
    class Wrong(ExampleTask):
        def model_fn(self, features: Any, mode: Any) -> Spec:
            spec = super().model_fn(features, mode)
            emb = self.emb(features).concat()
            assert spec.loss is not None
            spec.loss = spec.loss + 0.01 * (emb - emb.detach()).mean()
            return spec

    task = ExampleTask()
    with pytest.raises(AssertionError):
        assert_close(train_by_jax(Wrong()), train_by_torch(ExampleTask()), task)


@pytest.mark.slow
def test_clipping_and_decay_are_those_of_torch() -> None:
    def make() -> ExampleTask:
        params = ExampleTask.params()
        params.clip_norm, params.dense_weight_decay = 0.05, 0.1
        return ExampleTask(params)

    assert_close(train_by_jax(make()), train_by_torch(make()), make())


@pytest.mark.slow
@pytest.mark.parametrize("first", ["jax", "torch"])
def test_torch_resumes_from_a_checkpoint_of_jax_and_vice_versa(first: str, tmp_path: Path) -> None:
    config = TrainerConfig(model_dir=str(tmp_path / "m"), deterministic=True, saving=SavingConfig(every_steps=10))
    order: list[Callable[[], Task]] = [lambda: jax_task(ExampleTask()), ExampleTask]
    one, other = order if first == "jax" else order[::-1]
    assert Trainer(one(), config).train(steps=10).global_step == 10
    state = Trainer(other(), config).train()
    assert state.global_step == 20
    assert_close(state, train_by_torch(ExampleTask()), ExampleTask())


def test_evaluation_and_prediction_are_those_of_torch(tmp_path: Path) -> None:
    config = TrainerConfig(model_dir=str(tmp_path / "m"), deterministic=True)
    Trainer(ExampleTask(), config).train(steps=10)
    by_jax, by_torch = Trainer(jax_task(ExampleTask()), config), Trainer(ExampleTask(), config)
    found, expected = by_jax.evaluate(steps=3), by_torch.evaluate(steps=3)
    assert found == pytest.approx(expected, rel=1e-5)
    batch = ExampleTask().input_fn("train").make(0)
    torch.testing.assert_close(by_jax.predict(batch), by_torch.predict(batch), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_weight_without_influence_gets_no_gradient_and_stays_unchanged() -> None:
    class Decayed(ExampleTask):
        def build(self) -> None:
            super().build()
            self.unused = nn.Linear(3, 3)

        def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.AdamW([p for n, p in model.named_parameters() if "emb" not in n], weight_decay=0.5)

    task = Decayed()
    params = task.p
    state = train_by_jax(task)
    assert state.model is not None
    assert state.model.get_parameter("unused.weight").grad is None
    assert_close(state, train_by_torch(Decayed(params)), ExampleTask())


@pytest.mark.slow
def test_embeddings_that_only_predictions_use_learn_nothing() -> None:
    class Beside(ExampleTask):
        def build(self) -> None:
            super().build()
            self.shown = Embeddings({"item": Slot(dim=2)})

        def model_fn(self, features: Any, mode: Any) -> Spec:
            spec = super().model_fn(features, mode)
            spec.predictions = {"auc": spec.predictions, "shown": self.shown(features).concat().sum(1)}
            return spec

    by_jax, by_torch = train_by_jax(Beside()), train_by_torch(Beside())
    for state in (by_jax, by_torch):
        assert state.model is not None
        assert state.embeddings["shown"].num_rows == 0
    assert_close(by_jax, by_torch, ExampleTask())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "head"),
    [
        (lambda: nn.BatchNorm1d(8), lambda task, x, _: task.layer(x.concat())),
        (lambda: nn.LayerNorm(8), lambda task, x, _: task.layer(x.concat())),
        (lambda: nn.Embedding(10, 8), lambda task, x, features: x.concat() + task.layer(features["item"] % 10)),
        (lambda: nn.GRU(4, 4, batch_first=True), lambda task, x, _: task.layer(x.stack())[0].flatten(1)),
        (nn.Identity, lambda _, x, __: x.concat() + torch.arange(8) * torch.ones(8)),
        (nn.Identity, lambda _, x, features: torch.cat([x["item"], x["user"]], 1) * features["label"][:, None]),
    ],
    ids=["batch_norm", "layer_norm", "embedding", "gru", "new tensors", "columns"],
)  # fmt: skip
def test_layers_and_their_buffers_are_those_of_torch(build: Any, head: Any) -> None:
    by_jax = train_by_jax(task_with(head, build, num_batches=5))
    by_torch = train_by_torch(task_with(head, build, num_batches=5))
    for name, value in weights(by_jax).items():
        torch.testing.assert_close(value, weights(by_torch)[name], rtol=1e-5, atol=1e-6, msg=name)


class _Seen(Hook):
    def __init__(self) -> None:
        self.predictions: list[torch.Tensor] = []

    def after_run(self, context: StepContext) -> None:
        assert context.session.last is not None
        self.predictions.append(context.session.last.predictions)


@pytest.mark.slow
def test_dropout_draws_again_in_each_step_and_the_same_in_a_second_run() -> None:
    class Dropped(ExampleTask):
        def build(self) -> None:
            super().build()
            self.dropout = nn.Dropout(0.5)

        def model_fn(self, features: Any, mode: Any) -> Spec:
            spec = super().model_fn(features, mode)
            spec.predictions = self.dropout(torch.ones(1000))
            return spec

    def run(stop_between: bool) -> list[torch.Tensor]:
        seen = _Seen()
        trainer = Trainer(jax_task(Dropped()), TrainerConfig(deterministic=True), hooks=[seen])
        for steps in (2, 2) if stop_between else (4,):
            trainer.train(steps=steps)
        return seen.predictions

    first, second = run(stop_between=False), run(stop_between=True)
    assert all(torch.equal(left, right) for left, right in zip(first, second, strict=True))
    assert len({tuple(each.tolist()) for each in first}) == 4
    assert 0.4 < float((first[0] == 0).float().mean()) < 0.6


@pytest.mark.slow
def test_sequences_enter_as_places_and_lists_stay_on_the_host() -> None:
    class Sequences(Task):
        def build(self) -> None:
            self.emb = Embeddings({"tags": Slot(dim=4, combiner=FirstN(3)), "user": Slot(dim=4, combiner="mean")})
            self.top = nn.Linear(16, 1)

        def input_fn(self, mode: Any) -> Any:
            tags = Ragged.from_lists([[1, 2, 3, 4], [], [1 << 62]])
            users = [Ragged.from_lists([[7], [8, 9], []]), Ragged.from_lists([[1, 2, 3], [5], [7]])]
            return [Batch({"tags": tags, "user": user, "label": torch.tensor([1.0, 0.0, 1.0])}) for user in users]

        def model_fn(self, features: Any, mode: Any) -> Spec:
            x = self.emb({"tags": features["tags"], "user": features["user"]})
            assert x["tags"].shape == (3, 3, 4)
            logits = self.top(x.concat("tags", "user")).squeeze(1)
            return Spec(nn.functional.binary_cross_entropy_with_logits(logits, features["label"]))

    by_jax, by_torch = train_by_jax(Sequences()), train_by_torch(Sequences())
    for slot in ("tags", "user"):
        for left, right in zip(rows(by_jax, slot), rows(by_torch, slot), strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_rows_read_ahead_are_one_step_old_as_with_torch() -> None:
    pipeline = PipelineConfig(prefetch=1, wait_for_batches=True)
    stale = train_by_jax(ExampleTask(), pipeline=pipeline)
    assert_close(stale, train_by_torch(ExampleTask(), pipeline=pipeline), ExampleTask())
    with pytest.raises(AssertionError):
        assert_close(stale, train_by_torch(ExampleTask()), ExampleTask())


@pytest.mark.slow
def test_a_function_is_compiled_once_for_each_form_of_a_batch(tmp_path: Path) -> None:
    task = jax_task(ExampleTask())
    trainer = Trainer(task, TrainerConfig(model_dir=str(tmp_path / "m")))
    trainer.train(steps=5)
    trainer.train(steps=5)
    assert task.compiled.num_compiled == 1
    trainer.evaluate(steps=2)
    assert task.compiled.num_compiled == 2


# What cannot be


CONSTANT = torch.ones(8)


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 5 * gradient


def twice(x: torch.Tensor) -> torch.Tensor:
    doubled: torch.Tensor = _Twice.apply(x)  # type: ignore[no-untyped-call]  # torch gives it no types
    return doubled


@pytest.mark.parametrize(
    ("head", "error", "text"),
    [
        (lambda _, x, __: torch.special.airy_ai(x.concat()), UnimplementedError, "aten::special_airy_ai"),
        (lambda _, x, __: x.concat() + CONSTANT, FailedPreconditionError, "register_buffer"),
        (lambda _, x, __: x.concat() * x.concat().sum().item(), FailedPreconditionError, "needs the values"),
        (lambda _, x, __: x.concat() if x.concat().sum() > 0 else -x.concat(), FailedPreconditionError, "torch.where"),
        (lambda _, x, __: twice(x.concat()), UnimplementedError, "_Twice, a torch.autograd.Function"),
        (lambda task, _, f: task.emb({"user": f["item"], "item": f["user"]}).concat(), FailedPreconditionError, "host"),
        (lambda task, _, f: task.emb(f, time=5).concat(), FailedPreconditionError, "without time or stamp"),
    ],
    ids=["no lowering", "host tensor", "item", "if", "autograd function", "other columns", "time"],
)  # fmt: skip
def test_models_that_cannot_be_compiled_are_refused_with_the_reason(head: Any, error: type, text: str) -> None:
    with pytest.raises(error, match=text) as raised:
        train_by_jax(task_with(head))
    assert "task Changed" in str(raised.value)


class _Input(ExampleTask):
    """The example, with batches of one's own."""

    batches: list[Any]

    def input_fn(self, mode: Any) -> Any:
        return self.batches


def with_batches(*batches: Any) -> ExampleTask:
    task = _Input()
    task.batches = list(batches)
    return task


def test_an_empty_batch_is_refused() -> None:
    empty = {"user": torch.empty(0, dtype=torch.int64), "item": torch.empty(0, dtype=torch.int64)}
    with pytest.raises(InvalidArgumentError, match="a batch has no examples"):
        train_by_jax(with_batches(Batch({**empty, "label": torch.empty(0)})))


def test_a_batch_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="a mapping of columns by name, got list"):
        train_by_jax(with_batches([1, 2]))


def test_integers_that_jax_cannot_hold_are_rejected_unless_only_embeddings_use_them() -> None:
    big = 1 << 40
    columns = {"user": torch.tensor([big]), "item": torch.tensor([-big]), "label": torch.ones(1)}
    assert train_by_jax(with_batches(columns)).embeddings["emb"].num_rows == 2

    task = with_batches(columns)
    original = task.model_fn

    def model_fn(features: Any, mode: Any) -> Spec:
        spec = original(features, mode)
        spec.predictions = features["user"] + 1
        return spec

    task.model_fn = model_fn  # type: ignore[method-assign]
    with pytest.raises(InvalidArgumentError, match="column 'user': JAX computes with integers of 32 bits"):
        train_by_jax(task)


def test_a_list_that_the_model_itself_reads_is_refused() -> None:
    class Reads(ExampleTask):
        def model_fn(self, features: Any, mode: Any) -> Spec:
            return Spec(features["tags"].values.float().sum())

    task = Reads()
    batch = Batch({"user": torch.tensor([1]), "item": torch.tensor([2]), "tags": Ragged.from_lists([[1, 2]])})
    task.input_fn = lambda mode: [batch]  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(FailedPreconditionError, match="column 'tags': a Ragged cannot enter a compiled step"):
        train_by_jax(task)


@pytest.mark.slow
def test_a_loss_that_is_no_number_moves_no_weight_and_is_not_saved(tmp_path: Path) -> None:
    bad = {"user": torch.tensor([1]), "item": torch.tensor([2]), "label": torch.tensor([float("nan")])}
    good = {**bad, "label": torch.ones(1)}
    config = TrainerConfig(model_dir=str(tmp_path / "m"), saving=SavingConfig(every_steps=1))
    trainer = Trainer(jax_task(with_batches(good, bad)), config)
    with pytest.raises(InvalidArgumentError, match="not finite"):
        trainer.train()
    assert {path.name for path in (tmp_path / "m").glob("*.manifest")} == {"model.ckpt-1.manifest"}


def test_weights_of_64_bits_are_refused() -> None:
    with pytest.raises(FailedPreconditionError, match=r"weight 'layer\.weight' is float64"):
        train_by_jax(task_with(lambda _, x, __: x.concat(), lambda: nn.Linear(2, 2).double()))


def test_a_train_op_is_refused() -> None:
    class Own(ExampleTask):
        def model_fn(self, features: Any, mode: Any) -> Spec:
            return Spec(train_op=lambda: None)

    with pytest.raises(FailedPreconditionError, match="train_op"):
        train_by_jax(Own())


def test_embeddings_look_up_by_torch_again_after_the_step_was_traced() -> None:
    state = train_by_jax(ExampleTask())
    batch = ExampleTask().input_fn("train").make(0)
    with torch.no_grad():
        looked_up = state.embeddings["emb"](batch)
    assert looked_up.concat().shape == (32, 8)
    assert tolerance(ExampleTask(), "rows", 20) < 1e-5
