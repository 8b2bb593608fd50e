"""Models with weights of every kind that servers place differently, and the optimizers that they are trained with."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from monolith.optim import Adamom, Rmsprop, Shampoo

OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, initial_accumulator_value=0.1),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "adamom": lambda parameters: Adamom(parameters, 0.01),
    "rmsprop": lambda parameters: Rmsprop(parameters, 0.01),
    "shampoo": lambda parameters: Shampoo(parameters, 0.01, warmup=1, tau_1=2, tau_2=1),
}


class Weights(nn.Module):
    """Small and large ones, a scalar, an empty one, a shared one, one of 64 bits and one of 16."""

    def __init__(self, *, rows: int = 700, seed: int = 0) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(seed)
        self.large = nn.Parameter(torch.randn(rows, 96, generator=made))
        self.small = nn.Parameter(torch.randn(5, 3, generator=made))
        self.scalar = nn.Parameter(torch.randn((), generator=made))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.wide = nn.Parameter(torch.randn(7, generator=made, dtype=torch.float64))
        self.short = nn.Parameter(torch.randn(9, generator=made).bfloat16())
        self.unused = nn.Parameter(torch.ones(4))
        self.twin = nn.Linear(3, 3, bias=False)
        self.same = self.twin
        with torch.no_grad():
            self.twin.weight.copy_(torch.randn(3, 3, generator=made))

    def give_gradients(self, seed: int) -> None:
        """Of every weight but `unused`; functions of the present values too, as real ones are."""
        made = torch.Generator().manual_seed(1000 + seed)
        for name, parameter in self.named_parameters():
            noise = torch.randn(parameter.shape, generator=made).to(parameter.dtype)
            parameter.grad = None if name == "unused" else noise + 0.1 * parameter.detach()


def values_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype, name
        assert torch.equal(value, theirs[name]), name
