"""The part of a cut that does not depend on where its owners are."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError
from monolith.tables.history import Cut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.tables.history import ChangePosition, OwnerClock

__all__ = ["OwnersCut"]


class OwnersCut(Cut):
    """The part of `Cut` that needs no call to an owner. Thread-safe.

    Args:
        mark: Position of the cut in the history.
        applied: The last batch of every worker at each owner, by ascending buckets.
        rows: Table -> its rows.
    """

    def __init__(self, *, mark: ChangePosition, applied: Sequence[OwnerClock], rows: Mapping[str, int]) -> None:
        self._mark = mark
        self._applied = tuple(applied)
        self._rows = rows
        self._taking = threading.Lock()
        self._taken: set[int] = set()

    @property
    def mark(self) -> ChangePosition:
        """Position of the cut in the history."""
        return self._mark

    @property
    def applied(self) -> Sequence[OwnerClock]:
        """The last batch of every worker at each owner."""
        return self._applied

    @property
    def rows(self) -> Mapping[str, int]:
        """Table -> its rows."""
        return self._rows

    def _take(self, buckets: range) -> None:
        """Rejects buckets that were read before, so that no owner rejects them after others have released theirs.

        Raises:
            FailedPreconditionError: a bucket was read before.
        """
        with self._taking:
            again = min(self._taken.intersection(buckets), default=None)
            if again is not None:
                raise FailedPreconditionError(
                    f"cut: bucket {again} of this cut was read before; a cut can be read once"
                )
            self._taken.update(buckets)

    def _give_back(self, buckets: range) -> None:
        """Makes buckets readable again that were taken but not read."""
        with self._taking:
            self._taken.difference_update(buckets)
