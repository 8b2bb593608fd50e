"""A checkpoint holds the rows that a run has, also those that have expired and were not removed yet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import monolith as ml
from monolith.checkpoint import Saver, TrainState

pytestmark = pytest.mark.usefixtures("on_every_store")


def make_model() -> ml.Embeddings:
    return ml.Embeddings({"user": ml.Slot(2, expire_days=1)}, evict_every_seconds=0)


def test_a_resumed_run_has_every_row_of_one_that_was_not_killed(tmp_path: Path) -> None:
    model = make_model()
    for users, time in (([1, 2, 3], 1_000), ([9], 1_000 + 3 * 86_400)):
        model({"user": torch.tensor(users)}, time=time)["user"].sum().backward()
        model.step()
    resumed = make_model()
    with Saver(tmp_path) as saver:
        saver.save(TrainState(model=model), background=False)
        saver.restore(TrainState(model=resumed))
    every_id = torch.tensor([1, 2, 3, 9])
    assert resumed.num_rows == model.num_rows == 4
    assert torch.equal(resumed.lookup("user", every_id), model.lookup("user", every_id))
    assert resumed.evict() == model.evict() == 3
