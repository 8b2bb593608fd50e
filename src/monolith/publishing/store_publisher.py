"""Who publishes the changes of one store: this process, or the processes that keep its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.deltalog import DeltaLog
    from monolith.publishing.examples_tally import Trained
    from monolith.publishing.log_position import LogPosition
    from monolith.tables.history import Mark
    from monolith.tables.store import Store


class StorePublisher(Protocol):
    """The parts of a log that one store is published to. One thread at a time may call it."""

    @property
    def has_own_clock(self) -> bool:
        """Whether it publishes by itself; `publish` is then called only where something has to be in the log."""
        ...

    @property
    def numbers(self) -> Mapping[str, int]:
        """Part -> number of its last increment."""
        ...

    def open(self) -> None:
        """Takes the parts from whoever had them; again, it does nothing.

        Raises:
            OpError: not now; it can be tried again.
        """
        ...

    def publish(self, trained: Trained) -> int:
        """Writes what has changed since the last time; returns how many increments that took."""
        ...

    def needs(self) -> Mapping[str, int]:
        """The numbers that dense weights need which were copied before the last `publish`."""
        ...

    def before_cut(self) -> Mapping[str, int]:
        """The numbers, with those of parts that have ended."""
        ...

    def after_cut(self, mark: Mark) -> Mapping[str, Mark]:
        """Part -> the mark that its rows had at a cut, or a later one; an increment behind it will come."""
        ...

    def close(self) -> None:
        """Ends it; the log stays as it is."""
        ...


class PartWishes(NamedTuple):
    """How a store is published."""

    interval: float
    """Seconds from one increment to the next, of who has a clock of its own."""
    restored: LogPosition | None
    """Where the log was when the state was saved that the store was restored from."""
    record_bytes: int
    """Changes are cut into increments of about so many bytes."""


class PublishesItself(Protocol):
    """A store whose rows are published by who keeps them; `monolith.ps.PsStore` and those of ranks have this method."""

    def open_publisher(self, name: str, log: DeltaLog, wishes: PartWishes) -> StorePublisher:
        """Follows its rows from now on.

        Args:
            name: Of the store, in the names of the parts.
            log: Where changes go; whoever keeps rows must be able to reach it.
            wishes: How.
        """
        ...


def publishes_itself(store: Store) -> PublishesItself | None:
    """The store, if others than this process publish it, or a part of it alone; None: whoever has it does."""
    return cast("PublishesItself", store) if hasattr(store, "open_publisher") else None
