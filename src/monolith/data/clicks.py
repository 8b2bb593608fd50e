"""Clicks to train on when there are none: `ClickStream`, endless generated traffic that drifts, of `SyntheticClicks`.

The planted model of an impression of item i to user u at time t, in days::

    logit = base + eager(u) + appeal(i) + wave(i, t) + trend(tags of i, t) + context
            + <taste(u, t), flavour(first tag of i)>

Every term is a function of the seed and the ids alone, so a batch can be made at any position without those before it.
Terms with a `t` drift: a model that stops learning goes stale. Users and items leave after a lifetime and others take
their popularity rank; visitors come once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from monolith.config import Config, config, require_at_least, require_between
from monolith.data.batch import Batch
from monolith.data.dataset import Dataset, Reading
from monolith.data.pipeline.draws import mix
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Reals = NDArray[np.float64]
    from monolith.data.batch import ColumnValues

_STEP = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_WORD = (1 << 64) - 1
_ID_BITS = 48
_ID_MASK = np.uint64((1 << _ID_BITS) - 1)


class CountedDraws:
    """Draws of one seed. Each purpose, a small number, is a sequence of its own.

    >>> draws = CountedDraws(seed=7)
    >>> bool(draws.uniform(1, np.array([5, 6]))[1] == draws.uniform(1, np.array([6]))[0])
    True
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def uniform(self, purpose: int, numbers: Numbers) -> Reals:
        """Returns uniform draws in [0, 1), one for each number."""
        start = mix(mix(np.array([self._seed & _WORD], np.uint64)) + np.uint64(purpose))
        words = mix(numbers.astype(np.uint64) * np.uint64(_STEP) + (start - np.uint64(_STEP)))  # `mix` adds a step
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, purpose: int, numbers: Numbers) -> Reals:
        """Returns standard normal draws, one for each number. Uses the sequences `purpose` and `purpose + 1`."""
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(purpose, numbers)))
        values: Reals = radius * np.cos(2.0 * np.pi * self.uniform(purpose + 1, numbers))
        return values


def scrambled(numbers: Numbers, purpose: int) -> Numbers:
    """Ids in [0, 2^48) for numbers in the same range: no two alike, and none near another.

    >>> scrambled(np.arange(2), purpose=0)
    array([167825961961603, 264258247972414])
    """
    words = (numbers.astype(np.uint64) + (mix(np.array([purpose], np.uint64)) & _ID_MASK)) & _ID_MASK
    for factor in _FACTORS:  # odd factors and shifts to the right can be undone, so nothing collides
        words = (words ^ (words >> np.uint64(25))) * np.uint64(factor) & _ID_MASK
    return (words ^ (words >> np.uint64(23))).astype(np.int64)


HOURS, PLACES, MOST_TAGS = 24, 4, 4
NUM_CONTEXTS = HOURS * PLACES
"""Ids that the column ``context`` may have."""
_FULL_TURN = 2.0 * np.pi
_FIRST_VISITOR = 1 << 47


