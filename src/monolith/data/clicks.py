"""Clicks to train on when there are none: `ClickStream`, endless generated traffic that drifts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from monolith.data.batch import Batch
from monolith.data.click_world import ClickSampler, SyntheticClicks
from monolith.data.dataset import Dataset, Reading
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from monolith.data.batch import ColumnValues

__all__ = ["START_TIME", "ClickStream"]

START_TIME = 1_700_000_000
"""Event time of the first example, in Unix seconds, by default."""


class ClickStream(Dataset[Batch]):
    """Impressions in time order, with clicks from a planted model. A batch depends only on its position.

    Columns: ``user`` and ``item`` int64 [B], ``tags`` `Ragged` int64 (none to four), ``context`` int64 [B] (hour and
    place), all ids in [0, 2^48); ``label`` float32 [B, 1], 1 for a click; ``req_time`` int64 [B], Unix seconds. Users
    and items follow a power law, some come once, all of them leave some day; preferences change slowly
    (`SyntheticClicks`).

    Args:
        num_examples: Number of examples; None: endless.
        batch_size: Examples of a batch; the last one may have fewer.
        seed: Seed of all random draws.
        world: Sizes of the population and speed of the drift.
        truth: Adds the column ``probability`` float32 [B, 1]: the chance that each label was drawn with. No model can
            rank better than it, so its AUC is the limit.

    >>> stream = ClickStream(3000, batch_size=1000, seed=1)
    >>> with stream.read() as reading:
    ...     batch, behind = next(reading), reading.position
    >>> batch
    Batch(1000 rows: user, item, tags, context, label, req_time)
    >>> [len(rest["label"]) for rest in stream.read(behind)]
    [1000, 1000]
    """

    def __init__(
        self,
        num_examples: int | None = None,
        *,
        batch_size: int = 1024,
        seed: int = 0,
        world: SyntheticClicks | None = None,
        truth: bool = False,
    ) -> None:
        if num_examples is not None and num_examples < 0:
            raise ValueError(f"ClickStream: num_examples must be >= 0 or None, got {num_examples}")
        if batch_size < 1:
            raise ValueError(f"ClickStream: batch_size must be >= 1, got {batch_size}")
        self.num_examples = num_examples
        self.batch_size = batch_size
        self.seed = seed
        self.world = SyntheticClicks() if world is None else world
        self.truth = truth
        self._sampler = ClickSampler(self.world, seed)

    def read(self, position: bytes | None = None) -> Reading[Batch]:
        """Starts to read from the beginning, or from a position.

        A position is valid for one seed and world. The batch size and the end may change.
        """
        return _ClickReading(self, 0 if position is None else self._example_of(position))

    def share(self, index: int, count: int) -> Dataset[Batch]:
        """Returns every `count`-th batch; the others are not made."""
        return super().share(index, count)

    def batch_at(self, first: int, count: int) -> Batch:
        """Returns examples by their numbers."""
        shown = self._sampler.impressions(first, count)
        columns: dict[str, ColumnValues] = {
            "user": torch.from_numpy(shown.user),
            "item": torch.from_numpy(shown.item),
            "tags": Ragged.from_lengths(torch.from_numpy(shown.tags), torch.from_numpy(shown.num_tags), validate=False),
            "context": torch.from_numpy(shown.context),
            "label": torch.from_numpy(shown.clicked).float()[:, None],
            "req_time": torch.from_numpy(START_TIME + shown.seconds),
        }
        if self.truth:
            columns["probability"] = torch.from_numpy(shown.probability).float()[:, None]
        return Batch(columns, num_rows=count)

    def position_of(self, example: int) -> bytes:
        """Returns the position before an example: canonical JSON."""
        where = {"example": example, **self._origin()}
        return json.dumps({"clicks": where}, sort_keys=True, separators=(",", ":")).encode()

    def _origin(self) -> dict[str, Any]:
        # positions keep the class name that the first version wrote
        return {"seed": self.seed, "world": {**self.world.to_dict(), "type": "ClickWorld"}}

    def _example_of(self, position: bytes) -> int:
        try:
            where = json.loads(position)["clicks"]
            example, origin = where["example"], {"seed": where["seed"], "world": where["world"]}
            is_number = isinstance(example, int) and not isinstance(example, bool) and example >= 0
        except (ValueError, KeyError, TypeError):
            is_number = False
        if not is_number:
            raise InvalidArgumentError(
                f"ClickStream: expected a position of a ClickStream, got {position[:80]!r}; it is of another dataset"
            )
        if origin != self._origin():
            raise InvalidArgumentError(
                f"ClickStream: the position is of other clicks: expected {_difference(self._origin(), origin)};"
                " make the stream as it was made then"
            )
        return int(example)


class _ClickReading(Reading[Batch]):
    def __init__(self, stream: ClickStream, example: int) -> None:
        self._stream = stream
        self._example = example

    def __next__(self) -> Batch:
        count = self._count()
        batch = self._stream.batch_at(self._example, count)
        self._example += count
        return batch

    def skip(self) -> None:
        """Steps over a batch without making it."""
        self._example += self._count()

    def _count(self) -> int:
        """Examples of the next batch."""
        end, count = self._stream.num_examples, self._stream.batch_size
        if end is not None:
            count = min(count, end - self._example)
        if count <= 0:
            raise StopIteration
        return count

    @property
    def position(self) -> bytes:
        return self._stream.position_of(self._example)

    def close(self) -> None:
        """Does nothing."""


def _difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Returns the first field that differs, as ``name value, got value``."""
    ours, theirs = (
        origin | (origin["world"] if isinstance(origin["world"], dict) else {}) for origin in (ours, theirs)
    )
    names = [name for name in ours if name != "world" and ours[name] != theirs.get(name)]
    return f"{names[0]} {ours[names[0]]!r}, got {theirs.get(names[0])!r}" if names else "another kind of world"
