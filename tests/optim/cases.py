"""What the tests of the dense optimizers share: all of them, ways to run them, and what they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from monolith.optim import Adamom, Rmsprop, Shampoo
from optim import dense_reference

# Each with options under which every branch of its rule is taken within a few steps.
OPTIMIZERS: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "adamom": (Adamom, dense_reference.Adamom, {"ada_decay": 0.9, "mom_decay": 0.8, "weight_decay": 0.02}),
    "adamom_v2": (Adamom, dense_reference.Adamom, {"ada_decay": 0.9, "mom_decay": 0.8, "epsilon": 0.1, "use_v2": True}),
    "rmsprop": (Rmsprop, dense_reference.Rmsprop, {"beta1": 0.7, "beta2": 0.9, "weight_decay": 0.02}),
    "rmsprop_v2": (Rmsprop, dense_reference.Rmsprop, {"beta1": 0.7, "beta2": 0.9, "epsilon": 1e-3, "use_v2": True}),
    "shampoo": (
        Shampoo,
        dense_reference.Shampoo,
        {"warmup": 4, "tau_1": 3, "tau_2": 2, "eigen_head": 2, "eigen_tail": 1},
    ),
}


def make(name: str, params: Any, learning_rate: Any = 0.05, **options: Any) -> Any:
    kind, _, defaults = OPTIMIZERS[name]
    return kind(params, learning_rate, **{**defaults, **options})


def reference(name: str, learning_rate: float = 0.05, **options: Any) -> Any:
    _, kind, defaults = OPTIMIZERS[name]
    return kind(lr=learning_rate, **{**defaults, **options})


def gradients(shape: Sequence[int], steps: int, seed: int = 0) -> list[Tensor]:
    """Gradients that are exact in bfloat16, so that every precision sees the same ones."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(tuple(shape), generator=generator).bfloat16().float() for _ in range(steps)]


def run(optimizer: Any, param: Tensor, grads: Sequence[Tensor]) -> None:
    for grad in grads:
        param.grad = grad.to(device=param.device, dtype=param.dtype)
        optimizer.step()


def run_reference(rule: Any, start: Tensor, grads: Sequence[Tensor]) -> Tensor:
    var = start.detach().double().cpu().numpy()
    for grad in grads:
        var = rule.update(var, grad.double().cpu().numpy())
    return torch.from_numpy(np.asarray(var))
