"""Why several tasks in one model: purchases, which few examples report, trained together with clicks and alone.

    python examples/mmoe.py               # one seed, some seconds
    python examples/mmoe.py --seeds 3     # the claim, for every seed

A click depends on how active the user and how popular the item is. A purchase depends on both too, and on the price of
the item. Every impression reports whether the user clicked, but only one in fifty whether the user purchased. With
`MMoE` both tasks read the same rows and experts, each through its own gate, so the purchase task uses what the model
learns from clicks. Expected: an AUC of purchases of 0.74 or more with both tasks, and at least 0.08 less for the same
model trained on purchases only.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch
from torch import Tensor, nn

import monolith as ml

USERS, ITEMS, DIM = 4_000, 2_000, 8
EXAMPLES, TEST_EXAMPLES, BATCH = 300_000, 40_000, 1024
KNOWN_PURCHASES = 0.02
LEAST_AUC, LEAST_GAIN = 0.74, 0.08


class Impressions(NamedTuple):
    """Columns of impressions."""

    ids: dict[str, Tensor]
    click: Tensor
    purchase: Tensor
    is_known: Tensor
    """Whether the purchase was reported."""

    def rows(self, rows: slice) -> Impressions:
        """Return a slice of the impressions."""
        return Impressions({name: ids[rows] for name, ids in self.ids.items()}, *(column[rows] for column in self[1:]))


def make_impressions(seed: int) -> Impressions:
    """Generate impressions: both tasks depend on user and item, and only purchases depend on the price."""
    draw = torch.Generator().manual_seed(seed)
    user = torch.randint(USERS, (EXAMPLES,), generator=draw)
    item = torch.randint(ITEMS, (EXAMPLES,), generator=draw)
    eager, popular = torch.randn(USERS, generator=draw), torch.randn(ITEMS, generator=draw)
    price = torch.randn(ITEMS, generator=draw)[item]
    attraction = eager[user] + popular[item]
    click = torch.bernoulli(torch.sigmoid(attraction), generator=draw)
    purchase = torch.bernoulli(torch.sigmoid(attraction - 0.5 * price), generator=draw)
    is_known = torch.rand(EXAMPLES, generator=draw) < KNOWN_PURCHASES
    return Impressions({"user": user, "item": item}, click, purchase, is_known)


class ClicksAndPurchases(nn.Module):
    """Rows, shared experts with one gate per task, and one logit per task."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        adagrad = ml.row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=1e-8)
        self.embeddings = ml.Embeddings({"user": ml.Slot(DIM), "item": ml.Slot(DIM)}, adagrad, seed=seed)
        self.mmoe = ml.nn.MMoE(2 * DIM, [16], num_tasks=2, num_experts=4, activations="relu")
        self.heads = nn.ModuleList(nn.Linear(16, 1) for _ in range(2))

    def forward(self, ids: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the logits of clicks and of purchases, [B] each."""
        outputs = self.mmoe(self.embeddings(ids).concat())
        click, purchase = (head(output).squeeze(1) for head, output in zip(self.heads, outputs, strict=True))
        return click, purchase


def train(model: ClicksAndPurchases, data: Impressions, *, learns_clicks: bool) -> float:
    """Train for one pass; returns the AUC of purchases on the last impressions, which are not trained on."""
    log_loss, dense_optimizer = nn.BCEWithLogitsLoss(), torch.optim.Adam(model.parameters(), lr=2e-3)
    for start in range(0, EXAMPLES - TEST_EXAMPLES, BATCH):
        batch = data.rows(slice(start, min(start + BATCH, EXAMPLES - TEST_EXAMPLES)))
        click, purchase = model(batch.ids)
        loss = log_loss(purchase[batch.is_known], batch.purchase[batch.is_known])
        if learns_clicks:
            loss = loss + log_loss(click, batch.click)
        dense_optimizer.zero_grad()
        loss.backward()
        dense_optimizer.step()
        model.embeddings.step()
    model.eval()
    unseen = data.rows(slice(EXAMPLES - TEST_EXAMPLES, EXAMPLES))
    metric = ml.metrics.ExactAUC()
    with torch.no_grad():
        metric.update(model(unseen.ids)[1], unseen.purchase)
    return metric.compute()


def compare(seed: int) -> tuple[float, float]:
    """Return the AUC of purchases trained together with clicks, and alone."""
    data = make_impressions(seed)
    together = train(ClicksAndPurchases(seed), data, learns_clicks=True)
    alone = train(ClicksAndPurchases(seed), data, learns_clicks=False)
    print(f"seed {seed}: AUC of purchases {together:.4f} with clicks, {alone:.4f} alone")
    return together, alone


def main() -> None:
    """Compare both models for each seed."""
    parser = argparse.ArgumentParser(description="One model for two tasks against one for a single task.")
    parser.add_argument("--seeds", type=int, default=1)
    for seed in range(parser.parse_args().seeds):
        together, alone = compare(seed)
        assert together >= LEAST_AUC, f"expected an AUC of at least {LEAST_AUC}"
        assert together - alone >= LEAST_GAIN, f"expected clicks to gain at least {LEAST_GAIN}"


if __name__ == "__main__":
    main()
