"""One channel of the item pool: the items that were seen last, each once, oldest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from monolith.data.operators.row_store import GrowingArray

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers: TypeAlias = npt.NDArray[np.int64]
    Reals: TypeAlias = npt.NDArray[np.float64]

__all__ = ["ItemChannel"]


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

        Args:
            uniforms: Random numbers that decide.
            excluded: An index for each draw that must not be drawn, -1 for none. If nothing else is left, the result is
                -1.
            alpha: Items are drawn in proportion to the power `alpha` of how often they were seen.
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
