"""Writes the checkpoint beside it. Run once; kept so that one can see what the files hold.

Usage: python tests/format/checkpoint_v2/make.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import nn

import monolith as ml
from monolith.checkpoint import Saver, TrainState
from monolith.testing import FakeClock


class Model(nn.Module):
    """One table, one layer, one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = ml.Embeddings({"user": ml.Slot(2, initializer=ml.initializers.Zeros())})
        self.tower = nn.Linear(2, 1)
        self.register_buffer("seen", torch.tensor(3))


def state() -> TrainState:
    """An untrained run."""
    model = Model()
    adam = torch.optim.Adam(model.tower.parameters())
    schedule = torch.optim.lr_scheduler.MultiStepLR(adam, milestones=[2, 4])
    return TrainState(model=model, optimizers={"adam": adam}, schedules={"lr": schedule})


if __name__ == "__main__":
    torch.manual_seed(1)
    run = state()
    assert isinstance(run.model, Model)
    for step in range(3):
        stamp = run.next_stamp(b'{"offset":%d}' % (4 * step + 4), event_time_ms=1_700_000_000_000 + step)
        rows = run.model.emb({"user": torch.tensor([1, 7])}, time=1_700_000_000, stamp=stamp)["user"]
        run.model.tower(rows).sum().backward()
        run.optimizers["adam"].step()
        run.model.emb.step(global_step=step)
        run.schedules["lr"].step()  # type: ignore[attr-defined]
        run.count_step(stamp)
    run.positions = {"raw": b"\xff"}
    folder = Path(__file__).parent / "model"
    shutil.rmtree(folder, ignore_errors=True)
    with Saver(folder, clock=FakeClock(now=1_700_000_000.0)) as saver:
        saver.save(run)
