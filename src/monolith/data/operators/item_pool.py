"""One channel of the item pool: the items that were seen last, each once, oldest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from monolith.config import Config, config, require_at_least
from monolith.data.batch import Batch
from monolith.data.operators.row_store import GrowingArray, RowStore
from monolith.data.rows import take_rows
from monolith.errors import ResourceExhaustedError

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers: TypeAlias = npt.NDArray[np.int64]
    Reals: TypeAlias = npt.NDArray[np.float64]
    from collections.abc import Iterator, Sequence


class ItemChannel:
    """A queue of items by id with counters. An id that comes again keeps its place and its features.

    Ids are looked up in a sorted copy, which is merged with the new ones of each batch. Places count from the oldest
    item, 0, to the newest.
    """

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._ids, self._rows, self._seen, self._drawn = (GrowingArray((), np.int64) for _ in range(4))
        self._begin = 0  # of the queue in the arrays; what lies before it was evicted
        self._sorted_ids: Numbers = np.empty(0, dtype=np.int64)
        self._sorted_places: Numbers = np.empty(0, dtype=np.int64)  # in the arrays, evicted ones counted

    def __len__(self) -> int:
        return len(self._ids) - self._begin

    @property
    def ids(self) -> Numbers:
        """Ids, oldest first."""
        return self._ids.data[self._begin :]

    @property
    def rows(self) -> Numbers:
        """Row numbers of the features of each item."""
        return self._rows.data[self._begin :]

    @property
    def seen(self) -> Numbers:
        """Number of pushes of each item."""
        return self._seen.data[self._begin :]

    @property
    def drawn(self) -> Numbers:
        """Number of draws of each item."""
        return self._drawn.data[self._begin :]

    def count_known(self, ids: Numbers) -> Numbers:
        """Counts the items of these ids that are in the queue once more, and returns which are new.

        Returned are the places, in `ids`, of the first occurrence of each new id, in their order; later occurrences
        are counted when the first is pushed.
        """
        places = self.places_of(ids)
        np.add.at(self.seen, places[places >= 0], 1)
        new = np.flatnonzero(places < 0)
        first = np.unique(ids[new], return_index=True)[1]
        return new[np.sort(first)]

    def push(self, ids: Numbers, rows: Numbers, seen: Numbers, drawn: Numbers | None = None) -> None:
        """Adds new items at the end, and evicts the oldest beyond the limit; ids are distinct and not in the queue."""
        if not len(ids):
            return
        places = np.arange(len(self._ids), len(self._ids) + len(ids))
        for array, values in zip(
            (self._ids, self._rows, self._seen, self._drawn),
            (ids, rows, seen, np.zeros(len(ids), np.int64) if drawn is None else drawn),
            strict=True,
        ):
            array.extend(values)
        order = np.argsort(ids)
        at = np.searchsorted(self._sorted_ids, ids[order])
        self._sorted_ids = np.insert(self._sorted_ids, at, ids[order])
        self._sorted_places = np.insert(self._sorted_places, at, places[order])
        if len(self) > self._max_items:
            self._evict(len(self) - self._max_items)

    def places_of(self, ids: Numbers) -> Numbers:
        """Returns the index of each id in the queue, -1 if it is missing."""
        if not len(self._sorted_ids):
            return np.full(len(ids), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._sorted_ids, ids), len(self._sorted_ids) - 1)
        return np.where(self._sorted_ids[at] == ids, self._sorted_places[at] - self._begin, -1)

    def choose(self, uniforms: Reals, excluded: Numbers, alpha: float) -> tuple[Numbers, Reals]:
        """Returns an index for each number in [0, 1), and its probability.

        `excluded` has an index for each draw that must not be drawn, -1 for none; if nothing else is left, the result
        is -1. Items are drawn in proportion to the power `alpha` of how often they were seen.
        """
        size = len(self)
        if alpha == 0:
            left = size - (excluded >= 0)
            places = np.minimum((uniforms * left).astype(np.int64), np.maximum(left - 1, 0))
            places += (excluded >= 0) & (places >= excluded)
            chances = 1.0 / np.maximum(left, 1)
        else:
            weights = self.seen.astype(np.float64) ** alpha
            ends = np.cumsum(weights)
            without = np.where(excluded >= 0, weights[excluded], 0.0)
            targets = uniforms * (ends[-1] - without)
            # Targets after the excluded item are shifted by its weight.
            before = np.where(excluded >= 0, ends[excluded] - without, np.inf)
            targets = np.where(targets >= before, targets + without, targets)
            places = np.minimum(np.searchsorted(ends, targets, side="right"), size - 1)
            places = np.where(places == excluded, np.where(excluded > 0, excluded - 1, 1), places)  # rounding
            left = size - (excluded >= 0)
            places = np.where(left > 0, places, 0)
            chances = weights[places] / np.maximum(ends[-1] - without, np.finfo(np.float64).tiny)
        return np.where(left > 0, places, -1), chances

    def count_draws(self, places: Numbers) -> Numbers:
        """Returns how often each of these items has been drawn, including this draw and earlier ones in the list."""
        order = np.argsort(places, kind="stable")
        ordered = places[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        ranks = np.arange(len(ordered)) - np.repeat(starts, np.diff(starts, append=len(ordered)))
        counts = np.empty(len(places), dtype=np.int64)
        counts[order] = self.drawn[ordered] + ranks + 1
        np.add.at(self.drawn, places, 1)
        return counts

    def move_rows(self, new_number: Numbers) -> None:
        """Updates row numbers after features were renumbered."""
        self.rows[:] = new_number[self.rows]

    def _evict(self, count: int) -> None:
        gone = np.zeros(len(self._sorted_ids), dtype=bool)
        gone[self._sorted_places < self._begin + count] = True
        self._sorted_ids, self._sorted_places = self._sorted_ids[~gone], self._sorted_places[~gone]
        self._begin += count
        if self._begin > len(self):  # more than half of the arrays is waste
            self._sorted_places -= self._begin
            for array in (self._ids, self._rows, self._seen, self._drawn):
                array.replace(array.data[self._begin :].copy())
            self._begin = 0


@config
class PoolConfig(Config):
    """Capacity of a pool, and the minimum size to draw from."""

    max_items: int = 100_000
    """Maximum number of items of a channel; the oldest is evicted first."""
    start_items: int = 500
    """A channel is drawn from once it has more items than this."""
    max_channels: int = 1024
    """More are an error: a channel column with as many values as items would keep everything."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "max_items", "max_channels")
        require_at_least(self, 0, "start_items")
        if self.start_items >= self.max_items:
            got = f"{self.start_items} and {self.max_items}"
            raise ValueError(f"PoolConfig: start_items must be below max_items, got {got}: nothing would be drawn")


