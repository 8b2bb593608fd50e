"""The history of a store: moments in it, one moment frozen to be read, and readers that follow what changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monolith import _core
    from monolith.tables.batch import BatchStamp
    from monolith.tables.packed_blocks import PackedBlocks
    from monolith.tables.row_block import RowBlock
    from monolith.tables.snapshot.manifest import FileEntry

NUM_BUCKETS = 1024
ALL_BUCKETS = range(NUM_BUCKETS)


class Mark(NamedTuple):
    """A moment in the history of a store, from which changes can be asked. One of another life is refused."""

    generation: int
    """Grows with every `Store.resume`: what came after the state that was put back has not happened."""
    life: int
    """Drawn at random with the generation: two runs that go on from one checkpoint are of one generation."""
    epoch: int
    """Grows with every mark; 0 is before everything."""


class OwnerClock(NamedTuple):
    """What one owner of rows has of every worker."""

    buckets: range
    """The buckets whose rows it keeps."""
    stamps: Mapping[int, BatchStamp]
    """Worker -> its last batch that is in these rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRules:
    """How a cut is written to files."""

    snapshot_id: int
    """64 bits that tell the files of two snapshots in one folder apart; part of their names."""
    state: bool = True
    """True: full rows. False: compressed weights only, for serving."""
    drop_expired: bool = False
    """Leave out rows that have expired by their table's newest time; the store keeps them."""
    num_files: int | None = None
    """Files for all buckets, at least one for each owner; None: by size."""
    rate_bytes_per_second: float | None = None
    """Highest rate of writing, over all threads of an owner; None: as fast as the disk takes it."""
    threads: int | None = None
    """How many write at once; None: as the owner's machine has cores."""


class WrittenRows(NamedTuple):
    """What the files of a cut hold; who writes the manifest needs it."""

    files: Sequence[FileEntry]
    """By ascending buckets, with their checksums."""
    rows: Mapping[str, int]
    """Table -> rows in these files."""
    newest_times: Mapping[str, int]
    """Table -> Unix seconds of the newest update it had seen."""


class Cut(Protocol):
    """One exact moment of every owner, valid until `release` while training goes on. A context manager."""

    @property
    def mark(self) -> Mark:
        """Its place in the history: a reader opened at it follows what came after."""
        ...

    @property
    def applied(self) -> Sequence[OwnerClock]:
        """What each owner held of everyone, by ascending buckets: input positions and exactly-once in one."""
        ...

    @property
    def rows(self) -> Mapping[str, int]:
        """Table -> its rows at this moment."""
        ...

    def blocks(self, buckets: range, *, state: bool, since: Mark | None = None) -> Iterator[RowBlock]:
        """Filters and rows of `buckets`, each bucket once per cut; `state=False`: serving rows.

        With `since` only rows changed after that mark, and tombstones of those removed after it, as of this cut, and no
        filters.

        Raises:
            FailedPreconditionError: the cut was released or a bucket read before; or a mark of another life, of after
                the cut, or whose history was forgotten before it.
        """
        ...

    def write(self, folder: str, rules: WriteRules, *, transfer: _core.Transfer | None = None) -> WrittenRows:
        """Writes the bucket files of docs/formats/snapshot.md into a folder that exists, local or any fsspec path.

        Each owner writes its own buckets; a cut can be read or written once. The caller writes the manifest, last: the
        files do not count before. On an error, or when cancelled by `transfer`, they are removed again.
        """
        ...

    def release(self) -> None:
        """Lets the store forget the old images it kept for this cut. Calling it again does nothing."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class ChangeReader(Protocol):
    """A named follower of a store's changes. The store keeps what its slowest reader has not read.

    A round of a follower::

        reached = reader.next_mark()
        for block in reader.changes(state=False): ...     # everything after reader.mark, as it is now
        reader.advance(reached)                           # once the blocks are safe: the store may forget them
    """

    @property
    def name(self) -> str:
        """Under which the store knows it; opened again, it goes on where it was."""
        ...

    @property
    def mark(self) -> Mark:
        """It has read everything up to here."""
        ...

    def next_mark(self) -> Mark:
        """Ends the present epoch: what is written from now on is after the mark that is returned."""
        ...

    def changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> Iterator[RowBlock]:
        """Tombstones, then rows as they are now, of everything touched after `mark`; an id may be in both."""
        ...

    def packed_changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> PackedBlocks:
        """The blocks of `changes`, all of them read and in one piece: less work for who hands the bytes on.

        Everything is in memory at once; ask for some buckets at a time where that may be much, as after a long pause.
        """
        ...

    def advance(self, to: Mark) -> None:
        """Everything up to `to` was read.

        Raises:
            FailedPreconditionError: a mark of another life, of the future, or before `mark`.
        """
        ...

    def close(self) -> None:
        """The store forgets this reader, and what it kept for it. Calling it again does nothing."""
        ...


def bucket_bounds(buckets: range) -> tuple[int, int]:
    """Begin and end of consecutive buckets."""
    if buckets.step != 1 or not 0 <= buckets.start <= buckets.stop <= NUM_BUCKETS:
        raise InvalidArgumentError(f"buckets must be a range inside range({NUM_BUCKETS}) of step 1, got {buckets}")
    return buckets.start, buckets.stop


def shared_buckets(one: range, other: range) -> range:
    """Consecutive buckets that both have; an empty range where there are none.

    >>> shared_buckets(range(0, 512), range(342, 683)), len(shared_buckets(range(0, 2), range(5, 9)))
    (range(342, 512), 0)
    """
    begin, end = max(one.start, other.start), min(one.stop, other.stop)
    return range(begin, max(begin, end))
