"""A training run that is quick to build, to save and to restore, with rows and a weight that tell every step apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import monolith as ml
from monolith.checkpoint import TrainState
from monolith.tables import BlockKind

ROWS = 40


class SmallRun:
    """Has no optimizer of torch's, whose first use imports half of torch."""

    def __init__(self) -> None:
        self.model = nn.Module()
        self.emb = ml.Embeddings({"u": ml.Slot(dim=2)})
        self.model.emb = self.emb
        self.weight = nn.Parameter(torch.zeros(3))
        self.model.weight = self.weight
        self.state = TrainState(model=self.model)

    def step(self) -> None:
        """Changes everything."""
        stamp = self.state.next_stamp(b"%d" % self.state.global_step)
        ids = torch.arange(ROWS) + self.state.global_step
        self.emb({"u": ids}, time=1_700_000_000, stamp=stamp)["u"].sum().backward()
        self.emb.step()
        with torch.no_grad():
            self.weight.add_(1)
        self.state.count_step(stamp)

    def steps(self, count: int) -> None:
        """So many."""
        for _ in range(count):
            self.step()


def contents(run: SmallRun) -> Any:
    """Everything of a run in a form that can be compared with ==."""
    with run.emb.cut() as cut:
        rows = {
            key: (time, payload.tobytes())
            for block in cut.blocks(range(1024), state=True)
            if block.kind is BlockKind.FULL
            for key, time, payload in zip(block.keys.tolist(), block.times.tolist(), block.payload, strict=True)
        }
        stamps = [clock.stamps for clock in cut.applied]
    return run.state.global_step, rows, stamps, run.weight.tolist(), dict(run.state.applied)
