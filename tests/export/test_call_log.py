"""Logs of calls: equal where torch would be followed to the same graph, and none where that cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from monolith.export.recording import CallLog, log_calls

Function = Callable[[dict[str, Tensor]], tuple[Tensor, ...]]
X = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)
ZEROS = torch.zeros(4)


def logged(function: Function, weight: float = 1.0, x: Tensor = X) -> CallLog | None:
    return log_calls(function, {"x": x}, {"w": torch.full((4, 2), weight)})


def model(*, limit: float = 9.0, constant: Tensor = ZEROS, squared: bool = False, swapped: bool = False) -> Function:
    """One that uses what is given to it, as a task uses its attributes."""

    def call(inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        x = inputs["x"].clamp(max=limit) + constant
        if squared:
            x = x * x
        return (x.relu(), x) if swapped else (x, x.relu())

    return call


def test_equal_calls_have_equal_logs() -> None:
    assert logged(model()) is not None
    assert logged(model()) == logged(model())
    assert logged(model(constant=torch.zeros(4))) == logged(model())


@pytest.mark.parametrize(
    "given",
    [
        {"limit": 8.0},  # which changes no value of the example
        {"limit": 9},  # a whole number is another one in a graph
        {"squared": True},
        {"swapped": True},
        {"constant": torch.full((4,), -0.0)},
        {"constant": torch.zeros(1)},
        {"constant": torch.zeros(4, dtype=torch.float64)},
    ],
    ids=str,
)
def test_whatever_a_graph_would_hold_is_in_the_log(given: dict[str, Any]) -> None:
    assert logged(model(**given)) is not None
    assert logged(model(**given)) != logged(model())


def test_weights_are_known_by_their_names_and_sizes() -> None:
    names = {"a": torch.zeros(4, 4), "b": torch.ones(4, 4)}

    def by(name: str) -> Function:
        return lambda inputs: (inputs["x"] @ names[name],)

    def log(name: str, **weights: Tensor) -> CallLog | None:
        return log_calls(by(name), {"x": X}, weights or names)

    before = log("a")
    assert before is not None
    names["a"] = torch.full((4, 4), 7.0)
    assert log("a") == before, "other values"
    assert log("b") != before
    names["a"] = torch.full((4, 2), 7.0)
    assert log("a") != before
    names["a"] = names["b"]
    assert log("a") != before, "two names for one tensor"


def test_inputs_are_known_by_their_sizes_and_types() -> None:
    before = logged(model())
    assert logged(model(), x=-X) == before
    for other in (X[:2], X.double(), X[:, ::2], torch.zeros(0, 4)):
        assert logged(model(), x=other) != before


@pytest.mark.parametrize(
    "function",
    [
        lambda inputs: (inputs["x"] * float(inputs["x"].sum()),),
        lambda inputs: (inputs["x"] if bool((inputs["x"] > 0).any()) else -inputs["x"],),
        lambda inputs: (inputs["y"],),
        lambda inputs: (torch.rand(3, generator=torch.Generator()) + inputs["x"].sum(),),
    ],
    ids=["item", "branch", "raises", "generator"],
)
def test_an_untraceable_function_has_no_call_log(function: Function) -> None:
    assert logged(function) is None


def test_nothing_is_drawn_in_vain() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    assert logged(lambda inputs: (inputs["x"] + torch.rand(4),)) is not None
    assert torch.equal(torch.rand(2), expected)
