"""The bytes of a dense state are read back, or refused: a tensor that would end outside of them is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from monolith.errors import DataLossError
from monolith.ps.dense.state_transfer import pack, unpack


def packed(*tensors: dict[str, Any], size: int) -> tuple[torch.Tensor, int]:
    index = json.dumps({"tree": {}, "tensors": tensors}).encode()
    return torch.cat(
        [torch.frombuffer(bytearray(index), dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)]
    ), len(index)


def test_a_state_is_read_back() -> None:
    tree = {"x": torch.arange(3.0), "empty": torch.zeros(0, 2), "step": 7}
    state = pack(tree)
    found = unpack(state.data, state.index_bytes)
    assert found.keys() == tree.keys()
    assert torch.equal(found["x"], torch.arange(3.0))
    assert found["empty"].shape == (0, 2)
    assert found["step"] == 7


@pytest.mark.parametrize("offset", [4, 100])
def test_a_tensor_that_ends_outside_of_the_bytes_is_refused(offset: int) -> None:
    data, index_bytes = packed({"name": "x", "dtype": "float32", "shape": [2], "offset": offset}, size=8)
    with pytest.raises(DataLossError, match=f"a tensor ends at byte {offset + 8} of 8"):
        unpack(data, index_bytes)
