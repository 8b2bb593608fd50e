"""Tasks that are run by torch and by JAX, and how far apart the two may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from monolith.checkpoint import TrainState
from monolith.nn import Embeddings
from monolith.testing import ExampleTask
from monolith.tpu.devices import Devices, cpu_devices
from monolith.tpu.jax_task import JaxTask
from monolith.tpu.torchax_shim import load_backend
from monolith.train import Spec, Task, Trainer, TrainerConfig

LEARNING_RATES = {"dense": 1e-3, "rows": 0.05}
"""Of Adam with its defaults, and of the default optimizer of rows."""


def tolerance(task: Task, kind: str, steps: int) -> float:
    """How far weights of two float32 runs may be apart.

    A gradient is a sum over the examples of a batch of products along the width of the model; whatever the order of its
    terms, its relative error is at most their number times 2^-23. Adam and Adagrad move a weight by about the learning
    rate in a step, whatever the size of the gradient: a relative error of the gradient is one of that step.
    """
    terms: int = task.p.batch_size + 2 * task.p.dim
    return steps * LEARNING_RATES[kind] * terms * torch.finfo(torch.float32).eps


def jax_task(task: Task, **options: Any) -> JaxTask:
    """The task, by JAX on the CPU."""
    backend = load_backend()
    return JaxTask(task, backend, Devices(backend, cpu_devices(backend)), **options)


def train_by_jax(task: Task, **config: Any) -> TrainState:
    return Trainer(jax_task(task), TrainerConfig(deterministic=True, **config)).train()


def train_by_torch(task: Task, **config: Any) -> TrainState:
    return Trainer(task, TrainerConfig(deterministic=True, **config)).train()


def weights(state: TrainState) -> dict[str, Tensor]:
    assert state.model is not None
    found: dict[str, Tensor] = {
        name: value for name, value in state.model.state_dict().items() if isinstance(value, Tensor)
    }
    return {name: value for name, value in found.items() if not name.startswith("emb.")}


def rows(state: TrainState, slot: str) -> tuple[Tensor, Tensor]:
    assert state.model is not None
    embeddings = state.model.get_submodule("emb")
    assert isinstance(embeddings, Embeddings)
    found = embeddings.vectors(slot)
    return found.ids, found.vectors


def assert_close(left: TrainState, right: TrainState, task: Task, steps: int = 20) -> None:
    """Weights and rows of two runs are equal up to rounding."""
    others = weights(right)
    for name, value in weights(left).items():
        assert torch.allclose(value, others[name], rtol=0, atol=tolerance(task, "dense", steps)), name
    for slot in ("user", "item"):
        (ids, vectors), (other_ids, other_vectors) = rows(left, slot), rows(right, slot)
        assert torch.equal(ids, other_ids)
        torch.testing.assert_close(vectors, other_vectors, rtol=0, atol=tolerance(task, "rows", steps))


def task_with(
    head: Callable[[Any, Any, Any], Tensor], build: Callable[[], nn.Module] = nn.Identity, num_batches: int = 2
) -> ExampleTask:
    """The example with something between the rows and the last layer: ``head(task, looked up, features)``."""

    class Changed(ExampleTask):
        def build(self) -> None:
            super().build()
            self.layer = build()

        def model_fn(self, features: Any, mode: Any) -> Spec:
            logits = self.top(head(self, self.emb(features), features)).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
            return Spec(loss, predictions=logits.sigmoid(), label=features["label"])

    params = Changed.params()
    params.num_batches = num_batches
    return Changed(params)
