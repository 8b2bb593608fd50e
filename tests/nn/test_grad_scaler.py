"""`emb.optimizer()` under a GradScaler of torch, compared with torch.nn.Embedding and SGD under the same scaler."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from monolith.errors import FailedPreconditionError
from nn.dense_twin import DEVICES, RATE, Dense, Sparse, differentiate, parameters

SCALE = 1024.0
IDS = torch.tensor([1, 2, 2, 5])


class Loop:
    """A model under a scaler that doubles its scale after two steps without an infinite gradient."""

    def __init__(self, kind: type[Dense], device: str = "cpu") -> None:
        self.model = kind().to(device)
        self.optimizer = self.model.optimizer()
        self.scaler = torch.amp.GradScaler(device, init_scale=SCALE, growth_interval=2)
        self.device = device

    def backward(self, factor: float = 1.0, ids: Tensor = IDS) -> None:
        differentiate(self.scaler.scale(self.model.loss(ids.to(self.device)) * factor))

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def content(self) -> list[Any]:
        tower = self.model.tower.weight.detach().cpu()
        return [self.model.weights().tolist(), tower.tolist(), self.scaler.get_scale()]


def plain(loop: Loop) -> None:
    for _ in range(5):
        loop.backward(0.01)
        loop.step()


def accumulated(loop: Loop) -> None:
    for number in range(3):
        loop.backward(0.01, IDS + number % 2)
    loop.step()
    loop.backward(0.01)
    loop.step()


def unscaled(loop: Loop) -> None:
    loop.backward(0.01)
    loop.scaler.unscale_(loop.optimizer)
    loop.step()


def infinite(loop: Loop) -> None:
    """The second step finds infinite gradients, of dense weights and of rows."""
    for factor in (0.01, 1e38, 0.01, 0.01):
        loop.backward(factor)
        loop.step()


def cleared_by_the_model(loop: Loop) -> None:
    loop.backward(1e38)
    loop.scaler.step(loop.optimizer)
    loop.scaler.update()
    loop.model.zero_grad()
    loop.backward(0.01)
    loop.step()


def two_backwards_of_one_graph(loop: Loop) -> None:
    loss = loop.scaler.scale(loop.model.loss(IDS.to(loop.device)) * 0.01)
    differentiate(loss, retain_graph=True)
    differentiate(loss)
    loop.step()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "way", [plain, accumulated, unscaled, infinite, cleared_by_the_model, two_backwards_of_one_graph]
)
def test_rows_learn_and_skip_as_a_table_of_torch_does(way: Callable[[Loop], None], device: str) -> None:
    found = []
    for kind in (Dense, Sparse):
        loop = Loop(kind, device)
        way(loop)
        found.append(loop.content())
    assert found[1] == found[0]
    assert torch.tensor(found[1][0]).abs().max() > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("limit", [0.5, 1e9])
def test_gradients_are_clipped_after_unscaling_by_their_joint_norm(limit: float, device: str) -> None:
    norms, rows = [], []
    for kind in (Dense, Sparse):
        loop = Loop(kind, device)
        loop.backward(0.1)
        loop.scaler.unscale_(loop.optimizer)
        norms.append(float(clip_grad_norm_(parameters(loop.optimizer), limit)))
        loop.step()
        rows.append(loop.model.weights())
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)
    torch.testing.assert_close(rows[1], rows[0])


def test_the_norm_of_rows_is_that_of_unscaled_gradients() -> None:
    loop = Loop(Sparse)
    loop.backward()
    assert isinstance(loop.model, Sparse)
    before = float(loop.model.emb.grad_norm())
    loop.scaler.unscale_(loop.optimizer)
    assert float(loop.model.emb.grad_norm()) == before / SCALE > 0
    loop.model.emb.step()  # by itself, too, it takes them as they are now
    assert loop.model.weights()[1].abs().max() < 10


@pytest.mark.parametrize("bad", ["rows", "dense"])
def test_dense_weights_and_rows_of_one_optimizer_skip_together(bad: str) -> None:
    loop = Loop(Sparse)
    before = loop.content()
    rows = loop.model.rows(IDS)
    other = loop.model.tower.weight.sum() + rows.sum()
    infinite = (rows.sum() if bad == "rows" else loop.model.tower.weight.sum()) * math.inf
    differentiate(loop.scaler.scale(infinite + other))
    loop.step()
    assert loop.content() == [*before[:2], SCALE / 2]
    loop.backward(0.01)
    loop.step()
    assert loop.content()[0] != before[0]


def test_separate_optimizers_skip_steps_independently_as_in_torch() -> None:
    model = Sparse()
    dense, rows = torch.optim.SGD(model.tower.parameters(), lr=RATE), model.emb.optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    before = model.tower.weight.detach().clone()
    differentiate(scaler.scale(model.rows(IDS).sum() * math.inf + model.tower.weight.sum()))
    for each in (dense, rows):
        scaler.step(each)
    scaler.update()
    assert scaler.get_scale() == SCALE / 2
    assert torch.equal(model.tower.weight, before - RATE)
    assert model.emb.num_rows == 0


def test_large_finite_gradients_are_not_taken_for_infinite_ones() -> None:
    """Their squares are infinite in float32."""
    model = Sparse()
    rows, scaler = model.emb.optimizer(), torch.amp.GradScaler("cpu", init_scale=SCALE)
    differentiate(scaler.scale(model.rows(IDS).sum() * 1e30))
    scaler.step(rows)
    scaler.update()
    assert scaler.get_scale() == SCALE
    assert model.weights()[2, 0].item() == pytest.approx(-1e30)


def test_rows_without_an_effect_on_the_loss_are_stepped_by_zero() -> None:
    model = Sparse()
    rows, scaler = model.emb.optimizer(), torch.amp.GradScaler("cpu", init_scale=SCALE)
    differentiate(scaler.scale(model.rows(IDS).sum() * 0))
    scaler.step(rows)
    scaler.update()
    assert model.emb.num_rows == 3
    assert not model.weights().any()


def test_a_backward_pass_after_unscaling_is_refused_until_gradients_are_cleared() -> None:
    loop = Loop(Sparse)
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    loop.backward()
    with pytest.raises(FailedPreconditionError, match=r"backward pass after unscale_\(\) or clipping"):
        loop.scaler.step(loop.optimizer)
    loop.optimizer.zero_grad()
    loop.scaler.update()
    loop.backward(0.01)
    loop.step()
    assert loop.model.weights().any()


def test_freezing_the_parameters_of_the_optimizer_freezes_the_rows() -> None:
    """As toggle_optimizer of Lightning does."""
    model = Sparse()
    rows = model.emb.optimizer()
    (stand_in,) = parameters(rows)
    stand_in.requires_grad = False
    assert not model.rows(IDS).requires_grad
    stand_in.requires_grad_(True)
    assert model.rows(IDS).requires_grad