@config
class SyntheticClicks(Config):
    """Sizes and speeds of the generated traffic."""

    num_users: int = 10_000
    """Number of returning users at any one time."""
    num_items: int = 4_000
    """Items on offer at any one time."""
    num_tags: int = 300
    """Tags that items may carry, up to four each; tags never leave."""
    visitors: float = 0.3
    """Share of impressions to users that never return."""
    zipf: float = 0.9
    """The k-th most popular user, item or tag is met in proportion to ``k ** -zipf``."""
    examples_per_day: int = 25_000
    """Number of impressions of a day of event time."""
    user_life_days: float = 30.0
    """Days after which a user leaves, and a new one takes the popularity rank."""
    item_life_days: float = 8.0
    """Days after which an item leaves."""
    drift_days: float = 40.0
    """Period of tastes, waves and trends in days; greater is slower."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "num_users", "num_items", "num_tags", "examples_per_day")
        require_between(self, 0.0, 1.0, "visitors")
        require_between(self, 0.0, 10.0, "zipf")
        for name in ("user_life_days", "item_life_days", "drift_days"):
            require_between(self, 1e-6, 1e9, name)


class Impressions(NamedTuple):
    """Impressions and their outcome; one row for each example."""

    user: Numbers
    item: Numbers
    tags: Numbers
    """All tags, end to end."""
    num_tags: Numbers
    context: Numbers
    seconds: Numbers
    """Event time, since the first example."""
    probability: Reals
    """The planted chance of a click."""
    clicked: NDArray[np.bool_]


class ClickSampler:
    """Makes the impressions of a world at any position. Holds no state that changes; any thread may call it."""

    def __init__(self, world: SyntheticClicks, seed: int) -> None:
        self.world = world
        self._draws = CountedDraws(seed)
        self._users = _popularity(world.num_users, world.zipf)
        self._items = _popularity(world.num_items, world.zipf)
        self._tags = _popularity(world.num_tags, world.zipf)

    def impressions(self, first: int, count: int) -> Impressions:
        """Examples `first`, `first` + 1, ..., of the endless stream."""
        draws, world = self._draws, self.world
        number = np.arange(first, first + count, dtype=np.int64)
        day = number / world.examples_per_day
        seconds = (day * 86_400).astype(np.int64)
        user = self._occupant(self._rank(self._users, 10, number), day, 11, world.num_users, world.user_life_days)
        item = self._occupant(self._rank(self._items, 12, number), day, 13, world.num_items, world.item_life_days)
        is_visitor = draws.uniform(14, number) < world.visitors
        tags, num_tags = self._tags_of(item)
        place = (draws.uniform(15, number) * PLACES).astype(np.int64)
        hour = seconds // 3600 % HOURS
        turn = _FULL_TURN * day / world.drift_days
        logit = -1.9 + self._of_user(user, tags, turn, num_tags) * ~is_visitor
        logit += self._of_item(item, turn) + self._of_tags(tags, turn, num_tags) + self._of_context(hour, place)
        probability = 1.0 / (1.0 + np.exp(-logit))
        return Impressions(
            user=scrambled(np.where(is_visitor, _FIRST_VISITOR + number, user), 1),
            item=scrambled(item, 2),
            tags=scrambled(tags[np.arange(MOST_TAGS) < num_tags[:, None]], 3),
            num_tags=num_tags,
            context=scrambled(hour * PLACES + place, 4),
            seconds=seconds,
            probability=probability,
            clicked=draws.uniform(16, number) < probability,
        )

    def _rank(self, popularity: Reals, purpose: int, number: Numbers) -> Numbers:
        ranks: Numbers = np.searchsorted(popularity, self._draws.uniform(purpose, number), side="right")
        return ranks

    def _occupant(self, rank: Numbers, day: Reals, purpose: int, count: int, life_days: float) -> Numbers:
        """Returns the holder of each rank on that day; each rank changes hands at a time of its own."""
        generation = np.floor(day / life_days + self._draws.uniform(purpose, rank)).astype(np.int64)
        return generation * count + rank

    def _tags_of(self, item: Numbers) -> tuple[Numbers, Numbers]:
        """Tags [n, MOST_TAGS] and how many of them count; a tenth of the items has none."""
        how_many = self._draws.uniform(20, item)
        num_tags = np.where(how_many < 0.1, 0, 1 + (how_many * 97 % 1.0 * MOST_TAGS).astype(np.int64))
        cells = item[:, None] * MOST_TAGS + np.arange(MOST_TAGS)
        return self._rank(self._tags, 21, cells.reshape(-1)).reshape(-1, MOST_TAGS), num_tags

    def _of_user(self, user: Numbers, tags: Numbers, turn: Reals, num_tags: Numbers) -> Reals:
        draws = self._draws
        side = np.where(draws.uniform(32, user) < 0.5, -1.0, 1.0)
        angle = _FULL_TURN * (draws.uniform(33, user) - draws.uniform(34, tags[:, 0])) + side * turn
        return draws.normal(30, user) + 1.6 * np.cos(angle) * (num_tags > 0)

    def _of_item(self, item: Numbers, turn: Reals) -> Reals:
        draws = self._draws
        return 0.8 * draws.normal(40, item) + 0.7 * np.sin(turn + _FULL_TURN * draws.uniform(42, item))

    def _of_tags(self, tags: Numbers, turn: Reals, num_tags: Numbers) -> Reals:
        phases = self._draws.uniform(50, tags.reshape(-1)).reshape(tags.shape)
        trends = np.sin(turn[:, None] + _FULL_TURN * phases) * (np.arange(MOST_TAGS) < num_tags[:, None])
        total: Reals = 0.4 * trends.sum(1)
        return total

    def _of_context(self, hour: Numbers, place: Numbers) -> Reals:
        return 0.4 * np.cos(_FULL_TURN * (hour - 20) / HOURS) + 0.4 * self._draws.normal(60, place)


def _popularity(count: int, exponent: float) -> Reals:
    """Returns the cumulative shares of ranks; the last is 1, which no draw reaches."""
    shares = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    cumulative: Reals = np.cumsum(shares)
    cumulative /= cumulative[-1]
    return cumulative


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
    ...     batch, position = next(reading), reading.position
    >>> batch
    Batch(1000 rows: user, item, tags, context, label, req_time)
    >>> [len(rest["label"]) for rest in stream.read(position)]
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
        self._example += self._count()

    def _count(self) -> int:
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
