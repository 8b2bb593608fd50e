"""Loads a snapshot, or some buckets of one, into a store. An error leaves the store unchanged."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.tables.history import ALL_BUCKETS
from monolith.tables.snapshot.location import open_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.tables.history import OwnerClock
    from monolith.tables.snapshot.location import SnapshotPath
    from monolith.tables.snapshot.manifest import Json, SnapshotManifest
    from monolith.tables.snapshot.matching import TableMatch
    from monolith.tables.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """Result of a restore."""

    rows: Mapping[str, int]
    """Table name to rows loaded."""
    missing_tables: tuple[str, ...]
    """Tables of the store that the snapshot does not have; they are empty now."""
    ignored_tables: tuple[str, ...]
    """Tables of the snapshot that were skipped."""
    notes: tuple[str, ...]
    """What differs from the saved state, such as optimizer state that was reset; one readable line each."""
    generation: int
    epoch: int
    applied: Sequence[OwnerClock]
    """The last batch of every worker in the rows."""
    extra: Json
    """As given to `save`."""


def restore(
    store: Store, path: SnapshotPath, *, buckets: range | None = None, ignore_unknown_tables: bool = False
) -> RestoreReport:
    """Replaces what the store holds in some buckets by what a snapshot holds there.

    Tables are matched by name, segments by position; docs/formats/snapshot.md has the rules. Admission does not apply,
    and rows keep their times. An error leaves the store unchanged.

    Args:
        store: the tables.
        path: a folder that `save` wrote, local or any fsspec path.
        buckets: consecutive buckets to restore, such as those an owner is responsible for; None: all. Only their files
            are read, and other buckets of the store stay as they are.
        ignore_unknown_tables: skip tables that only the snapshot has, instead of raising.

    Raises:
        NotFoundError: there is no snapshot, or a file of it is missing.
        DataLossError: a file is damaged; names the file, the offset and the reason.
        FailedPreconditionError: the store cannot load a table or segment, or has an open cut.
        UnavailableError: the path is being written to.
    """
    wanted = ALL_BUCKETS if buckets is None else buckets
    with closing(open_source(path)) as source:
        preparing = store.prepare_restore(
            str(path), source.manifest, buckets=wanted, ignore_unknown_tables=ignore_unknown_tables
        )
        with preparing as prepared:
            return prepared.load()


def verify(store: Store, path: SnapshotPath, *, ignore_unknown_tables: bool = False) -> SnapshotManifest:
    """Reads every byte of a snapshot and checks that the store could load it; changes nothing.

    Raises:
        OpError: what `restore` would raise.
    """
    with closing(open_source(path)) as source:
        manifest = source.manifest
        with store.prepare_restore(
            str(path), manifest, buckets=manifest.buckets, ignore_unknown_tables=ignore_unknown_tables
        ):
            return manifest


def report_of(manifest: SnapshotManifest, match: TableMatch, rows: Mapping[str, int]) -> RestoreReport:
    """Returns the report of a restore that loaded these rows."""
    return RestoreReport(
        rows=rows,
        missing_tables=match.missing,
        ignored_tables=match.ignored,
        notes=match.notes,
        generation=manifest.generation,
        epoch=manifest.epoch,
        applied=manifest.applied,
        extra=manifest.extra,
    )
