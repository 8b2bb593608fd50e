"""`emb.optimizer()` is an optimizer of torch, alone or with the dense one in it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import monolith as ml
from monolith.checkpoint import Saver, TrainState

SGD = ml.row_optimizers.Sgd(learning_rate=1.0)
IDS = torch.arange(6)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.emb = ml.Embeddings({"user": ml.Slot(2)}, ml.row_optimizers.Adagrad(learning_rate=0.3))
        self.tower = nn.Linear(2, 1)

    def learn(self) -> torch.Tensor:
        loss = self.loss()
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        return loss.detach()

    def loss(self) -> torch.Tensor:
        loss: torch.Tensor = (self.tower(self.emb({"user": IDS})["user"]) - 1).square().mean()
        return loss


def outcome(model: Model) -> tuple[list[float], list[float]]:
    return model.tower.weight.flatten().tolist(), model.emb.lookup("user", IDS).flatten().tolist()


def by_hand(steps: int) -> Model:
    model = Model()
    adam = torch.optim.Adam(model.tower.parameters(), lr=0.1)
    for _ in range(steps):
        adam.zero_grad()
        model.learn()
        adam.step()
        model.emb.step()
    return model


def test_it_steps_alongside_the_dense_optimizer_and_as_its_wrapper() -> None:
    beside, inside = Model(), Model()
    adam, rows = torch.optim.Adam(beside.parameters(), lr=0.1), beside.emb.optimizer()
    both = inside.emb.optimizer(torch.optim.Adam(inside.tower.parameters(), lr=0.1))
    for _ in range(4):
        for optimizer in (adam, rows):
            optimizer.zero_grad()
        beside.learn()
        adam.step()
        rows.step()

        both.zero_grad()
        inside.learn()
        both.step()
    assert outcome(beside) == outcome(inside) == outcome(by_hand(4))


def test_a_closure_is_called_with_gradients_on() -> None:
    model = Model()
    both = model.emb.optimizer(torch.optim.Adam(model.tower.parameters(), lr=0.1))

    def closure() -> torch.Tensor:
        both.zero_grad()
        return model.learn()

    losses = [float(both.step(closure)) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert outcome(model) == outcome(by_hand(3))


def test_a_scheduler_of_torch_is_a_factor_of_the_rates_of_rows() -> None:
    slots = {"user": ml.Slot(1, initializer=ml.initializers.Zeros())}
    emb = ml.Embeddings(slots, SGD)
    rows = emb.optimizer()
    schedule = torch.optim.lr_scheduler.LambdaLR(rows, lambda step: 0.5**step)
    for expected in (-1.0, -1.5, -1.75):
        emb({"user": torch.tensor([1])})["user"].sum().backward()
        rows.step()
        schedule.step()
        assert emb.lookup("user", torch.tensor([1])).item() == expected


def test_a_scheduler_over_both_changes_both() -> None:
    model = Model()
    adam = torch.optim.Adam(model.tower.parameters(), lr=0.1)
    both = model.emb.optimizer(adam)
    schedule = torch.optim.lr_scheduler.ExponentialLR(both, 0.5)
    both.step()
    schedule.step()
    assert [group["lr"] for group in both.param_groups] == [0.5, 0.05]
    assert adam.param_groups[0]["lr"] == 0.05


def test_its_state_is_that_of_both_and_is_loaded_into_both() -> None:
    model = Model()
    both = model.emb.optimizer(torch.optim.Adam(model.tower.parameters(), lr=0.1))
    for _ in range(2):
        both.zero_grad()
        model.learn()
        both.step()
    state, weights = copy.deepcopy(both.state_dict()), copy.deepcopy(model.state_dict())
    assert len(state["state"]) == 2
    fresh = Model()
    adam = torch.optim.Adam(fresh.tower.parameters(), lr=0.7)
    again = fresh.emb.optimizer(adam)
    fresh.load_state_dict(weights)
    again.load_state_dict(state)
    assert adam.param_groups[0]["lr"] == 0.1
    assert again.param_groups[1] is adam.param_groups[0]
    for _ in range(2):
        again.zero_grad()
        fresh.learn()
        again.step()
    assert outcome(fresh) == outcome(by_hand(4))


def test_clearing_drops_rows_whatever_is_left_of_the_gradients() -> None:
    model = Model()
    rows = model.emb.optimizer()
    for set_to_none in (True, False):
        model.learn()
        rows.zero_grad(set_to_none=set_to_none)
        rows.step()  # there is nothing to do
    assert model.emb.num_rows == 0
    assert model.emb.store.stats().open_plans == 0


def test_a_step_after_another_optimizer_cleared_everything_warns_once() -> None:
    model = Model()
    adam, rows = torch.optim.Adam(model.parameters()), model.emb.optimizer()
    model.learn()
    adam.step()
    adam.zero_grad()
    with pytest.warns(UserWarning, match="gradients of 1 backward passes were cleared before the step"):
        rows.step()
    rows.step()
    assert model.emb.num_rows == 0


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match="`beside` must be an optimizer of torch, got Linear"):
        Model().emb.optimizer(nn.Linear(1, 1))  # type: ignore[arg-type]


def test_it_is_saved_in_a_checkpoint_like_any_other(tmp_path: object) -> None:
    model = Model()
    both = model.emb.optimizer(torch.optim.Adam(model.tower.parameters(), lr=0.1))
    both.zero_grad()
    model.learn()
    both.step()
    with Saver(str(tmp_path)) as saver:
        saver.save(TrainState(model=model, optimizers={"both": both}))
    fresh = Model()
    again = fresh.emb.optimizer(torch.optim.Adam(fresh.tower.parameters(), lr=0.1))
    Saver(str(tmp_path)).restore(TrainState(model=fresh, optimizers={"both": again}))
    for each, optimizer in ((model, both), (fresh, again)):
        optimizer.zero_grad()
        each.learn()
        optimizer.step()
    assert outcome(fresh) == outcome(model) == outcome(by_hand(2))
