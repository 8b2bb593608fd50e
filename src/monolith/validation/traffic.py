"""Examples in the order of time with a model for them: generated, or from files of the user."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from monolith.data.batch import Batch
from monolith.data.clicks import ClickStream
from monolith.data.sources.csv_dataset import CsvDataset
from monolith.data.sources.in_memory import InMemoryDataset
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.validation.hashed_ids import HashedIds
from monolith.validation.ranker import Ranker

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from monolith.data.click_world import ClickWorld
    from monolith.data.dataset import Dataset

__all__ = ["Traffic", "clicks", "criteo", "movielens"]

DAY = 86_400
CRITEO_NUMBERS = tuple(f"I{place}" for place in range(1, 14))
CRITEO_TEXTS = tuple(f"C{place}" for place in range(1, 27))
_CRITEO_SECONDS = 7 * DAY
_CRITEO_BEGIN = 1_400_000_000
"""The files have no times; they cover seven days, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Examples that can be iterated any number of times."""

    batches: Iterable[Batch]
    ranker: Ranker
    """Model for their columns."""
    seconds: int
    """Event time from the first example to the last, in seconds."""

    def hashed(self, rows: int) -> Traffic:
        """Returns the same examples with all ids hashed into `rows` rows, and a model whose columns share them."""
        ranker = replace(self.ranker, shared=True, min_counts={}, expire_days={})
        return replace(self, batches=_Mapped(self.batches, HashedIds(columns=ranker.ids, rows=rows)), ranker=ranker)


def clicks(world: ClickWorld, *, days: int = 7, batch_size: int = 500, seed: int = 0) -> Traffic:
    """Generates clicks over several days, with users and items that appear and disappear, and drifting tastes."""
    count = days * world.examples_per_day
    return Traffic(
        batches=ClickStream(count, batch_size=batch_size, seed=seed, world=world),
        ranker=Ranker(ids=["user", "item", "tags", "context"], seed=seed),
        seconds=days * DAY,
    )


def movielens(folder: str | os.PathLike[str], *, liked_from: float = 4.0, batch_size: int = 256) -> Traffic:
    """Reads the ratings of a MovieLens folder, oldest first; needs `monolith-torch[csv]`.

    Args:
        folder: Folder with ``u.data`` (ml-100k) or ``ratings.csv`` (ml-latest-small, ml-25m and others).
        liked_from: Minimum rating that counts as a click.
        batch_size: Number of examples in a batch.

    Raises:
        NotFoundError: neither file exists.
    """
    place = Path(folder)
    columns = {"user": "int", "item": "int", "rating": "float", "time": "int"}
    if (place / "u.data").exists():
        read = CsvDataset(place / "u.data", columns, names=list(columns), delimiter="\t")
    elif (place / "ratings.csv").exists():
        kinds = dict(zip(("userId", "movieId", "rating", "timestamp"), columns.values(), strict=True))
        read = CsvDataset(place / "ratings.csv", kinds)
    else:
        raise NotFoundError(f"MovieLens: expected u.data or ratings.csv in the folder '{place}', found neither")
    blocks = list(read)
    names = list(blocks[0])
    user, item, rating, time = (torch.cat([cast("Tensor", block[name]).view(-1) for block in blocks]) for name in names)
    order = torch.from_numpy(np.argsort(time.numpy(), kind="stable"))
    found = {"user": user, "item": item, "label": (rating >= liked_from).float(), "req_time": time}
    ordered = {name: values[order] for name, values in found.items()}
    return Traffic(
        batches=InMemoryDataset(_cut(ordered, batch_size)),
        ranker=Ranker(ids=["user", "item"]),
        seconds=int(time.max() - time.min()),
    )


def criteo(files: Sequence[str | os.PathLike[str]], *, batch_size: int = 2048) -> Traffic:
    """Reads lines of Criteo's display ads in order: label, 13 numbers, 26 texts; needs `monolith-torch[csv]`.

    The lines have no times and are spread evenly over the seven days that they cover.

    Args:
        files: Files such as ``train.txt``, or parts of it in order; compression is detected by the suffix.
        batch_size: Number of examples in a batch.

    Raises:
        InvalidArgumentError: the files have no lines.
    """
    columns = {"label": "float"} | dict.fromkeys(CRITEO_NUMBERS, "float") | dict.fromkeys(CRITEO_TEXTS, "ids")
    lines = CsvDataset(list(files), columns, names=list(columns), delimiter="\t")
    return Traffic(
        batches=_WithTimes(lines.batch(batch_size)),
        ranker=Ranker(ids=CRITEO_TEXTS, numbers=CRITEO_NUMBERS, learning_rate=0.05),
        seconds=_CRITEO_SECONDS,
    )


class _Mapped(Iterable[Batch]):
    """Applies a function to each batch, at every iteration."""

    def __init__(self, batches: Iterable[Batch], function: Callable[[Batch], Batch]) -> None:
        self._batches = batches
        self._function = function

    def __iter__(self) -> Iterator[Batch]:
        return map(self._function, self._batches)


class _WithTimes(Iterable[Batch]):
    """Adds times to batches, spread evenly over the days of Criteo's files; counts the examples first."""

    def __init__(self, batches: Dataset[Any]) -> None:
        self._batches = batches
        self._total = 0

    def __iter__(self) -> Iterator[Batch]:
        self._total = self._total or sum(batch.num_rows for batch in self._batches)
        if not self._total:
            raise InvalidArgumentError(f"Criteo: expected lines, found none in {self._batches!r}")
        before = 0
        for batch in self._batches:
            number = before + torch.arange(batch.num_rows)
            times = _CRITEO_BEGIN + number * _CRITEO_SECONDS // self._total
            yield Batch({**batch, "req_time": times}, num_rows=batch.num_rows)
            before += batch.num_rows


def _cut(columns: dict[str, Tensor], size: int) -> list[Batch]:
    count = len(columns["req_time"])
    return [
        Batch({name: values[first : first + size] for name, values in columns.items()})
        for first in range(0, count, size)
    ]
