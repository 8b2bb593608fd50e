"""A plain loop whose tables are in the memory of a GPU, next to the same loop with tables in main memory.

    python examples/gpu_tables.py                  # on the GPU; without one, its kernels run on the processor
    python examples/gpu_tables.py --device cuda:1

Only the store of the rows and the device of the network differ. Takes some seconds. Expected: both runs reach a log
loss below that of the click rate by 0.08 or more, and their losses differ by at most 0.005: for equal gradients rows
are equal bit for bit, but networks on a CPU and on a GPU round differently. On the processor the losses are equal.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

import monolith as ml
from monolith.tables import CudaStore, LocalStore

USERS, ITEMS, TAGS = 300, 100, 30
STEPS, BATCH, LAST = 100, 512, 20
DIM = 8
LEAST_GAIN, MOST_DIFFERENCE = 0.08, 0.005


class Outcome(NamedTuple):
    """What a run has learned."""

    loss: float
    gain: float
    rows: int


class DeepFM(nn.Module):
    """First-order terms, pairwise products, and a network, all over the same rows."""

    def __init__(self, store: type[LocalStore] | partial[CudaStore]) -> None:
        super().__init__()
        torch.manual_seed(0)
        slots = {name: ml.Slot(1 + DIM, combiner="mean") for name in ("user", "item", "tags")}
        adagrad = ml.row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=1e-8)
        self.embeddings = ml.Embeddings(slots, adagrad, store=store)
        self.deep = nn.Sequential(nn.Linear(len(slots) * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return logits [B]."""
        rows = self.embeddings(batch).stack()  # [B, slots, 1 + DIM], on the device of the network
        bias, vectors = rows[..., 0], rows[..., 1:]
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        logits: Tensor = bias.sum(1) + pairs + self.deep(vectors.flatten(1)).squeeze(1)
        return logits


class Traffic:
    """Batches of ids and clicks, the same for every run."""

    def __init__(self) -> None:
        self.draw = torch.Generator().manual_seed(1)
        self.eager, self.popular = (torch.randn(count, generator=self.draw) for count in (USERS, ITEMS))

    def batch(self) -> tuple[dict[str, Tensor], Tensor]:
        """Return ids by slot, any 64-bit numbers, and clicks [B]; ids stay in main memory."""
        user, item = (torch.randint(count, (BATCH,), generator=self.draw) for count in (USERS, ITEMS))
        tags = torch.randint(TAGS, (BATCH, 3), generator=self.draw)
        clicks = torch.bernoulli(torch.sigmoid(self.eager[user] + self.popular[item] - 1), generator=self.draw)
        return {"user": user * -7046029254386353131, "item": item + 2**60, "tags": tags}, clicks


def train(device: torch.device, store: type[LocalStore] | partial[CudaStore]) -> Outcome:
    """Train on every batch once; returns the mean loss of the last batches, each before it was learned."""
    model, traffic = DeepFM(store).to(device), Traffic()
    optimizers = [torch.optim.Adam(model.deep.parameters(), lr=1e-3), model.embeddings.optimizer()]
    log_loss, losses, clicked = nn.BCEWithLogitsLoss(), [], []
    for _ in range(STEPS):
        batch, clicks = traffic.batch()
        loss = log_loss(model(batch), clicks.to(device))
        loss.backward()  # gradients of rows stay on the device of the rows
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        clicked.append(clicks.mean())
    rate = torch.stack(clicked).mean()
    of_the_rate = -float(rate * rate.log() + (1 - rate) * (1 - rate).log())
    last = float(torch.stack(losses[-LAST:]).mean())
    return Outcome(last, of_the_rate - last, model.embeddings.num_rows)


def main() -> None:
    """Train with tables in main memory, then with tables on the device."""
    parser = argparse.ArgumentParser(description="Tables in the memory of a GPU.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    if device.type == "cpu":
        print("no GPU: the kernels of the tables run on the processor, which is slow and shows the results only")
    host = train(torch.device("cpu"), LocalStore)
    there = train(device, partial(CudaStore, device=device))  # of a GPU: what Embeddings(slots, device="cuda") makes
    for place, outcome in (("main memory", host), (str(device), there)):
        print(f"tables in {place}: loss {outcome.loss:.4f}, {outcome.gain:.4f} below the click rate's,"
              f" {outcome.rows:,} rows")  # fmt: skip
    assert min(host.gain, there.gain) >= LEAST_GAIN, f"expected both to gain at least {LEAST_GAIN}"
    assert abs(host.loss - there.loss) <= MOST_DIFFERENCE, f"expected losses within {MOST_DIFFERENCE} of each other"
    assert host.rows == there.rows, "expected a row for every id, wherever rows are"


if __name__ == "__main__":
    main()
