from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import monolith as ml
from monolith.tensors import get_ndim, int_shape


class Shaped:
    def __init__(self, *shape: Any) -> None:
        self.shape = shape


@pytest.mark.parametrize(
    ("x", "ndim", "shape"),
    [
        (torch.zeros(2, 3), 2, (2, 3)),
        (torch.tensor(1.0), 0, ()),
        (torch.zeros(0, 4), 2, (0, 4)),
        (np.zeros((5,)), 1, (5,)),
        (Shaped(None, 3), 2, (-1, 3)),
        (Shaped("many", 3), 2, None),
        ("text", None, None),
        (None, None, None),
        (ml.Ragged.from_lists([[1], [2, 3]]), None, None),
    ],
)
def test_shapes_as_numbers(x: Any, ndim: int | None, shape: tuple[int, ...] | None) -> None:
    assert get_ndim(x) == ndim
    assert int_shape(x) == shape


def test_a_length_that_is_not_known_is_minus_one() -> None:
    seen: list[tuple[int, ...] | None] = []

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(int_shape(x))
            return x + 1

    torch.export.export(
        Model(), (torch.zeros(4, 3),), dynamic_shapes={"x": {0: torch.export.Dim("batch")}}, strict=False
    )
    assert (-1, 3) in seen
