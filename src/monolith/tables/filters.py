"""Admission filters: keep rare ids out of a table until they were seen often enough.

A filter is applied only to ids that have no row yet, and only where the table's threshold (``min_count``, or
``slot_min_counts`` for the id's slot) is above 0. Its counts belong to the rows: they are saved, restored and cut with
them. All tables of a group share one filter; equal ids of two tables are counted apart. How to choose thresholds and
filter: ``docs/how-to/admission-and-expiry.md``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field
from typing import ClassVar

from monolith.config import Config, config, require_between

__all__ = ["AdmissionFilter", "NoFilter", "ProbabilisticFilter", "SlidingHashFilter", "make_filter"]


@config
class AdmissionFilter(Config, ABC):
    """The rule that admits a new id."""

    max_threshold: ClassVar[int | None]
    """The largest threshold the rule can represent; greater ones are rejected. None: any."""

    @abstractmethod
    def kernel(self) -> tuple[str, dict[str, float]] | None:
        """Returns kind and every parameter of the core's filter; None: every id is admitted."""


@config
class SlidingHashFilter(AdmissionFilter):
    """Counts occurrences approximately, in fixed memory, and drops the counts of ids not seen for long.

    The first ``threshold`` occurrences of an id are dropped, the next one is trained. Where duplicates are summed (the
    default), all occurrences of a call count together, after the decision.

    Rarely (about 0.7 % of ids when full, with the defaults) two ids share a counter and one is admitted early. Memory
    is about 2.8 bytes for each id of the capacity, allocated in `split_num` portions, the first with the first ids.

    >>> SlidingHashFilter(capacity=1_000_000).kernel()
    ('sliding_hash', {'capacity': 1000000.0, 'split_num': 7.0})
    """

    max_threshold: ClassVar[int | None] = 15
    capacity: int = field(default=300_000_000, kw_only=False)
    """Ids without a row that the group counts at a time; raised to 300 for each bucket where it is less."""
    split_num: int = 7
    """Parts of the memory, in [5, 1000]; each time one is full, the oldest is dropped. More parts drop smaller
    portions and make each count slower."""

    def __post_init__(self) -> None:
        require_between(self, 1, 10**12, "capacity")
        require_between(self, 5, 1000, "split_num")

    def kernel(self) -> tuple[str, dict[str, float]]:
        """Returns the core's sliding filter."""
        return "sliding_hash", {"capacity": float(self.capacity), "split_num": float(self.split_num)}


@config
class ProbabilisticFilter(AdmissionFilter):
    """Admits by a draw instead of a count; has no state where calls give their ``step``.

    The draw is a function of the table's seed, the id and the global step, so a run can be repeated. In calls without
    ``step`` the number of earlier offers of the id takes its place, which is kept until the id has a row.
    """

    max_threshold: ClassVar[int | None] = None
    equal_probability: bool = False
    """False: ``count`` occurrences in a call enter with probability ``count / threshold``. True: every occurrence
    enters with the same ``p = 1 - 0.05 ** (1 / threshold)``: 95 % of ids are in after ``threshold`` occurrences."""

    def kernel(self) -> tuple[str, dict[str, float]]:
        """Returns the core's probabilistic filter."""
        return "probabilistic", {"equal_probability": float(self.equal_probability)}


@config
class NoFilter(AdmissionFilter):
    """Admits every id at its first occurrence; thresholds have no effect."""

    max_threshold: ClassVar[int | None] = None

    def kernel(self) -> None:
        """Returns None: the core then uses no filter."""
        return


_BY_NAME: dict[str, type[AdmissionFilter]] = {
    "sliding_hash_filter": SlidingHashFilter,
    "probabilistic_filter": ProbabilisticFilter,
    "no_filter": NoFilter,
}


def make_filter(name: str) -> AdmissionFilter:
    """Returns a filter with its defaults, by its name in configurations of ByteDance Monolith.

    Raises:
        ValueError: The name is none of ``sliding_hash_filter``, ``probabilistic_filter`` and ``no_filter``.

    >>> make_filter("no_filter")
    NoFilter()
    """
    if name not in _BY_NAME:
        raise ValueError("Invalid filter type, please investigate and retry!")
    return _BY_NAME[name]()
