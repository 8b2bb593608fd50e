"""Train on Criteo's display ads read from CSV, with one embedding row per text, and compare with hashed ids.

    python examples/criteo.py train.txt             # one or more files, also .gz: label, 13 numbers, 26 texts
    python examples/criteo.py                       # on a small generated file of the same format

The model predicts every batch before it trains on it, so the AUC is that of unseen data. The second run trains the same
model with ids hashed into an array that takes as much memory as the rows of the first run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

import monolith as ml
from monolith.data import CsvDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBERS = [f"I{place}" for place in range(1, 14)]
TEXTS = [f"C{place}" for place in range(1, 27)]
BATCH, DIM, LEAST_AUC = 2048, 8, 0.6


def read(files: list[Path]) -> CsvDataset:
    """Read batches in the order of the files: numbers as floats, texts as ids; a missing text has no id."""
    columns = {"label": "float"} | dict.fromkeys(NUMBERS, "float") | dict.fromkeys(TEXTS, "ids")
    return CsvDataset(files, columns, names=["label", *NUMBERS, *TEXTS], delimiter="\t")


class Rows(nn.Module):
    """Embeddings with one row per text."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = ml.Embeddings({name: ml.Slot(DIM) for name in TEXTS})
        self.optimizer = self.rows.optimizer()

    def forward(self, batch: dict[str, ml.Ragged]) -> Tensor:
        """Return the embeddings of all texts [B, 26, DIM]."""
        outputs: Tensor = self.rows(batch).stack()
        return outputs


class Hashed(nn.Module):
    """One array for all texts, whose weights and Adagrad sums take ``memory`` bytes."""

    def __init__(self, memory: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(max(1, memory // (8 * DIM)), DIM, mode="sum")
        nn.init.uniform_(self.bag.weight, -0.05, 0.05)
        self.optimizer = torch.optim.Adagrad(self.parameters(), lr=0.05, initial_accumulator_value=1e-8)

    def forward(self, batch: dict[str, ml.Ragged]) -> Tensor:
        """Return the embeddings of all texts [B, 26, DIM]."""
        columns = [batch[name] for name in TEXTS]
        parts = [self.bag(ids.flat_values % self.bag.num_embeddings, ids.row_splits[:-1]) for ids in columns]
        return torch.stack(parts, 1)


class Head(nn.Module):
    """Pairwise products of rows (FM), and a network over rows and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Sequential(nn.Linear(len(TEXTS) * DIM + len(NUMBERS), 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, rows: Tensor, numbers: Tensor) -> Tensor:
        """Return logits [B]."""
        pairs = (rows.sum(1).square() - rows.square().sum(1)).sum(1) / 2
        logits: Tensor = self.deep(torch.cat([rows.flatten(1), numbers], 1)).squeeze(1) + pairs
        return logits


def numbers_of(batch: dict[str, Tensor]) -> Tensor:
    """Return log(1 + count) of all number columns [B, 13]; a missing count is 0."""
    numbers = torch.stack([batch[name] for name in NUMBERS], 1).nan_to_num(0.0)
    return numbers.clamp(min=0.0).log1p()


def train(name: str, table: Rows | Hashed, batches: Iterator[dict[str, Tensor]]) -> float:
    """Train for one pass, predict each batch before the step on it, and return the AUC."""
    torch.manual_seed(0)
    head = Head()
    log_loss, optimizers = nn.BCEWithLogitsLoss(), [torch.optim.Adam(head.parameters(), lr=1e-3), table.optimizer]
    metric, examples, begun = ml.metrics.ExactAUC(), 0, time.perf_counter()
    for batch in batches:
        logits = head(table(batch), numbers_of(batch))
        metric.update(logits.detach().sigmoid(), batch["label"])
        log_loss(logits, batch["label"]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        examples += len(logits)
    seconds = time.perf_counter() - begun
    print(f"AUC {metric.compute():.4f}  {examples / seconds:8,.0f} examples/s  {name}")
    return metric.compute()


def write_sample(path: Path, lines: int = 20_000) -> Path:
    """Write lines of the same format, in which clicks depend on the first two texts."""
    draw = np.random.default_rng(0)
    texts = draw.zipf(1.2, (lines, 26)) % ([200] * 2 + [50] * 24)
    leaning = draw.normal(0, 3, (2, 200))
    clicks = draw.random(lines) < 1 / (1 + np.exp(-(leaning[0, texts[:, 0]] + leaning[1, texts[:, 1]])))
    numbers = draw.poisson(3, (lines, 13))
    with path.open("w") as file:
        for label, counts, words in zip(clicks, numbers, texts, strict=True):
            cells = [str(int(label)), *map(str, counts), *(f"{word * 2654435761 % 2**32:08x}" for word in words)]
            file.write("\t".join(cells) + "\n")
    return path


def main() -> None:
    """Train both models on the given files, or on a generated one."""
    parser = argparse.ArgumentParser(description="Criteo's display ads with a row for every text, and with hashed ids.")
    parser.add_argument("files", nargs="*", type=Path)
    files = parser.parse_args().files
    with tempfile.TemporaryDirectory() as folder:
        data = read(files or [write_sample(Path(folder) / "train.txt")])
        own = Rows()
        auc = train("a row for every text", own, iter(data.batch(BATCH)))
        memory = own.rows.store.stats().memory_bytes
        print(f"{own.rows.num_rows:,} rows in {memory / 1e6:.1f} MB")
        train("ids hashed into as much memory", Hashed(memory), iter(data.batch(BATCH)))
    assert auc >= LEAST_AUC, f"expected an AUC of at least {LEAST_AUC}"


if __name__ == "__main__":
    main()
