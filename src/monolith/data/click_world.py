"""The synthetic world of generated clicks: its users and items, their lifetimes, and the click model.

The planted model of an impression of item i to user u at time t, in days::

    logit = base + eager(u) + appeal(i) + wave(i, t) + trend(tags of i, t) + context
            + <taste(u, t), flavour(first tag of i)>

Every term is a function of the seed and the ids alone, so a batch can be made at any position without those before it.
Terms with a `t` drift: a model that stops learning goes stale. Users and items leave after a lifetime and others take
their popularity rank; visitors come once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monolith.config import Config, config, require_at_least, require_between
from monolith.data.counted_draws import CountedDraws, scrambled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from monolith.data.counted_draws import Numbers, Reals

__all__ = ["Impressions", "SyntheticClicks"]

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
        user = _occupant(
            self._rank(self._users, 10, number), day, draws, _Seats(11, world.num_users, world.user_life_days)
        )
        item = _occupant(
            self._rank(self._items, 12, number), day, draws, _Seats(13, world.num_items, world.item_life_days)
        )
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

    def _tags_of(self, item: Numbers) -> tuple[Numbers, Numbers]:
        """Tags [n, MOST_TAGS] and how many of them count; a tenth of the items has none."""
        how_many = self._draws.uniform(20, item)
        num_tags = np.where(how_many < 0.1, 0, 1 + (how_many * 97 % 1.0 * MOST_TAGS).astype(np.int64))
        cells = item[:, None] * MOST_TAGS + np.arange(MOST_TAGS)
        return self._rank(self._tags, 21, cells.reshape(-1)).reshape(-1, MOST_TAGS), num_tags

    def _of_user(self, user: Numbers, tags: Numbers, turn: Reals, num_tags: Numbers) -> Reals:
        """Returns the user's eagerness plus the match of the drifting taste and the first tag."""
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


class _Seats(NamedTuple):
    """Popularity ranks, each held by one user or item after another."""

    purpose: int
    number: int
    life_days: float


def _occupant(seat: Numbers, day: Reals, draws: CountedDraws, seats: _Seats) -> Numbers:
    """Returns the holder of each rank on that day; each rank changes hands at a time of its own."""
    generation = np.floor(day / seats.life_days + draws.uniform(seats.purpose, seat)).astype(np.int64)
    return generation * seats.number + seat


def _popularity(count: int, exponent: float) -> Reals:
    """Returns the cumulative shares of ranks; the last is 1, which no draw reaches."""
    shares = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    cumulative: Reals = np.cumsum(shares)
    cumulative /= cumulative[-1]
    return cumulative
