from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from monolith.errors import NotFoundError
from monolith.observe.summaries import nas_weight_json


def test_values_of_the_first_name_that_contains_the_prefix_are_texts() -> None:
    tensors = {
        "tower/kernel": torch.zeros(3),
        "scope/arch_tensor_0": torch.tensor([[0.5, -1.0], [0.1, 2.0]]),
        "arch_tensor_1": torch.ones(1),
    }
    values = nas_weight_json(tensors, "arch_tensor")
    assert values == ["0.5", "-1.0", "0.1", "2.0"]
    assert json.loads(json.dumps(values)) == values


def test_arrays_parameters_and_other_types_are_read() -> None:
    assert nas_weight_json({"a": np.array([1, -(2**63)])}, "a") == ["1", "-9223372036854775808"]
    assert nas_weight_json({"a": torch.nn.Parameter(torch.tensor([0.25]))}, "a") == ["0.25"]
    assert nas_weight_json({"a": torch.tensor([0.25], dtype=torch.bfloat16)}, "a") == ["0.25"]
    assert nas_weight_json({"a": torch.arange(6).reshape(2, 3).t()}, "a") == ["0", "3", "1", "4", "2", "5"]
    assert nas_weight_json({"a": torch.empty(0)}, "a") == []


@pytest.mark.parametrize("prefix", [None, ""])
def test_there_is_no_default_prefix(prefix: str | None) -> None:
    with pytest.raises(
        ValueError, match=r"prefix must be given.*ARCH_TENSOR_PREFIX of ByteDance Monolith is defined nowhere"
    ):
        nas_weight_json({"a": torch.ones(1)}, prefix)


def test_not_found_lists_the_names() -> None:
    with pytest.raises(NotFoundError, match=r"no tensor name contains 'arch'; names are: 'b', 'a'"):
        nas_weight_json({"b": torch.ones(1), "a": torch.ones(1)}, "arch")
    with pytest.raises(NotFoundError, match="names are: none"):
        nas_weight_json({}, "arch")
