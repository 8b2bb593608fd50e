"""Rows that operators keep come back as they were, from batches on any device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from monolith.data import Batch
from monolith.data.operators.row_store import RowStore
from monolith.tensors import Ragged


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
    ],
)
def test_rows_are_stored_on_the_cpu_with_their_types(device: str) -> None:
    tags = Ragged.from_lists([[1, 2], [], [3]]).to(device)
    price = torch.tensor([[0.5], [1.5], [2.5]], device=device)
    store = RowStore(["tags", "price"])
    rows = store.append(Batch({"tags": tags, "price": price}, num_rows=3))
    assert rows.tolist() == [0, 1, 2]
    found = store.take(np.array([2, 0]))
    assert found["tags"].to_lists() == [[3], [1, 2]]  # type: ignore[union-attr]
    assert found["tags"].dtype == torch.int64  # type: ignore[union-attr]
    assert found["price"].tolist() == [[2.5], [0.5]]  # type: ignore[union-attr]
