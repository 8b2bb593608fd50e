"""The history of a store: marks in it, consistent cuts, and readers that follow changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monolith import _core
    from monolith.tables.batch import BatchStamp
    from monolith.tables.formats.row_block import PackedBlocks, RowBlock
    from monolith.tables.snapshot.manifest import FileEntry

NUM_BUCKETS = 1024
ALL_BUCKETS = range(NUM_BUCKETS)


class ChangePosition(NamedTuple):
    """A position in the history of a store, from which changes can be read. A mark of another run is rejected."""

    generation: int
    """Grows with every `Store.resume`: changes after the restored state were rolled back."""
    life: int
    """Random id of the run, drawn with the generation: two runs resumed from one checkpoint share the generation."""
    epoch: int
    """Grows with every mark; 0 is before everything."""


class OwnerClock(NamedTuple):
    """The last batch of every worker at one owner of rows."""

    buckets: range
    """The buckets that the owner stores."""
    stamps: Mapping[int, BatchStamp]
    """Worker -> its last batch that is in these rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWriteConfig:
    """How a cut is written to files."""

    snapshot_id: int
    """64 bits in the file names that separate the files of two snapshots in one folder."""
    state: bool = True
    """True: full rows. False: compressed weights only, for serving."""
    drop_expired: bool = False
    """Skip rows that have expired by their table's newest time; the store keeps them."""
    num_files: int | None = None
    """Files for all buckets, at least one for each owner; None: by size."""
    rate_bytes_per_second: float | None = None
    """Highest rate of writing, over all threads of an owner; None: as fast as the disk takes it."""
    threads: int | None = None
    """Number of concurrent writers; None: the number of cores of the owner's machine."""


class WrittenRows(NamedTuple):
    """Contents of the files of a cut, for the manifest."""

    files: Sequence[FileEntry]
    """By ascending buckets, with their checksums."""
    rows: Mapping[str, int]
    """Table -> rows in these files."""
    newest_times: Mapping[str, int]
    """Table -> Unix seconds of its newest update."""


class Cut(Protocol):
    """A consistent state of every owner, valid until `release` while training continues. A context manager."""

    @property
    def mark(self) -> ChangePosition:
        """Position of the cut in the history: a reader opened at it follows the changes after the cut."""

    @property
    def applied(self) -> Sequence[OwnerClock]:
        """Clock of each owner, by ascending buckets: gives input positions and exactly-once updates."""

    @property
    def rows(self) -> Mapping[str, int]:
        """Table -> its rows in this cut."""

    def blocks(self, buckets: range, *, state: bool, since: ChangePosition | None = None) -> Iterator[RowBlock]:
        """Yields filters and rows of `buckets`, each bucket once per cut; `state=False`: serving rows.

        With `since` only rows changed after that mark, and tombstones of those removed after it, as of this cut, and no
        filters.

        Raises:
            FailedPreconditionError: the cut was released, or a bucket was read before; or the mark is of another run,
                lies after the cut, or its history was truncated.
        """

    def write(self, folder: str, rules: SnapshotWriteConfig, *, transfer: _core.Transfer | None = None) -> WrittenRows:
        """Writes the bucket files of docs/formats/snapshot.md into a folder that exists, local or any fsspec path.

        Each owner writes its own buckets; a cut can be read or written once. The caller writes the manifest last, which
        commits the files. On an error, or when cancelled by `transfer`, the files are removed.
        """

    def release(self) -> None:
        """Lets the store discard the old row images it kept for this cut. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class ChangeReader(Protocol):
    """A named reader of a store's changes. The store keeps what its slowest reader has not read.

    A round of a follower::

        reached = reader.next_mark()
        for block in reader.changes(state=False): ...     # everything after reader.mark, as it is now
        reader.advance(reached)                           # once the blocks are safe: the store may discard them
    """

    @property
    def name(self) -> str:
        """Name of the reader in the store; a reader opened again by its name resumes where it was."""

    @property
    def mark(self) -> ChangePosition:
        """The mark up to which the reader has read."""

    def next_mark(self) -> ChangePosition:
        """Closes the current epoch: later writes are after the mark that is returned."""

    def changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> Iterator[RowBlock]:
        """Yields tombstones, then rows as they are now, of everything touched after `mark`; an id may be in both."""

    def packed_changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> PackedBlocks:
        """Returns the blocks of `changes` in one buffer, which is cheaper for a caller that forwards the bytes.

        All blocks are in memory together; read some buckets at a time where there may be many, as after a long pause.
        """

    def advance(self, to: ChangePosition) -> None:
        """Records that everything up to `to` was read.

        Raises:
            FailedPreconditionError: the mark is of another run, lies in the future, or before `mark`.
        """

    def close(self) -> None:
        """Removes this reader and the history kept for it. Idempotent."""


def bucket_bounds(buckets: range) -> tuple[int, int]:
    """Returns begin and end of consecutive buckets."""
    if buckets.step != 1 or not 0 <= buckets.start <= buckets.stop <= NUM_BUCKETS:
        raise InvalidArgumentError(f"buckets must be a range inside range({NUM_BUCKETS}) of step 1, got {buckets}")
    return buckets.start, buckets.stop


def shared_buckets(one: range, other: range) -> range:
    """Returns the consecutive buckets in both ranges; an empty range where there are none.

    >>> shared_buckets(range(0, 512), range(342, 683)), len(shared_buckets(range(0, 2), range(5, 9)))
    (range(342, 512), 0)
    """
    begin, end = max(one.start, other.start), min(one.stop, other.stop)
    return range(begin, max(begin, end))
