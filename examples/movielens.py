"""Train on MovieLens with one embedding row per id; compare with plain torch, hashed ids and frozen models.

    python examples/movielens.py FOLDER     # ml-100k, ml-latest-small, ml-25m, ...
    python examples/movielens.py            # on a small generated folder

A rating of 4 or more is a like. The AUC is that of the last fifth in time, during which online models continue to
train. Plain torch needs ids that are numbered in advance, or hashed. benchmarks/RESULTS.md has the results.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import monolith as ml
from monolith.data import from_pandas

DIMS = {"user": 16, "item": 16, "genres": 8, "age": 8, "occupation": 8}
BATCH, TEST_SHARE, LEAST_AUC = 256, 0.2, 0.6

Batch = dict[str, ml.Ragged]  # int64 values
Batches = list[tuple[Batch, Tensor]]


def read_folder(folder: Path) -> Batches:
    """Read batches of ids and likes, oldest first; numbers are ids, and texts are hashed to ids."""
    ratings = ["user", "item", "rating", "time"]
    if (folder / "u.data").exists():
        frame = pd.read_csv(folder / "u.data", sep="\t", names=ratings)
        users = pd.read_csv(folder / "u.user", sep="|", names=["user", "age", "gender", "occupation", "zip"])
        names = pd.read_csv(folder / "u.genre", sep="|", header=None)[0].to_numpy()
        movies = pd.read_csv(folder / "u.item", sep="|", header=None, encoding="latin-1")
        items = pd.DataFrame({"item": movies[0], "genres": [list(names[row == 1]) for row in movies.to_numpy()[:, 5:]]})
    else:
        frame = pd.read_csv(folder / "ratings.csv", names=ratings, header=0)
        users = pd.DataFrame({"user": frame["user"].unique(), "age": None, "occupation": None})
        items = pd.read_csv(folder / "movies.csv", names=["item", "title", "genres"], header=0)
        items["genres"] = items["genres"].str.split("|")
    joined = frame.merge(users, on="user").merge(items, on="item").sort_values("time", kind="stable")
    joined["liked"] = (joined["rating"] >= 4).astype(np.float32)
    read = from_pandas(joined, dict.fromkeys(DIMS, "ids") | {"liked": "float"}, block_rows=BATCH)
    return [({name: cast("ml.Ragged", batch[name]) for name in DIMS}, cast("Tensor", batch["liked"])) for batch in read]


class Rows(nn.Module):
    """Embeddings with one row per id; they need no list of ids in advance."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = ml.Embeddings({name: ml.Slot(dim, combiner="mean") for name, dim in DIMS.items()})
        self.optimizer = self.rows.optimizer()

    def forward(self, batch: Batch) -> Tensor:
        """Return the concatenated embeddings [B, sum of dims]."""
        return cast("Tensor", self.rows(batch).concat())


class Arrays(nn.Module):
    """Arrays with a fixed number of rows, as in plain torch, trained by Adagrad with the settings of `Rows`."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__()
        self.bags = nn.ModuleDict({name: nn.EmbeddingBag(sizes[name], dim, mode="mean") for name, dim in DIMS.items()})
        for weights in self.parameters():
            nn.init.uniform_(weights, -0.05, 0.05)
        self.optimizer = torch.optim.Adagrad(self.parameters(), lr=0.05, initial_accumulator_value=1e-8)

    def forward(self, batch: Batch) -> Tensor:
        """Return the concatenated embeddings [B, sum of dims]."""
        bags = self.bags.items()
        return torch.cat([bag(batch[name].flat_values, batch[name].row_splits[:-1]) for name, bag in bags], 1)


def train(name: str, table: Rows | Arrays, batches: Batches, *, online: bool) -> float:
    """Train and return the AUC of the last batches; each is predicted before the step on it, if there is one."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(sum(DIMS.values()), 32), nn.ReLU(), nn.Linear(32, 1))
    log_loss, optimizers = nn.BCEWithLogitsLoss(), [torch.optim.Adam(head.parameters(), lr=1e-3), table.optimizer]
    metric, begun, first_test = ml.metrics.ExactAUC(), time.perf_counter(), int(len(batches) * (1 - TEST_SHARE))
    for number, (batch, liked) in enumerate(batches):
        learns = online or number < first_test
        with torch.set_grad_enabled(learns):
            logits = head(table(batch)).squeeze(1)
        if number >= first_test:
            metric.update(logits.detach().sigmoid(), liked)
        if learns:
            log_loss(logits, liked).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    seconds = time.perf_counter() - begun
    print(f"AUC {metric.compute():.4f}  {seconds:5.1f} s  {'online' if online else 'frozen'}, {name}")
    return metric.compute()


def with_small_ids(batches: Batches, sizes: dict[str, int], vocabulary: dict[str, Tensor] | None = None) -> Batches:
    """Map ids to [0, size) of their column: to their positions in a vocabulary, or by a hash."""

    def small(name: str, ids: ml.Ragged) -> ml.Ragged:
        values = ids.flat_values
        if vocabulary is None:
            return ids.with_values(values * -7046029254386353131 % sizes[name])
        return ids.with_values(torch.searchsorted(vocabulary[name], values))

    return [({name: small(name, ids) for name, ids in batch.items()}, liked) for batch, liked in batches]


def write_sample(folder: Path) -> Path:
    """Write a folder in the format of ml-latest-small, in which users have tastes for genres."""
    draw, genres, num = np.random.default_rng(0), np.array(["Action", "Comedy", "Drama", "Horror"]), 20_000
    of_item, taste = draw.integers(0, 4, 400), draw.normal(0, 2, (300, 4))
    user, item = draw.integers(0, 300, num), draw.zipf(1.3, num) % 400
    rating = np.where(draw.random(num) < 1 / (1 + np.exp(-taste[user, of_item[item]])), 4.5, 2.0)
    pd.DataFrame([user, item, rating, np.arange(num)]).T.to_csv(folder / "ratings.csv", index=False)
    pd.DataFrame([range(400), [""] * 400, genres[of_item]]).T.to_csv(folder / "movies.csv", index=False)
    return folder


def main() -> None:
    """Train all models on the given folder, or on a generated one."""
    parser = argparse.ArgumentParser(description="MovieLens with a row for every id, and without.")
    parser.add_argument("folder", nargs="?", type=Path)
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as made:
        batches = read_folder(folder or write_sample(Path(made)))
    own = Rows()
    auc = train("a row for every id", own, batches, online=True)
    train("a row for every id", Rows(), batches, online=False)
    vocabulary = {name: torch.unique(torch.cat([batch[name].flat_values for batch, _ in batches])) for name in DIMS}
    sizes = {name: max(1, len(ids)) for name, ids in vocabulary.items()}
    for online in (True, False):
        numbered = with_small_ids(batches, sizes, vocabulary)
        train("plain torch, ids numbered in advance", Arrays(sizes), numbered, online=online)
    memory = own.rows.store.stats().memory_bytes  # with the index; an array has only weights and Adagrad sums
    sizes = {name: max(1, memory // len(DIMS) // (8 * dim)) for name, dim in DIMS.items()}
    train("plain torch, ids hashed into as much memory", Arrays(sizes), with_small_ids(batches, sizes), online=True)
    assert auc >= LEAST_AUC, f"expected an AUC of at least {LEAST_AUC}"


if __name__ == "__main__":
    main()
