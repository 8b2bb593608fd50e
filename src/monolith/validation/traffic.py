"""Examples in the order of time with a model for them: generated, or from files of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from monolith.config import Config, config, require_at_least, require_positive
from monolith.data import Batch, ClickStream, ColumnValues, Dataset, SyntheticClicks
from monolith.data.operators import GOLDEN, mix64, shift_right
from monolith.data.sources import CsvDataset, InMemoryDataset
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.nn import Embeddings, Slice, Slot
from monolith.tables import NEVER_DAYS, Adagrad, SlidingHashFilter, Zeros
from monolith.tensors import Ragged
from monolith.train import Mode, Spec, Task

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


@config
class Ranker(Config):
    """Factory of DeepFM tasks: a factorisation machine and a network over the same rows.

    >>> Ranker(ids=["user", "item"], expire_days={"item": 7})().p.name
    'RankerTask'
    """

    ids: Sequence[str]
    """Columns of ids, one or several for each example; each has rows of its own."""
    numbers: Sequence[str] = ()
    """Columns of numbers; the network sees ``log(1 + x)`` of them, and 0 for one that is missing or negative."""
    label: str = "label"
    """Column of 0 and 1."""
    dim: int = 8
    """Dimension of the vectors; a row has a bias in addition."""
    hidden: int = 32
    """Width of the network."""
    learning_rate: float = 0.1
    """Learning rate of the rows (Adagrad)."""
    dense_learning_rate: float = 1e-3
    """Learning rate of the network (Adam)."""
    min_counts: Mapping[str, int] = field(default_factory=dict)
    """Column -> number of occurrences of an id before it gets a row; without an entry, ids get one immediately."""
    expire_days: Mapping[str, int] = field(default_factory=dict)
    """Column -> days without an update after which a row may be removed; without an entry, rows stay."""
    shared: bool = False
    """Whether all columns use the rows of the first, as for ids hashed into one array (`HashedIds`)."""
    filter_capacity: int = 100_000
    """Number of ids without a row that the admission filter tracks, if some column has a `min_counts`."""
    seed: int = 0
    """Seed of the initial weights of rows."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(self.ids))
        object.__setattr__(self, "numbers", tuple(self.numbers))
        require_at_least(self, 1, "dim", "hidden", "filter_capacity")
        require_positive(self, "learning_rate", "dense_learning_rate")
        if not self.ids:
            raise ValueError("Ranker: ids must name at least one column, got none")
        for name in ("min_counts", "expire_days"):
            if unknown := sorted(set(getattr(self, name)) - set(self.ids)):
                raise ValueError(f"Ranker: {name} must name columns of ids, {', '.join(self.ids)}, got {unknown[0]!r}")
            ignored = sorted(set(getattr(self, name)) - {self.ids[0]})
            if self.shared and ignored:
                raise ValueError(
                    f"Ranker: with shared=True all columns use the rows of {self.ids[0]!r}, so {name} must name only"
                    f" {self.ids[0]!r}, got {ignored[0]!r}; write {name}={{{self.ids[0]!r}: ...}}, or shared=False"
                )

    @property
    def bytes_per_bare_row(self) -> int:
        """Bytes of a row in a plain array: weights and Adagrad state, without keys and index."""
        return 2 * 4 * (1 + self.dim)

    def __call__(self) -> Task:
        """Returns a task whose model is not built yet."""
        return RankerTask(self)


