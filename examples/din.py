"""Why attention: DIN against mean pooling, on histories in which only some items are relevant to the candidate.

    python examples/din.py               # one seed, some seconds
    python examples/din.py --seeds 3     # the claim, for every seed

Every user follows a few topics, and clicks on an item depend on the number of items of its topic in the history. The
input has ids of items only, so the model must learn the topics too. Mean pooling mixes all topics of a user into one
vector that is the same for every candidate. DIN weights each item of the history by its relevance to the candidate.
Expected: an AUC of 0.80 or more with DIN (the true probabilities have 0.89), and at least 0.04 less with the mean.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import monolith as ml

TOPICS, ITEMS_PER_TOPIC, TOPICS_PER_USER = 20, 10, 3
LONGEST, DIM = 12, 8
EXAMPLES, TEST_EXAMPLES, BATCH = 160_000, 20_000, 512
LEAST_AUC, LEAST_GAIN = 0.80, 0.04

Batches = list[tuple[dict[str, Tensor | ml.Ragged], Tensor]]


def make_clicks(seed: int) -> tuple[Batches, float]:
    """Generate batches of (candidate, history) and clicks; also returns the AUC of the true probabilities."""
    draw = torch.Generator().manual_seed(seed)
    followed = torch.randint(TOPICS, (EXAMPLES, TOPICS_PER_USER), generator=draw)
    steps = torch.randint(TOPICS_PER_USER, (EXAMPLES, LONGEST), generator=draw)
    history_topic = followed.gather(1, steps)
    of_interest = torch.rand(EXAMPLES, generator=draw) < 0.5  # the others are candidates of any topic
    topic = torch.where(of_interest, followed[:, 0], torch.randint(TOPICS, (EXAMPLES,), generator=draw))
    length = torch.randint(LONGEST // 2, LONGEST + 1, (EXAMPLES,), generator=draw)
    is_step = torch.arange(LONGEST) < length[:, None]
    matches = (is_step & (history_topic == topic[:, None])).sum(1)
    logits = 1.2 * matches.clamp_max(4) - 2.0
    clicks = torch.bernoulli(torch.sigmoid(logits), generator=draw)
    candidate = item_of(topic, draw)
    history = item_of(history_topic, draw)
    batches: Batches = []
    for start in range(0, EXAMPLES, BATCH):
        rows = slice(start, start + BATCH)
        ragged = ml.Ragged.from_lengths(history[rows][is_step[rows]], length[rows])
        batches.append(({"candidate": candidate[rows], "history": ragged}, clicks[rows]))
    return batches, auc(logits, clicks)


def item_of(topic: Tensor, draw: torch.Generator) -> Tensor:
    """Return the id of a random item of each topic; neighbouring ids have different topics."""
    return topic + TOPICS * torch.randint(ITEMS_PER_TOPIC, topic.shape, generator=draw)


class MeanPooling(nn.Module):
    """Pools a history to the mean of its items, independently of the candidate."""

    combiner = ml.nn.ReduceMean()

    def forward(self, x: ml.nn.EmbeddingOutputs, _history: ml.Ragged) -> Tensor:
        """Return the pooled history [B, DIM]."""
        return x["history"]


class Attention(nn.Module):
    """Pools a history with attention to the candidate."""

    combiner = ml.nn.FirstN(LONGEST)

    def __init__(self) -> None:
        super().__init__()
        self.din = ml.nn.DIN(DIM, [16, 1])

    def forward(self, x: ml.nn.EmbeddingOutputs, history: ml.Ragged) -> Tensor:
        """Return the pooled history [B, DIM]."""
        interest: Tensor = self.din(x["candidate"], x["history"], history.mask(LONGEST))
        return interest


class ClickModel(nn.Module):
    """A tower over the candidate and the pooled history."""

    def __init__(self, pooling: MeanPooling | Attention, seed: int) -> None:
        super().__init__()
        adagrad = ml.row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=1e-8)
        slots = {"candidate": ml.Slot(DIM), "history": ml.Slot(shares="candidate", combiner=pooling.combiner)}
        self.embeddings = ml.Embeddings(slots, adagrad, seed=seed)
        self.pooling = pooling
        self.tower = ml.nn.MLP(2 * DIM, [32, 16, 1])

    def forward(self, batch: dict[str, Tensor | ml.Ragged]) -> Tensor:
        """Return logits [B]."""
        x = self.embeddings(batch)
        interest = self.pooling(x, batch["history"])
        logits: Tensor = self.tower(torch.cat([x["candidate"], interest], dim=1))
        return logits.squeeze(1)


def train(model: ClickModel, batches: Batches) -> float:
    """Train for one pass; returns the AUC on the last batches, which are not trained on."""
    num_test = TEST_EXAMPLES // BATCH
    log_loss, dense_optimizer = nn.BCEWithLogitsLoss(), torch.optim.Adam(model.parameters(), lr=2e-3)
    for batch, clicks in batches[:-num_test]:
        loss = log_loss(model(batch), clicks)
        dense_optimizer.zero_grad()
        loss.backward()
        dense_optimizer.step()
        model.embeddings.step()
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(batch) for batch, _ in batches[-num_test:]])
    return auc(logits, torch.cat([clicks for _, clicks in batches[-num_test:]]))


def auc(scores: Tensor, clicks: Tensor) -> float:
    """Return the share of (click, no click) pairs in the right order."""
    metric = ml.metrics.ExactAUC()
    metric.update(scores, clicks)
    return metric.compute()


def compare(seed: int) -> tuple[float, float]:
    """Return the AUC with DIN and with mean pooling."""
    batches, best_auc = make_clicks(seed)
    torch.manual_seed(seed)
    din_auc, mean_auc = (train(ClickModel(pooling, seed), batches) for pooling in (Attention(), MeanPooling()))
    print(f"seed {seed}: AUC {din_auc:.4f} with DIN, {mean_auc:.4f} with the mean of the history"
          f" (true probabilities: {best_auc:.4f})")  # fmt: skip
    return din_auc, mean_auc


def main() -> None:
    """Compare both models for each seed."""
    parser = argparse.ArgumentParser(description="DIN against mean pooling.")
    parser.add_argument("--seeds", type=int, default=1)
    for seed in range(parser.parse_args().seeds):
        din_auc, mean_auc = compare(seed)
        assert din_auc >= LEAST_AUC, f"expected an AUC of at least {LEAST_AUC}"
        assert din_auc - mean_auc >= LEAST_GAIN, f"expected DIN to gain at least {LEAST_GAIN}"


if __name__ == "__main__":
    main()
