"""Why every id should have its own row: a click model on generated traffic, with and without hash collisions.

    python examples/deepfm.py               # one seed, some seconds
    python examples/deepfm.py --seeds 5     # the claim: collisions cost at least 0.01 AUC for every seed

Half of the traffic comes from visitors that never return. The first model stores one row per id, and admits a user at
the second visit (`min_count`), so visitors take no memory. The second model hashes all ids into an array of the same
memory, as recommenders without such tables do; there, regular users share rows with visitors. Expected: an AUC of 0.74
or more with one row per id, and at least 0.01 less with hashed ids.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch
from torch import Tensor, nn

import monolith as ml

REGULARS, ITEMS, CATEGORIES = 4_000, 4_000, 20
EXAMPLES, BATCH, TEST_BATCHES = 600_000, 2048, 40
DIM = 8
BYTES_PER_ROW = 2 * 4 * (1 + DIM)  # of an array: weights and Adagrad sums, without keys and index
LEAST_AUC, LEAST_LOSS = 0.74, 0.01

Batches = list[tuple[dict[str, Tensor], Tensor]]


class Traffic(NamedTuple):
    """Impressions and their clicks, oldest first."""

    ids: dict[str, Tensor]
    clicks: Tensor


def mix(numbers: Tensor) -> Tensor:
    """Map each number to 48 pseudorandom bits, since ids of real traffic are not counted from 0."""
    z = (numbers + 1) * -7046029254386353131
    z = (z ^ ((z >> 30) & (2**34 - 1))) * -4658895280553007687
    return (z ^ (z >> 27)) & (2**48 - 1)


def make_traffic(seed: int) -> Traffic:
    """Generate clicks that depend on the user, on the item, and on the user's taste for the item's category."""
    draw = torch.Generator().manual_seed(seed)
    eager, popular = torch.randn(REGULARS, generator=draw), torch.randn(ITEMS, generator=draw)
    taste, flavour = torch.randn(REGULARS, 2, generator=draw), torch.randn(CATEGORIES, 2, generator=draw)
    category_of = torch.randint(CATEGORIES, (ITEMS,), generator=draw)
    user = torch.randint(REGULARS, (EXAMPLES,), generator=draw)
    item = torch.randint(ITEMS, (EXAMPLES,), generator=draw)
    category = category_of[item]
    is_visitor = torch.rand(EXAMPLES, generator=draw) < 0.5
    of_user = torch.where(is_visitor, 0.0, 1.5 * eager[user] + 1.2 * (taste[user] * flavour[category]).sum(1))
    clicks = torch.bernoulli(torch.sigmoid(of_user + 0.7 * popular[item] - 1.0), generator=draw)
    user = torch.where(is_visitor, REGULARS + torch.arange(EXAMPLES), user)  # every visitor has a new number
    return Traffic({"user": mix(user), "item": mix(item), "category": mix(category)}, clicks)


def hashed(traffic: Traffic, num_rows: int) -> Traffic:
    """Return the traffic with the ids of all slots hashed into ``num_rows`` rows."""
    ids = {name: mix(3 * ids + number) % num_rows for number, (name, ids) in enumerate(traffic.ids.items())}
    return Traffic(ids, traffic.clicks)


class DeepFM(nn.Module):
    """First-order terms, pairwise products, and a network, all over the same rows."""

    def __init__(self, slots: dict[str, ml.Slot], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        adagrad = ml.row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=1e-8)
        admission = ml.filters.SlidingHashFilter(capacity=300_000)
        self.embeddings = ml.Embeddings(slots, adagrad, seed=seed, admission=admission)
        self.deep = nn.Sequential(nn.Linear(len(slots) * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return logits [B]."""
        rows = self.embeddings(batch).stack()  # [B, slots, 1 + DIM]
        bias, vectors = rows[..., 0], rows[..., 1:]
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        logits: Tensor = bias.sum(1) + pairs + self.deep(vectors.flatten(1)).squeeze(1)
        return logits


def batches_of(traffic: Traffic) -> Batches:
    """Split traffic into batches: ids [B] by slot, and clicks [B]."""
    return [
        ({name: ids[i : i + BATCH] for name, ids in traffic.ids.items()}, traffic.clicks[i : i + BATCH])
        for i in range(0, EXAMPLES, BATCH)
    ]


def train(model: DeepFM, data: Batches) -> float:
    """Train for one pass; returns the AUC on the last batches, which are not trained on."""
    log_loss, dense_optimizer = nn.BCEWithLogitsLoss(), torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch, clicks in data[:-TEST_BATCHES]:
        loss = log_loss(model(batch), clicks)
        dense_optimizer.zero_grad()
        loss.backward()
        dense_optimizer.step()
        model.embeddings.step()
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(batch) for batch, _ in data[-TEST_BATCHES:]])
    return auc(scores, torch.cat([clicks for _, clicks in data[-TEST_BATCHES:]]))


def auc(scores: Tensor, clicks: Tensor) -> float:
    """Return the share of (click, no click) pairs that the scores put in the right order."""
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    clicked = clicks.double().sum()
    return float((ranks[clicks > 0].sum() - clicked * (clicked + 1) / 2) / (clicked * (len(clicks) - clicked)))


def compare(seed: int) -> tuple[float, float]:
    """Return the AUC with one row per returning id, and with hashed ids in as much memory."""
    traffic = make_traffic(seed)
    row = [ml.Slice(1, initializer=ml.initializers.Zeros()), ml.Slice(DIM)]
    slot = ml.Slot(slices=row)
    own = DeepFM({"user": ml.Slot(slices=row, min_count=1), "item": slot, "category": slot}, seed)
    own_auc = train(own, batches_of(traffic))
    memory = own.embeddings.store.stats().memory_bytes  # rows, index and admission filter
    num_rows = memory // BYTES_PER_ROW
    same = ml.Slot(shares="user")
    hashed_auc = train(
        DeepFM({"user": slot, "item": same, "category": same}, seed), batches_of(hashed(traffic, num_rows))
    )
    print(f"seed {seed}: AUC {own_auc:.4f} with {own.embeddings.num_rows:,} rows of their own,"
          f" {hashed_auc:.4f} with ids hashed into {num_rows:,} rows ({memory / 1e6:.1f} MB each)")  # fmt: skip
    return own_auc, hashed_auc


def main() -> None:
    """Compare both models for each seed."""
    parser = argparse.ArgumentParser(description="A click model with and without collisions.")
    parser.add_argument("--seeds", type=int, default=1)
    for seed in range(parser.parse_args().seeds):
        own_auc, hashed_auc = compare(seed)
        assert own_auc >= LEAST_AUC, f"expected an AUC of at least {LEAST_AUC}"
        assert own_auc - hashed_auc >= LEAST_LOSS, f"expected collisions to cost at least {LEAST_LOSS}"


if __name__ == "__main__":
    main()