class RankerTask(Task):
    """Task created by a `Ranker`."""

    def __init__(self, ranker: Ranker) -> None:
        super().__init__()
        self._ranker = ranker

    def build(self) -> None:
        """Builds the rows of all columns of ids, and the network."""
        ranker = self._ranker
        row = [Slice(1, initializer=Zeros()), Slice(ranker.dim)]
        own = ranker.ids[:1] if ranker.shared else ranker.ids
        slots = {name: Slot(shares=ranker.ids[0], combiner="mean") for name in ranker.ids}
        slots |= {
            name: Slot(
                slices=row,
                combiner="mean",
                min_count=ranker.min_counts.get(name, 0),
                expire_days=ranker.expire_days.get(name, NEVER_DAYS),
            )
            for name in own
        }
        rule = Adagrad(learning_rate=ranker.learning_rate, initial_accumulator_value=1e-8)
        admission = SlidingHashFilter(capacity=ranker.filter_capacity)
        self.rows = Embeddings(slots, rule, seed=ranker.seed, admission=admission)
        width = len(ranker.ids) * ranker.dim + len(ranker.numbers)
        self.deep = nn.Sequential(nn.Linear(width, ranker.hidden), nn.ReLU(), nn.Linear(ranker.hidden, 1))

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:  # noqa: ARG002 - all dense weights are in `deep`
        """Returns Adam for the network."""
        return torch.optim.Adam(self.deep.parameters(), lr=self._ranker.dense_learning_rate)

    def model_fn(self, features: Any, mode: Mode) -> Spec:  # noqa: ARG002 - the same in all modes
        """Predicts the probability of a click."""
        rows = self.rows(features).stack()  # [B, ids, 1 + dim]
        bias, vectors = rows[..., 0], rows[..., 1:]
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        logits: Tensor = bias.sum(1) + pairs + self.deep(self._inputs(vectors, features)).squeeze(1)
        clicks = features[self._ranker.label].reshape(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
        return Spec(loss, predictions=logits.sigmoid(), label=clicks)

    def _inputs(self, vectors: Tensor, features: Any) -> Tensor:
        numbers = [features[name].reshape(-1, 1) for name in self._ranker.numbers]
        flat = vectors.flatten(1)
        if not numbers:
            return flat
        return torch.cat([flat, torch.cat(numbers, 1).nan_to_num(0.0).clamp_min(0.0).log1p()], 1)


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


def clicks(world: SyntheticClicks, *, days: int = 7, batch_size: int = 500, seed: int = 0) -> Traffic:
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
        InvalidArgumentError: the file has no ratings.
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
    if not any(block.num_rows for block in blocks):
        raise InvalidArgumentError(f"MovieLens: expected ratings, found none in {read!r}; give a folder with ratings")
    names = list(blocks[0])
    user, item, rating, time = (torch.cat([cast("Tensor", block[name]).view(-1) for block in blocks]) for name in names)
    order = torch.from_numpy(np.argsort(time.numpy(), kind="stable"))
    unordered = {"user": user, "item": item, "label": (rating >= liked_from).float(), "req_time": time}
    ordered = {name: values[order] for name, values in unordered.items()}
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
    firsts = range(0, len(columns["req_time"]), size)
    return [Batch({name: values[first : first + size] for name, values in columns.items()}) for first in firsts]


@config
class HashedIds(Config):
    """Transform that replaces ids by their hash modulo a number of rows; colliding ids share a row.

    Pass it to `Dataset.map`, or call it with a batch. The columns share one array, so their slots must share rows, too.
    The top 10 bits of an id are not hashed: ids of a column that differ only in them have the same hash.

    >>> import torch
    >>> batch = Batch({"user": torch.tensor([7, 8, 9]), "item": torch.tensor([7, 8, 9])}, num_rows=3)
    >>> hashed = HashedIds(columns=["user", "item"], rows=100)(batch)
    >>> hashed["user"], hashed["item"]
    (tensor([33, 86, 57]), tensor([34, 99, 47]))
    """

    columns: Sequence[str]
    """Names of the columns of ids."""
    rows: int
    """Number of rows that they share."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        require_at_least(self, 1, "rows")

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with hashed ids."""
        if missing := [name for name in self.columns if name not in batch]:
            there = ", ".join(map(repr, batch))
            raise InvalidArgumentError(f"HashedIds: the batch has no column {missing[0]!r}, only {there}")
        places = enumerate(self.columns)
        hashed = {name: _hashed(name, batch[name], place=place, rows=self.rows) for place, name in places}
        return Batch({**batch, **hashed}, num_rows=batch.num_rows)


def _hashed(name: str, ids: ColumnValues, *, place: int, rows: int) -> ColumnValues:
    if isinstance(ids, Ragged):
        return ids.with_values(_below(ids.flat_values, place, rows))
    if not isinstance(ids, Tensor) or ids.is_floating_point():
        got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise InvalidArgumentError(f"HashedIds: column {name!r} must hold ids, int64, got {got}")
    return _below(ids, place, rows)


def _below(ids: Tensor, place: int, rows: int) -> Tensor:
    """Hashes the low 54 bits of ids, and the index of their column, with splitmix64; ``ids * 1024`` drops the rest."""
    return shift_right(mix64((ids * 1024 + place - 1) * GOLDEN), 1) % rows  # mix64 adds GOLDEN once
