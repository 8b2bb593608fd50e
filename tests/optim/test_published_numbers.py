"""One step from 0.1 with gradient 0.12: the numbers that the original's tests publish."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from monolith.optim import Adamom, Rmsprop, Shampoo

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


def one_step(kind: type[Any], device: str, **options: Any) -> tuple[Tensor, dict[str, Any]]:
    param = torch.tensor([0.1], device=device, requires_grad=True)
    optimizer = kind([param], learning_rate=0.1, **options)
    torch.autograd.backward((0.12 * param).sum())
    optimizer.step()
    return param.detach().cpu(), optimizer.state[param]


@pytest.mark.parametrize("device", DEVICES)
def test_adamom(device: str) -> None:
    param, state = one_step(Adamom, device, weight_decay=0.01, ada_decay=0.99, mom_decay=0.9)
    assert sorted(state) == ["c", "m", "v"]
    assert state["m"].item() == pytest.approx(0.0121, rel=1e-6)
    assert state["c"] == pytest.approx(1.0)
    assert state["v"].item() == pytest.approx(0.014641, rel=1e-6)
    assert param.item() == pytest.approx(0.090000336, rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_adamom_v2(device: str) -> None:
    param, _ = one_step(Adamom, device, weight_decay=0.01, ada_decay=0.99, mom_decay=0.9, epsilon=0.1, use_v2=True)
    assert param.item() == pytest.approx(0.1 - 0.1 * 0.0121 / (0.121 + 0.1), rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_rmsprop(device: str) -> None:
    param, state = one_step(Rmsprop, device, weight_decay=1, beta1=0.9, beta2=0.9, epsilon=0.1)
    assert sorted(state) == ["m", "v"]
    assert state["m"].item() == pytest.approx(0.06794526153774846, rel=1e-6)
    assert state["v"].item() == pytest.approx(0.00484, rel=1e-6)
    assert param.item() == pytest.approx(0.03205473846225154, rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_rmsprop_v2(device: str) -> None:
    param, state = one_step(Rmsprop, device, weight_decay=1, beta1=0.9, beta2=0.9, epsilon=0.1, use_v2=True)
    assert sorted(state) == ["m", "v"]
    assert state["m"].item() == pytest.approx(0.068750, rel=1e-6)
    assert state["v"].item() == pytest.approx(0.0484, rel=1e-6)
    assert param.item() == pytest.approx(0.031250, rel=1e-6)


def test_defaults_match_upstream() -> None:
    def defaults(kind: type[Any]) -> dict[str, Any]:
        return {k: v for k, v in kind([torch.zeros(1)]).defaults.items() if k != "step"}

    assert defaults(Adamom) == {
        "lr": 5e-6, "ada_decay": 0.9999, "mom_decay": 0.99, "epsilon": 1e-6, "weight_decay": 0.0, "use_v2": False,
    }  # fmt: skip
    assert defaults(Rmsprop) == {
        "lr": 5e-6, "beta1": 0.99, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0, "use_v2": False,
    }  # fmt: skip
    assert defaults(Shampoo) == {
        "lr": 0.03, "beta_1": 0.9, "beta_2": 1.0, "warmup": 5000, "tau_1": 200, "tau_2": 20,
        "eigen_head": 100, "eigen_tail": 100, "damping_epsilon": 1e-3,
    }  # fmt: skip


@pytest.mark.parametrize("kind", [Adamom, Rmsprop, Shampoo])
def test_the_learning_rate_is_the_second_argument(kind: type[Any]) -> None:
    assert list(inspect.signature(kind).parameters)[:2] == ["params", "learning_rate"]
    assert kind([torch.zeros(1)], 0.25).param_groups[0]["lr"] == 0.25
