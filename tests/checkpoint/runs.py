"""A small training run with everything in it that a checkpoint has to hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import monolith as ml
from monolith.checkpoint import TrainState
from monolith.checkpoint.state_dicts import model_state
from monolith.tables import BatchStamp, BlockKind, Store
from monolith.tables.history import ALL_BUCKETS, Cut


class Ranker(nn.Module):
    """Tables, a dense tower, a buffer and dropout, which draws from torch's generator."""

    def __init__(self, *, min_count: int = 0) -> None:
        super().__init__()
        self.emb = ml.Embeddings(
            {"user": ml.Slot(4, min_count=min_count), "item": ml.Slot(4)},
            ml.row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=0.1),
        )
        self.tower = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 1))
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: dict[str, Tensor], stamp: BatchStamp | None = None) -> Tensor:
        ids = {"user": batch["user"], "item": batch["item"]}
        looked_up = self.emb(ids, time=int(batch["time"]), stamp=stamp)
        return self.tower(looked_up.concat()).squeeze(-1)  # type: ignore[no-any-return]


class Run:
    """A plain loop over a pure function of the position, as deterministic mode has it."""

    def __init__(self, *, seed: int = 0, min_count: int = 0, id_factor: int = 1) -> None:
        self._id_factor = id_factor
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the global generator is part of the state
        self.model = Ranker(min_count=min_count)
        self.adam = torch.optim.Adam(self.model.tower.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.adam, milestones=[3, 7])
        self.state = TrainState(model=self.model, optimizers={"adam": self.adam}, schedules={"lr": self.schedule})

    def step(self) -> float:
        number = int(self.state.position() or b"0")
        stamp = self.state.next_stamp(b"%d" % (number + 1))
        generator = torch.Generator().manual_seed(number)
        batch = {
            "user": torch.randint(0, 50, (16,), generator=generator) * self._id_factor,
            "item": torch.randint(0, 90, (16,), generator=generator) * self._id_factor,
            "time": torch.tensor(1_700_000_000 + number),
        }
        label = (torch.rand(16, generator=generator) < 0.3).float()
        noise = random.random() + float(np.random.rand())  # noqa: NPY002, S311 - part of the state
        self.model.train()
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(batch, stamp), label) * (1 + 0.1 * noise)
        self.adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.adam.step()
        self.model.emb.step(global_step=self.state.global_step)
        self.schedule.step()
        self.model.seen += 1
        self.state.count_step(stamp)
        return float(loss.detach())

    def steps(self, count: int) -> list[float]:
        return [self.step() for _ in range(count)]


def contents(run: Run) -> dict[str, Any]:
    """Everything of a run in a form that can be compared with ==."""
    with run.model.emb.cut() as cut:
        rows = {
            (block.table, key): (time, payload.tobytes())
            for block in cut.blocks(range(1024), state=True)
            if block.kind is BlockKind.FULL
            for key, time, payload in zip(block.keys.tolist(), block.times.tolist(), block.payload, strict=True)
        }
        stamps = [clock.stamps for clock in cut.applied]
    assert all(each == stamps[0] for each in stamps)
    return {
        "step": run.state.global_step,
        "positions": dict(run.state.positions),
        "applied": dict(run.state.applied),
        "rows": rows,
        "stamps": stamps[0],
        "weights": {
            name: value.tolist() for name, value in model_state(run.model).items() if isinstance(value, Tensor)
        },
        "adam": {
            number: {key: value.tolist() if isinstance(value, Tensor) else value for key, value in values.items()}
            for number, values in run.adam.state_dict()["state"].items()
        },
        "lr": run.adam.param_groups[0]["lr"],
    }


def tables_of(store: Store) -> tuple[Any, ...]:
    """Rows with state and times, counts of admission, stamps: everything that a cut holds."""
    cut = store.cut()
    blocks = blocks_in(cut)
    cut.release()
    stamps = [clock.stamps for clock in cut.applied]
    assert all(each == stamps[0] for each in stamps)
    return stamps[0], blocks


def blocks_in(cut: Cut) -> list[tuple[Any, ...]]:
    """Kind, table, bucket, digest and rows of every block."""
    return sorted(
        (block.kind, block.table, block.bucket, block.digest, *sorted(_rows(block)))
        for block in cut.blocks(ALL_BUCKETS, state=True)
    )


def _rows(block: Any) -> list[Any]:
    if not block.count:
        return [block.payload.tobytes()]
    return list(zip(block.keys.tolist(), block.times.tolist(), map(bytes, block.payload), strict=True))


def whole(run: Run) -> tuple[Any, ...]:
    """Tables, weights and how far a run has come."""
    weights = {name: value.tolist() for name, value in model_state(run.model).items() if isinstance(value, Tensor)}
    return tables_of(run.model.emb.store), weights, run.state.global_step, dict(run.state.applied)
