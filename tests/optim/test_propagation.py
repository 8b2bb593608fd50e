"""Gradients through a part of a model, grouped by key."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from monolith.optim import propagate_back_dict_gradients, propagate_back_gradients


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, requires_grad=True)


def test_the_published_case() -> None:
    x = torch.tensor(8.0, requires_grad=True)
    y = 2 * x
    grad_y = 3 * y
    grouped = propagate_back_dict_gradients(zip([grad_y], [y], strict=True), {x: "group1"}, {y})
    assert list(grouped) == ["group1"]
    ((dx, same_x),) = grouped["group1"]
    assert dx is not None
    assert dx.item() == 96
    assert same_x is x
    assert grouped["no such group"] == []


def test_gradients_come_in_the_order_of_xs_and_sum_over_the_pairs() -> None:
    a, b, unused = leaf(1.0, 2.0), leaf(3.0, 4.0), leaf(5.0)
    y, z = a * b, a + 10 * b
    grad_y, grad_z = torch.tensor([1.0, 10.0]), torch.tensor([100.0, 1000.0])
    db, nothing, da = propagate_back_gradients([(grad_y, y), (grad_z, z)], iter([b, unused, a]))
    assert nothing is None
    assert da is not None
    assert db is not None
    assert da.tolist() == [1 * 3 + 100, 10 * 4 + 1000]
    assert db.tolist() == [1 * 1 + 1000, 10 * 2 + 10_000]


def test_a_tensor_that_stands_twice_counts_twice() -> None:
    x = leaf(2.0)
    y = 3 * x
    (dx,) = propagate_back_gradients([(torch.ones(1), y), (torch.ones(1), y)], [x])
    assert dx is not None
    assert dx.item() == 6


def test_a_gradient_requested_at_its_own_tensor_is_returned() -> None:
    x = leaf(2.0)
    (dx,) = propagate_back_gradients([(torch.full((1,), 5.0), x)], [x])
    assert dx is not None
    assert dx.item() == 5


def test_the_part_can_be_walked_again_and_nothing_accumulates() -> None:
    x = leaf(2.0)
    y = x * x
    for _ in range(2):
        (dx,) = propagate_back_gradients([(torch.ones(1), y)], [x])
        assert dx is not None
        assert dx.item() == 4
    torch.autograd.backward(y)
    assert x.grad is not None
    assert x.grad.item() == 4


def test_keys_group_in_the_order_of_the_mapping() -> None:
    xs = [leaf(float(number)) for number in range(4)]
    y = torch.stack([number * x for number, x in enumerate(xs)]).sum(0)
    grouped = propagate_back_dict_gradients([(torch.ones(1), y)], dict(zip(xs, ["u", "i", "u", "i"], strict=True)))
    assert list(grouped) == ["u", "i"]
    assert [x is own for (_, x), own in zip(grouped["u"], (xs[0], xs[2]), strict=True)] == [True, True]
    assert [dx.item() for dx, _ in grouped["i"] if dx is not None] == [1, 3]


def test_a_tensor_outside_of_the_valid_set_is_refused() -> None:
    x = leaf(1.0, 2.0)
    y, z = 2 * x, 2 * x
    with pytest.raises(RuntimeError) as error:
        propagate_back_gradients([(torch.ones(2), z)], [x], {y})
    assert error.value.args[0] == "Invalid variables in the input"
    assert error.value.args[1] is z
    assert error.value.args[2] == {y}


@pytest.mark.parametrize("valid", [None, set(), []])
def test_no_valid_set_and_an_empty_one_allow_everything(valid: set[Tensor] | list[Tensor] | None) -> None:
    x = leaf(1.0)
    (dx,) = propagate_back_gradients([(torch.ones(1), 2 * x)], [x], valid)
    assert dx is not None


def test_pairs_without_a_gradient_add_nothing() -> None:
    x = leaf(1.0)
    constant = torch.ones(1)
    assert propagate_back_gradients([(None, 2 * x), (torch.ones(1), constant)], [x]) == [None]
    assert propagate_back_gradients([], [x]) == [None]
    assert propagate_back_gradients([(torch.ones(1), 2 * x)], []) == []


def test_an_x_outside_of_the_graph_is_named() -> None:
    x = leaf(1.0)
    with pytest.raises(ValueError, match=r"x number 1 of shape \(2,\) requires no gradient; call requires_grad_"):
        propagate_back_gradients([(torch.ones(1), 2 * x)], [x, torch.ones(2)])
