"""Interface of the publisher of one store: this process, or the processes that own its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.deltalog import DeltaLog
    from monolith.deltalog.publish.examples_tally import Trained
    from monolith.deltalog.publish.log_position import LogPosition
    from monolith.tables.history import ChangePosition
    from monolith.tables.store import Store


class StorePublisher(Protocol):
    """Publisher of one store to its parts of a log. Not thread-safe: calls must not overlap."""

    @property
    def has_own_clock(self) -> bool:
        """Whether it publishes on its own schedule; `publish` is then called only to force changes into the log."""
        ...

    @property
    def numbers(self) -> Mapping[str, int]:
        """Part -> number of its last increment."""
        ...

    def open(self) -> None:
        """Claims the parts from their previous writers. Idempotent.

        Raises:
            OpError: the log is unreachable; the call can be retried.
        """
        ...

    def publish(self, trained: Trained) -> int:
        """Writes what has changed since the last call; returns the number of increments."""
        ...

    def needs(self) -> Mapping[str, int]:
        """Returns the numbers that dense weights copied before the last `publish` need."""
        ...

    def before_cut(self) -> Mapping[str, int]:
        """Returns the numbers, including those of ended parts."""
        ...

    def after_cut(self, mark: ChangePosition) -> Mapping[str, ChangePosition]:
        """Returns part -> the mark of its rows at a cut, or a later one; an increment after it will be written."""
        ...

    def close(self) -> None:
        """Stops publishing; the log is unchanged."""
        ...


class StorePublishingConfig(NamedTuple):
    """Settings for publishing a store."""

    interval: float
    """Seconds from one increment to the next, for a publisher with its own schedule."""
    restored: LogPosition | None
    """Position of the log at the checkpoint from which the store was restored; None: unknown."""
    record_bytes: int
    """Approximate maximum size of an increment; larger changes are split."""


class PublishesItself(Protocol):
    """A store whose rows are published by their owners, such as `monolith.ps.PsStore` and the stores of ranks."""

    def open_publisher(self, name: str, log: DeltaLog, publishing_config: StorePublishingConfig) -> StorePublisher:
        """Returns a publisher that follows its rows from now on.

        Args:
            name: Name of the store, used in the names of the parts.
            log: Log to which changes are written; every owner of rows must be able to reach it.
            publishing_config: Settings.
        """
        ...


def publishes_itself(store: Store) -> PublishesItself | None:
    """Returns the store if it provides its own publisher; None if this process publishes all of it."""
    return cast("PublishesItself", store) if hasattr(store, "open_publisher") else None
