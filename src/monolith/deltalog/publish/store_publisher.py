"""`StorePublisher`, the publisher of one store to a delta log.

There is one for each place of rows: `LocalPublisher` for those of this process, `ShardedPublisher` for those of a rank
(`collective`), and `RemotePublisher` for those on servers (`ps`), each of which runs a `HostedPublisher`.

Stores have the names that the log and the checkpoints of a run use. Rows are compressed for serving.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from monolith.tables import Schema

if TYPE_CHECKING:
    from monolith.deltalog import DeltaLog
    from monolith.deltalog.publish.log_position import LogPosition
    from monolith.deltalog.publish.publisher import Trained
    from monolith.tables import ChangePosition, Store

ONE_STORE = "model"
RECORD_BYTES = 32 << 20


def named_stores(stores: Store | Mapping[str, Store]) -> dict[str, Store]:
    """Returns the stores by name.

    A single store is called ``model``, like that of a model that is itself an `Embeddings`.
    """
    return dict(stores) if isinstance(stores, Mapping) else {ONE_STORE: stores}


def serving_schema(schema: Schema) -> Schema:
    """Returns the schema of the serving rows of a store, which its follower has as well."""
    return Schema(tuple(replace(table, serving=True) for table in schema.tables))


class StorePublisher(Protocol):
    """Publisher of one store to its parts of a log. Not thread-safe: calls must not overlap."""

    @property
    def has_own_clock(self) -> bool:
        """Whether it publishes on its own schedule; `publish` is then called only to force changes into the log."""

    @property
    def numbers(self) -> Mapping[str, int]:
        """Part -> number of its last increment."""

    def open(self) -> None:
        """Claims the parts from their previous writers. Idempotent.

        Raises:
            OpError: the log is unreachable; the call can be retried.
        """

    def publish(self, trained: Trained) -> int:
        """Writes what has changed since the last call; returns the number of increments."""

    def needs(self) -> Mapping[str, int]:
        """Returns the numbers that dense weights copied before the last `publish` need."""

    def before_cut(self) -> Mapping[str, int]:
        """Returns the numbers, including those of ended parts."""

    def after_cut(self, mark: ChangePosition) -> Mapping[str, ChangePosition]:
        """Returns part -> the mark of its rows at a cut, or a later one; an increment after it will be written."""

    def close(self) -> None:
        """Stops publishing; the log is unchanged."""


class StorePublishingConfig(NamedTuple):
    """Settings for publishing a store."""

    interval: float = 1.0
    """Seconds from one increment to the next, for a publisher with its own schedule."""
    restored: LogPosition | None = None
    """Position of the log at the checkpoint from which the store was restored; None: unknown."""
    record_bytes: int = RECORD_BYTES
    """Approximate maximum size of an increment; larger changes are split."""


@runtime_checkable
class PublishedRows(Protocol):
    """Optional, for a `monolith.tables.Store`: its owners publish their rows, such as servers and ranks.

    The process of a `DeltaPublisher` publishes the rows of all other stores by itself.
    """

    def open_publisher(self, name: str, log: DeltaLog, publishing_config: StorePublishingConfig) -> StorePublisher:
        """Returns a publisher that follows its rows from now on.

        Args:
            name: Name of the store, used in the names of the parts.
            log: Log to which changes are written; every owner of rows must be able to reach it.
            publishing_config: Settings.
        """
