"""Optimizers with an adaptive scale: Adamom averages it over all past steps, Rmsprop over recent ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from monolith.optim import _foreach as foreach
from monolith.optim._dense_optimizer import (
    Bounds,
    DenseOptimizer,
    Group,
    LearningRate,
    ParameterBatch,
    decayed,
    zeros_like,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from torch.optim.optimizer import ParamsT


class Adamom(DenseOptimizer):
    """Dense optimizer with momentum over an adaptive scale.

    With ``h = grad + weight_decay * param``, per element::

        m <- mom_decay * m + (1 - mom_decay) * h
        v <- ada_decay * v + h^2
        c <- ada_decay * c + 1
        param <- param - learning_rate * m / sqrt(v / c + epsilon)         use_v2: ... / (sqrt(v / c) + epsilon)

    State of a parameter: ``m`` and ``v`` of its shape, and ``c``, one number, because it is the same for every element.
    All start at 0.

    Args:
        params: Parameters or groups, as for every torch optimizer.
        learning_rate: A number, which schedulers may change, or a function without arguments.
        ada_decay: How much of the squared gradients stays per step, in [0, 1]; 1 averages over all steps.
        mom_decay: How much of the momentum stays per step, in [0, 1].
        epsilon: Added under the root, or to the root with `use_v2`.
        weight_decay: Added to the gradient, times the parameter.
        use_v2: Add epsilon to the root instead of under it.
    """

    is_elementwise = True
    _bounds: ClassVar[Mapping[str, Bounds]] = {
        "ada_decay": Bounds(high=1.0),
        "mom_decay": Bounds(high=1.0),
        "epsilon": Bounds(),
        "weight_decay": Bounds(),
    }

    def __init__(
        self,
        params: ParamsT,
        learning_rate: LearningRate = 5e-6,
        *,
        ada_decay: float = 0.9999,
        mom_decay: float = 0.99,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        use_v2: bool = False,
    ) -> None:
        options = {
            "ada_decay": ada_decay,
            "mom_decay": mom_decay,
            "epsilon": epsilon,
            "weight_decay": weight_decay,
            "use_v2": use_v2,
        }
        super().__init__(params, learning_rate, options)

    def _initial_state(self, param: Tensor, group: Group) -> dict[str, Any]:  # noqa: ARG002
        return {"m": zeros_like(param), "v": zeros_like(param), "c": 0.0}

    def _update(self, batch: ParameterBatch, group: Group) -> None:
        rate, ada_decay = float(group["lr"]), group["ada_decay"]
        ms, vs, h = batch.state("m"), batch.state("v"), decayed(batch, group["weight_decay"])
        foreach.lerp_(ms, h, 1 - group["mom_decay"])
        foreach.mul_(vs, ada_decay)
        foreach.addcmul_(vs, h, h)
        counts = [ada_decay * count + 1 for count in batch.state("c")]
        for state, count in zip(batch.states, counts, strict=True):
            state["c"] = count
        # m / sqrt(v / c + epsilon) = sqrt(c) * m / sqrt(v + epsilon * c), which passes over memory once less.
        epsilon = group["epsilon"]
        if group.get("use_v2", False):  # states that were saved before it existed do not have it
            roots = foreach.sqrt(vs)
            foreach.add_(roots, [epsilon * math.sqrt(count) for count in counts])
        else:
            roots = foreach.add(vs, [epsilon * count for count in counts])
            foreach.sqrt_(roots)
        foreach.addcdiv_(batch.params, ms, roots, [-rate * math.sqrt(count) for count in counts])


class Rmsprop(DenseOptimizer):
    """Dense RMSProp with momentum.

    With ``h = grad + weight_decay * param``, per element::

        v <- v + (h^2 - v) * (1 - beta2)                                   use_v2: v <- beta2 * v + h^2
        m <- beta1 * m + learning_rate * h / sqrt(v + epsilon)             use_v2: ... / (sqrt(v) + epsilon)
        param <- param - m

    The learning rate is part of the momentum: a new rate changes only what is added from then on. State of a parameter:
    ``m`` and ``v`` of its shape, which start at 0. Not the rule of the row optimizer `RmsProp`, which has no momentum.

    Args:
        params: Parameters or groups, as for every torch optimizer.
        learning_rate: A number, which schedulers may change, or a function without arguments.
        beta1: How much of the momentum stays per step, in [0, 1].
        beta2: How much of the squared gradients stays per step, in [0, 1].
        epsilon: Added under the root, or to the root with `use_v2`.
        weight_decay: Added to the gradient, times the parameter.
        use_v2: Sum the squared gradients instead of averaging them.
    """

    is_elementwise = True
    _bounds: ClassVar[Mapping[str, Bounds]] = {
        "beta1": Bounds(high=1.0),
        "beta2": Bounds(high=1.0),
        "epsilon": Bounds(),
        "weight_decay": Bounds(),
    }

    def __init__(
        self,
        params: ParamsT,
        learning_rate: LearningRate = 5e-6,
        *,
        beta1: float = 0.99,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        use_v2: bool = False,
    ) -> None:
        options = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay, "use_v2": use_v2}
        super().__init__(params, learning_rate, options)

    def _initial_state(self, param: Tensor, group: Group) -> dict[str, Any]:  # noqa: ARG002
        return {"m": zeros_like(param), "v": zeros_like(param)}

    def _update(self, batch: ParameterBatch, group: Group) -> None:
        beta2, use_v2 = group["beta2"], group["use_v2"]
        ms, vs, h = batch.state("m"), batch.state("v"), decayed(batch, group["weight_decay"])
        foreach.mul_(vs, beta2)
        foreach.addcmul_(vs, h, h, 1.0 if use_v2 else 1 - beta2)
        if use_v2:
            roots = foreach.sqrt(vs)
            foreach.add_(roots, group["epsilon"])
        else:
            roots = foreach.add(vs, group["epsilon"])
            foreach.sqrt_(roots)
        foreach.mul_(ms, group["beta1"])
        foreach.addcdiv_(ms, h, roots, float(group["lr"]))
        foreach.sub_(batch.params, ms)
