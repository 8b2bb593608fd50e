"""What torch does to all parameters of a model reaches its rows: clearing gradients, freezing."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import monolith as ml
from monolith.errors import FailedPreconditionError
from monolith.nn.embeddings.rows_optimizer import RowAnchor, weights_of

SGD = ml.row_optimizers.Sgd(learning_rate=1.0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = ml.Embeddings({"user": ml.Slot(2, initializer=ml.initializers.Zeros())}, SGD)
        self.tower = nn.Linear(2, 1, bias=False)
        nn.init.ones_(self.tower.weight)

    def forward(self, *ids: int) -> torch.Tensor:
        loss: torch.Tensor = self.tower(self.emb({"user": torch.tensor(ids)})["user"]).sum()
        return loss

    def weight(self, number: int) -> float:
        return float(self.emb.lookup("user", torch.tensor([number]))[0, 0])


def test_zero_grad_of_the_model_clears_the_gradients_of_rows() -> None:
    model = Model()
    model(1).backward()
    model.zero_grad()
    assert model.emb.grad_norm() == 0
    model(2).backward()
    model.emb.step()
    assert (model.weight(1), model.weight(2)) == (0.0, -1.0)
    assert model.emb.store.stats().open_plans == 0


def test_clearing_between_two_backward_passes_keeps_the_second() -> None:
    """Nobody asks for gradients in between, and the anchor has a gradient again at the step."""
    model = Model()
    model(1).backward()
    model.zero_grad()
    model(1).backward()
    model(1).backward()
    model.emb.step()
    assert model.weight(1) == -2.0


def test_passes_of_one_backward_call_belong_together() -> None:
    """Torch gives the anchor its gradient once, when all of them have theirs."""
    model = Model()
    (model(1) + model(1) + model(2)).backward()
    (model(2)).backward()
    model.emb.step()
    assert (model.weight(1), model.weight(2)) == (-2.0, -2.0)


def test_a_retained_graph_learns_again_after_clearing() -> None:
    model = Model()
    loss = model(1)
    loss.backward(retain_graph=True)
    model.zero_grad()
    loss.backward()
    model.emb.step()
    assert model.weight(1) == -1.0


def test_clearing_after_the_step_does_nothing() -> None:
    model = Model()
    for _ in range(3):
        model(1).backward()
        model.emb.step()
        model.zero_grad()
    assert model.weight(1) == -3.0


def test_a_step_after_clearing_reports_the_cleared_gradients() -> None:
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    model(1).backward()
    model(1).backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(FailedPreconditionError, match=r"gradients of 2 backward passes were cleared by zero_grad\(\)"):
        model.emb.step()
    model.emb.discard()
    with pytest.raises(FailedPreconditionError, match="no gradients since the last step"):
        model.emb.step()


def test_a_step_that_was_taken_is_not_cleared() -> None:
    """As a session does it: the push comes later, in another thread."""
    model = Model()
    model(1).backward()
    taken = model.emb.take_step()
    model.zero_grad()
    model(2).backward()
    assert taken is not None
    taken.apply()
    model.emb.step()
    assert (model.weight(1), model.weight(2)) == (-1.0, -1.0)


def test_frozen_parameters_are_frozen_rows() -> None:
    model = Model()
    model(1).backward()
    model.emb.step()
    model.emb.requires_grad_(False)
    model(1).backward()
    assert model.emb.store.stats().open_plans == 0
    with pytest.raises(FailedPreconditionError, match="no gradients"):
        model.emb.step()
    model.emb.requires_grad_(True)
    model(1).backward()
    model.emb.step()
    assert model.weight(1) == -2.0


OPTIMIZERS = [
    getattr(torch.optim, name)
    for name in ("Adam", "Adafactor", "Adagrad", "Rprop")
    if hasattr(torch.optim, name)  # Adafactor came with torch 2.5
]


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_and_clipping_of_all_parameters_ignore_the_row_anchor(
    optimizer: Callable[..., torch.optim.Optimizer], norm: float
) -> None:
    found = []
    for parameters_of in (lambda model: list(model.parameters()), weights_of):
        model = Model()
        made = optimizer(parameters_of(model))
        for _ in range(3):
            made.zero_grad()
            model(1, 2).backward()
            clip_grad_norm_(parameters_of(model), 0.1, norm_type=norm)
            made.step()
            model.emb.step()
        found.append((model.tower.weight.tolist(), model.weight(1)))
        assert model.emb.anchor.eq(0).all()
    assert found[0] == found[1]


def test_the_anchor_is_of_no_state_and_each_copy_has_its_own() -> None:
    model = Model()
    assert [name for name, value in model.named_parameters() if isinstance(value, RowAnchor)] == ["emb._anchor"]
    assert not any("anchor" in name for name in model.state_dict())
    assert model.load_state_dict(model.state_dict()).missing_keys == []
    model.emb.deep_copies = "share"
    twin = copy.deepcopy(model)
    assert twin.emb.anchor is not model.emb.anchor
    model(1).backward()
    assert twin.emb.anchor.grad is None
    twin.zero_grad()
    model.emb.step()
    assert model.weight(1) == -1.0


def test_a_model_that_was_moved_and_cast_still_clears_and_learns() -> None:
    model = Model()
    model(1).backward()
    model.double()
    model.emb.step()
    model.to("cpu", torch.float32)
    model(1).backward()
    model.zero_grad()
    model(2).backward()
    model.emb.step()
    assert (model.weight(1), model.weight(2)) == (-1.0, -1.0)