class Draws(NamedTuple):
    """The drawn items, n of them, with their statistics."""

    found: npt.NDArray[np.bool_]
    """[d]: which of the requested draws gave an item; the others have no rows below."""
    ids: Numbers
    features: Batch
    draw_counts: Numbers
    """Number of draws of the item, including this one."""
    ages: Reals
    """(place in the queue + 1) / size of the queue: 1 for the newest."""
    log_q: Reals
    """Natural logarithm of the probability that this draw had for this sample."""


class ItemPool:
    """Channels of items, bounded, with counters. Not thread-safe.

    Args:
        columns: The features of an item; ragged (of one level), dense or strings.
        limits: Capacity.
    """

    def __init__(self, columns: Sequence[str], limits: PoolConfig | None = None) -> None:
        self.columns = tuple(columns)
        self.limits = PoolConfig() if limits is None else limits
        self._channels: dict[int, ItemChannel] = {}
        self._features = RowStore(self.columns)

    def __len__(self) -> int:
        return sum(map(len, self._channels.values()))

    def sizes(self) -> dict[int, int]:
        """Returns channel -> number of its items."""
        return {channel: len(items) for channel, items in self._channels.items()}

    def channels(self) -> Iterator[tuple[int, ItemChannel, Batch]]:
        """Yields each channel with its items and their features, oldest first."""
        for channel, items in self._channels.items():
            yield channel, items, self._features.take(items.rows)

    def push(self, channels: Numbers, ids: Numbers, rows: Batch) -> None:
        """Adds the items of some rows, in order. An existing item only increments its count; its features stay.

        Raises:
            ResourceExhaustedError: more channels than the limits allow.
        """
        distinct, which = np.unique(channels, return_inverse=True)
        unknown = [channel for channel in distinct.tolist() if channel not in self._channels]
        if len(self._channels) + len(unknown) > self.limits.max_channels:
            raise ResourceExhaustedError(
                f"item pool: more than {self.limits.max_channels} channels, the next one is {unknown[0]}; "
                "is the channel column one of few values? PoolConfig.max_channels sets the limit"
            )
        for number, channel in enumerate(distinct.tolist()):
            items = self._channels.setdefault(channel, ItemChannel(self.limits.max_items))
            own = np.flatnonzero(which == number)
            # A batch that brings more new items than fit would push out its own: only the last ones enter.
            first = items.count_known(ids[own])[-self.limits.max_items :]
            new_ids = ids[own[first]]
            kept = self._features.append(take_rows(rows, torch.from_numpy(own[first])))
            own_ids, seen = np.unique(ids[own], return_counts=True)
            items.push(new_ids, kept, seen[np.searchsorted(own_ids, new_ids)])
        self._forget_evicted()

    def restore_channel(self, channel: int, ids: Numbers, counts: tuple[Numbers, Numbers], features: Batch) -> None:
        """Puts a channel back as it was saved: ids and features oldest first, how often seen and how often drawn."""
        items = ItemChannel(self.limits.max_items)
        items.push(ids, self._features.append(features), counts[0], counts[1])
        self._channels[channel] = items
        self._forget_evicted()

    def draw(self, channels: Numbers, own_ids: Numbers, uniforms: Reals, *, easy_share: float, alpha: float) -> Draws:
        """Draws one item for each row of the arguments, never the row's own item.

        Args:
            channels: Channel of the sample of each draw.
            own_ids: Item of the sample.
            uniforms: [d, 3] in [0, 1): decide whether the channel is redrawn, which it becomes, and the item.
            easy_share: Share of draws whose channel is redrawn, in proportion to the sizes of those that are ready.
            alpha: Items are drawn in proportion to the power `alpha` of how often they were seen; 0 is uniformly.
        """
        ready, sizes = self._ready()
        chosen, chances = _choose_channels(channels, uniforms, (ready, sizes), easy_share)
        count = len(channels)
        is_drawn = np.zeros(count, dtype=bool)
        ids, rows, draw_counts = (np.zeros(count, dtype=np.int64) for _ in range(3))
        ages, log_q = np.zeros(count), np.zeros(count)
        for channel in np.unique(chosen[chances > 0]).tolist():
            items = self._channels[channel]
            own = np.flatnonzero((chosen == channel) & (chances > 0))
            places, item_chances = items.choose(uniforms[own, 2], items.places_of(own_ids[own]), alpha)
            own, places, item_chances = own[places >= 0], places[places >= 0], item_chances[places >= 0]
            is_drawn[own] = True
            ids[own], rows[own] = items.ids[places], items.rows[places]
            draw_counts[own] = items.count_draws(places)
            ages[own] = (places + 1) / len(items)
            log_q[own] = np.log(chances[own] * item_chances)
        features = self._features.take(rows[is_drawn])
        return Draws(is_drawn, ids[is_drawn], features, draw_counts[is_drawn], ages[is_drawn], log_q[is_drawn])

    def state_dict(self) -> dict[str, Any]:
        """Returns the complete state for a checkpoint, as tensors and plain values."""
        items = list(self._channels.values())
        features = self._features.take(_joined([channel.rows for channel in items]))
        return {
            "channels": torch.tensor(list(self._channels), dtype=torch.int64),
            "sizes": torch.tensor([len(channel) for channel in items], dtype=torch.int64),
            "ids": torch.from_numpy(_joined([channel.ids for channel in items])),
            "seen": torch.from_numpy(_joined([channel.seen for channel in items])),
            "drawn": torch.from_numpy(_joined([channel.drawn for channel in items])),
            "features": dict(features),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved pool; drops items beyond the limits of this pool, oldest first."""
        if state["features"] and set(state["features"]) != set(self.columns):
            saved, here = ", ".join(sorted(state["features"])), ", ".join(sorted(self.columns))
            raise ValueError(f"item pool: saved with the columns {saved}, this one has {here}")
        self._channels, self._features = {}, RowStore(self.columns)
        features = Batch(state["features"], num_rows=len(state["ids"]))
        arrays = {name: state[name].numpy() for name in ("ids", "seen", "drawn")}
        begin = 0
        for channel, size in zip(state["channels"].tolist(), state["sizes"].tolist(), strict=True):
            part = slice(begin, begin + size)
            own = take_rows(features, torch.arange(begin, begin + size))
            counts = (arrays["seen"][part], arrays["drawn"][part])
            self.restore_channel(channel, arrays["ids"][part], counts, own)
            begin += size

    def _ready(self) -> tuple[Numbers, Numbers]:
        """Channels that may be drawn from, sorted, and their sizes."""
        sizes = {channel: size for channel, size in sorted(self.sizes().items()) if size > self.limits.start_items}
        return np.array(list(sizes), dtype=np.int64), np.array(list(sizes.values()), dtype=np.int64)

    def _forget_evicted(self) -> None:
        """Makes room once more rows are kept for nothing than for items."""
        if self._features.num_rows <= 2 * len(self) + 1024:
            return
        live = _joined([items.rows for items in self._channels.values()])
        new_number = np.full(self._features.num_rows, -1, dtype=np.int64)
        new_number[live] = np.arange(len(live))
        self._features.keep_only(live)
        for items in self._channels.values():
            items.move_rows(new_number)


def _choose_channels(
    channels: Numbers, uniforms: Reals, ready: tuple[Numbers, Numbers], easy_share: float
) -> tuple[Numbers, Reals]:
    """Returns the channel of each draw, and the probability with which a sample of that channel would draw from it."""
    names, sizes = ready
    if not len(names):
        return channels, np.zeros(len(channels))
    ends = np.cumsum(sizes)
    places = np.minimum(np.searchsorted(ends, uniforms[:, 1] * ends[-1], side="right"), len(names) - 1)
    chosen = np.where(uniforms[:, 0] < easy_share, names[places], channels)
    at = np.minimum(np.searchsorted(names, chosen), len(names) - 1)
    is_ready = names[at] == chosen
    chances = easy_share * sizes[at] / ends[-1] + np.where(chosen == channels, 1 - easy_share, 0.0)
    return chosen, np.where(is_ready, chances, 0.0)


def _joined(arrays: list[Numbers]) -> Numbers:
    return np.concatenate([np.empty(0, dtype=np.int64), *arrays])
