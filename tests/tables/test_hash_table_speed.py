"""The Python path of a one-id lookup stays thin. The limits are three times what is promised, for busy machines."""

from __future__ import annotations

import timeit

import numpy as np
import pytest
import torch

from monolith.tables import HashTable, Segment, TableConfig


@pytest.mark.parametrize(("kind", "limit_us"), [("numpy", 30.0), ("torch", 90.0)])
def test_one_id_lookup_is_fast(kind: str, limit_us: float) -> None:
    table = HashTable(TableConfig([Segment(16)]))
    ids = np.array([7], np.int64)
    table.assign(ids, np.ones((1, 16), np.float32))
    one = ids if kind == "numpy" else torch.from_numpy(ids)
    best = min(timeit.repeat(lambda: table.lookup(one), number=1000, repeat=7)) / 1000
    assert best * 1e6 < limit_us
