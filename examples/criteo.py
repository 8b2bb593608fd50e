"""Criteo's display ads from your own file: texts straight into rows, read from CSV as training goes, beside hashed ids.

    python examples/criteo.py train.txt             # or any number of files, .gz too: label, 13 numbers, 26 texts
    python examples/criteo.py                       # a small file of the same form is made up

Every batch is predicted before it is learned from, so the AUC is that of data the model has not seen. Once the model
with a row for every id has ended, the same model gets ids hashed into arrays of as much memory.
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
    """Batches in the order of the files: numbers as floats, texts as ids, a missing text is no id."""
    columns = {"label": "float"} | dict.fromkeys(NUMBERS, "float") | dict.fromkeys(TEXTS, "ids")
    return CsvDataset(files, columns, names=["label", *NUMBERS, *TEXTS], delimiter="\t")


class Rows(nn.Module):
    """A row of its own for every text."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = ml.Embeddings({name: ml.Slot(DIM) for name in TEXTS})
        self.optimizer = self.rows.optimizer()

    def forward(self, batch: dict[str, ml.Ragged]) -> Tensor:
        """[B, 26, DIM]."""
        outputs: Tensor = self.rows(batch).stack()
        return outputs


class Hashed(nn.Module):
    """One array for all texts, as large as memory allows: weights and Adagrad's sums."""

    def __init__(self, memory: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(max(1, memory // (8 * DIM)), DIM, mode="sum")
        nn.init.uniform_(self.bag.weight, -0.05, 0.05)
        self.optimizer = torch.optim.Adagrad(self.parameters(), lr=0.05, initial_accumulator_value=1e-8)

    def forward(self, batch: dict[str, ml.Ragged]) -> Tensor:
        """[B, 26, DIM]."""
        columns = [batch[name] for name in TEXTS]
        parts = [self.bag(ids.flat_values % self.bag.num_embeddings, ids.row_splits[:-1]) for ids in columns]
        return torch.stack(parts, 1)


class Head(nn.Module):
    """Pairs of rows, and a network over rows and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Sequential(nn.Linear(len(TEXTS) * DIM + len(NUMBERS), 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, rows: Tensor, numbers: Tensor) -> Tensor:
        """Logits [B]."""
        pairs = (rows.sum(1).square() - rows.square().sum(1)).sum(1) / 2
        logits: Tensor = self.deep(torch.cat([rows.flatten(1), numbers], 1)).squeeze(1) + pairs
        return logits


def numbers_of(batch: dict[str, Tensor]) -> Tensor:
    """[B, 13]: counts grow by powers, and a missing one is 0."""
    numbers = torch.stack([batch[name] for name in NUMBERS], 1).nan_to_num(0.0)
    return numbers.clamp(min=0.0).log1p()


def race(name: str, table: Rows | Hashed, batches: Iterator[dict[str, Tensor]]) -> float:
    """One pass, each batch predicted before it is learned from; returns the AUC."""
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


def make_up(path: Path, lines: int = 20_000) -> Path:
    """Lines of the same form, whose first two texts decide."""
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
    """Race on the files that were given, or on one that is made up."""
    parser = argparse.ArgumentParser(description="Criteo's display ads with a row for every text, and with hashed ids.")
    parser.add_argument("files", nargs="*", type=Path)
    files = parser.parse_args().files
    with tempfile.TemporaryDirectory() as folder:
        data = read(files or [make_up(Path(folder) / "train.txt")])
        own = Rows()
        auc = race("a row for every text", own, iter(data.batch(BATCH)))
        memory = own.rows.store.stats().memory_bytes
        print(f"{own.rows.num_rows:,} rows in {memory / 1e6:.1f} MB")
        race("ids hashed into as much memory", Hashed(memory), iter(data.batch(BATCH)))
    assert auc >= LEAST_AUC, f"expected an AUC of at least {LEAST_AUC}"


if __name__ == "__main__":
    main()
