"""Publishes the rows of one rank; every rank has a `part` of the log, and rank 0 the dense weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.deltalog import rows_part
from monolith.deltalog.publish.part_publisher import PartPublisher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.deltalog import DeltaLog
    from monolith.deltalog.publish.examples_tally import Trained
    from monolith.tables.history import ChangePosition
    from monolith.tables.local.store import LocalStore

__all__ = ["RankPublisher", "RankWithoutRows"]


class RankWithoutRows:
    """`monolith.deltalog.publish.store_publisher.StorePublisher` of a rank that keeps no rows.

    Args:
        name: Name of the store.
        log: Log of the other ranks.
        owned: The buckets of each rank.
    """

    has_own_clock = False

    def __init__(self, name: str, log: DeltaLog, owned: Sequence[range]) -> None:
        self._log = log
        self._of_all = [rows_part(name, buckets) for buckets in owned if buckets]

    @property
    def numbers(self) -> dict[str, int]:
        """Returns no numbers: the rank writes to no `part`."""
        return {}

    def open(self) -> None:
        """Does nothing: there is no `part` to claim."""

    def publish(self, trained: Trained) -> int:  # noqa: ARG002 - the others know it too
        """Publishes nothing."""
        return 0

    def needs(self) -> dict[str, int]:
        """Returns how far all ranks have logged."""
        found = {part: self._log.extent(part) for part in self._of_all}
        return {part: extent.next - 1 for part, extent in found.items() if extent is not None}

    def before_cut(self) -> dict[str, int]:
        """Returns nothing: the other ranks report it."""
        return {}

    def after_cut(self, mark: ChangePosition) -> dict[str, ChangePosition]:  # noqa: ARG002 - the same
        """Returns nothing: the other ranks report it."""
        return {}

    def close(self) -> None:
        """Does nothing: no resources are held."""


class RankPublisher(PartPublisher):
    """The publisher of one rank's `part`.

    Args:
        name: Name of the store.
        rows: Rows of this rank.
        log: Log of the changes.
        owned: The buckets of each rank.
        rank: This rank.
        options: Options of `PartPublisher`, by name.
    """

    def __init__(
        self, name: str, rows: LocalStore, log: DeltaLog, *, owned: Sequence[range], rank: int, **options: Any
    ) -> None:
        super().__init__(name, rows, log, buckets=owned[rank], **options)
        self._all = RankWithoutRows(name, log, owned)

    def needs(self) -> dict[str, int]:
        """Returns how far all ranks have logged; the logs of other ranks may lack changes of this interval."""
        return self._all.needs()
