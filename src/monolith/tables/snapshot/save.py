"""Writes one cut of a group into a snapshot folder, in the foreground or in a thread of its own."""

from __future__ import annotations

import math
import os
import secrets
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, overload

from monolith import _core
from monolith.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
)
from monolith.tables.bucket_owner import BucketOwner
from monolith.tables.cut import ALL_BUCKETS
from monolith.tables.schema import TableSchema
from monolith.tables.snapshot._location import Destination, SnapshotPath, open_destination
from monolith.tables.snapshot.files import bucket_ranges, file_name, remove_files
from monolith.tables.snapshot.manifest import FileEntry, Json, Manifest, TableEntry, require_json

if TYPE_CHECKING:
    from collections.abc import Sequence

_FILE_BYTES = 1 << 30
"""A file this large is read by several threads anyway; smaller ones spare an owner who needs few buckets nothing."""
_SMALL_BYTES = 64 << 20
"""Below this a second file and thread cost more than they bring."""
_MOST_FILES = 256
_MOST_THREADS = 4


class SaveOptions(TypedDict, total=False):
    """Keyword arguments of `save`."""

    num_files: int | None
    """Bucket files to write, 1 to 1024, at least one for each owner; None: by size. Any number of owners can restore
    any number of files."""
    rate_bytes_per_second: float | None
    """Highest rate of writing, over all threads; None: as fast as the disk takes it."""
    state: bool
    """True (default): full rows. False: compressed weights only, for serving."""
    drop_expired: bool
    """True (default): rows that have expired by their table's newest time are left out; the table keeps them."""
    generation: int
    """Kept in the manifest; a snapshot of a higher generation at the path is not replaced. Default 0."""
    applied: Json
    """Stamps of the last applied batches, kept in the manifest."""
    extra: Json
    """Anything else to keep in the manifest."""
    snapshot_id: int | None
    """Tells the files of two snapshots at one path apart, 0 to 2**64 - 1; None: drawn at random."""
    created: int | None
    """Unix seconds for the manifest; None: now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReport:
    """What a save wrote."""

    path: str
    snapshot_id: int
    epoch: int
    """Epoch of the cut."""
    rows: dict[str, int]
    """Table name to rows written."""
    bytes: int
    """Of all bucket files."""
    num_files: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveProgress:
    """How far a save is."""

    bytes_written: int
    bytes_expected: int
    """An estimate: expired rows, filters and tombstones are not known before they are read."""

    @property
    def fraction(self) -> float:
        """0 to 1."""
        return min(1.0, self.bytes_written / self.bytes_expected) if self.bytes_expected else 1.0


class SaveHandle:
    """A save that goes on in a thread named ``monolith-save``. Any thread may call it.

    The interpreter waits for the thread at exit, so a save that was begun ends or fails, but is never torn.
    """

    def __init__(self, job: _SaveJob) -> None:
        self._job = job
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="monolith-save")
        self._future: Future[SaveReport] = executor.submit(job.run)
        executor.shutdown(wait=False)

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()

    @property
    def progress(self) -> SaveProgress:
        """How far it is."""
        return self._job.progress

    def cancel(self) -> None:
        """Asks it to stop; `wait` then raises `CancelledError`, unless the snapshot was committed first."""
        self._job.transfer.cancel()

    def wait(self, timeout_seconds: float | None = None) -> SaveReport:
        """Waits for the end.

        Raises:
            DeadlineExceededError: it goes on; ask again or `cancel`.
            CancelledError: it was cancelled; the path still holds what it held before.
            OpError: what went wrong; the path still holds what it held before.
        """
        try:
            return self._future.result(timeout_seconds)
        except FutureTimeoutError as error:
            if self._future.done():
                raise
            raise DeadlineExceededError(f"save: not done within {timeout_seconds} s; it goes on") from error


@overload
def save(
    group: _core.Group, path: SnapshotPath, *, background: Literal[False] = False, **options: Unpack[SaveOptions]
) -> SaveReport: ...
@overload
def save(
    group: _core.Group, path: SnapshotPath, *, background: Literal[True], **options: Unpack[SaveOptions]
) -> SaveHandle: ...
@overload
def save(
    group: _core.Group, path: SnapshotPath, *, background: bool, **options: Unpack[SaveOptions]
) -> SaveReport | SaveHandle: ...
def save(
    group: _core.Group, path: SnapshotPath, *, background: bool = False, **options: Unpack[SaveOptions]
) -> SaveReport | SaveHandle:
    """Saves the present state of a whole group to a folder while writers go on.

    The state is frozen before the call returns. The path shows the new snapshot from the moment its manifest is in
    place and what it held before until then, whatever happens in between: a full disk, a killed process, an error.

    Args:
        group: the tables.
        path: a folder, local or any fsspec path; created when missing. Its present snapshot is replaced.
        background: True writes in a thread and returns a handle at once.
        options: see `SaveOptions`.

    Raises:
        FailedPreconditionError: a cut of the group is open, or the path holds a higher generation.
        UnavailableError: the path is in use by another save or restore, or cannot be written.
        ResourceExhaustedError: no space; names the file.
    """
    wanted = _checked(options)
    destination = open_destination(path, wanted.generation)
    try:
        cuts = [(BucketOwner(group, ALL_BUCKETS), group.cut())]
        job = _SaveJob(cuts, str(path), destination, wanted, threads=1 if background else _num_threads())
    except BaseException:
        destination.close()
        raise
    return SaveHandle(job) if background else job.run()


def save_cuts(
    cuts: Sequence[tuple[BucketOwner, _core.Cut]],
    path: SnapshotPath,
    *,
    threads: int | None = None,
    **options: Unpack[SaveOptions],
) -> SaveReport:
    """`save` of a state that the caller has frozen, such as one of several that belong together.

    Any thread may call it. The cuts are released, whatever happens.

    Args:
        cuts: The owners of all buckets, in their order, and the cut of each; all were taken at the same moment.
        path: As in `save`.
        threads: How many write at once; None: as many as a save in the foreground.
        options: see `SaveOptions`.
    """
    try:
        wanted = _checked(options)
        destination = open_destination(path, wanted.generation)
    except BaseException:
        _release(cuts)
        raise
    return _SaveJob(cuts, str(path), destination, wanted, threads=threads or _num_threads()).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """`SaveOptions` with every default filled in."""

    num_files: int | None = None
    rate_bytes_per_second: float | None = None
    state: bool = True
    drop_expired: bool = True
    generation: int = 0
    applied: Json = None
    extra: Json = None
    snapshot_id: int | None = None
    created: int | None = None


def _checked(options: SaveOptions) -> _Wanted:
    wanted = _Wanted(**options)
    if wanted.num_files is not None and not 1 <= wanted.num_files <= _core.NUM_BUCKETS:
        raise InvalidArgumentError(f"save: num_files must be from 1 to {_core.NUM_BUCKETS}, got {wanted.num_files}")
    rate = wanted.rate_bytes_per_second
    if rate is not None and not (math.isfinite(rate) and rate >= 1):
        raise InvalidArgumentError(f"save: rate_bytes_per_second must be at least 1, got {rate}")
    if wanted.generation < 0:
        raise InvalidArgumentError(f"save: generation must not be negative, got {wanted.generation}")
    if wanted.snapshot_id is not None and not 0 <= wanted.snapshot_id < 1 << 64:
        raise InvalidArgumentError(f"save: snapshot_id must have 64 bits, got {wanted.snapshot_id}")
    require_json(wanted.applied, name="applied")
    require_json(wanted.extra, name="extra")
    return wanted


def _num_threads() -> int:
    return min(_MOST_THREADS, os.cpu_count() or 1)


class _SaveJob:
    """One save: owns the cuts and the destination until `run` has ended."""

    def __init__(
        self,
        cuts: Sequence[tuple[BucketOwner, _core.Cut]],
        path: str,
        destination: Destination,
        wanted: _Wanted,
        *,
        threads: int,
    ) -> None:
        self.transfer = _core.Transfer()
        self._cuts = cuts
        self._group = group = cuts[0][0].group  # all have the same tables
        self._path = path
        self._destination = destination
        self._wanted = wanted
        self._threads = threads
        self._begun = time.monotonic()
        self._created = int(time.time()) if wanted.created is None else wanted.created
        self._snapshot_id = secrets.randbits(64) if wanted.snapshot_id is None else wanted.snapshot_id
        self._schemas = [
            TableSchema.parse(group.table_name(number), group.schema(number)) for number in range(group.num_tables)
        ]
        self._expected_bytes = sum(self._bytes_of(cut) for _, cut in cuts)

    @property
    def progress(self) -> SaveProgress:
        return SaveProgress(bytes_written=self.transfer.bytes, bytes_expected=self._expected_bytes)

    def run(self) -> SaveReport:
        try:
            manifest = self._manifest(self._write_files())
            self._publish(manifest)
        except FailedPreconditionError as error:
            if self.transfer.cancelled:
                raise CancelledError(f"folder '{self._path}': the save was cancelled, nothing was changed") from error
            raise
        finally:
            _release(self._cuts)
            self._destination.close()
        return SaveReport(
            path=self._path,
            snapshot_id=self._snapshot_id,
            epoch=manifest.epoch,
            rows=manifest.rows,
            bytes=sum(file.bytes for file in manifest.files),
            num_files=len(manifest.files),
            seconds=time.monotonic() - self._begun,
        )

    def _write_files(self) -> list[_core.SnapshotFileInfo]:
        written: list[_core.SnapshotFileInfo] = []
        try:
            for owner, cut in self._cuts:
                written += self._write_files_of(owner, cut)
        except BaseException:
            for info in written:  # the core removes those of the owner whose files it could not write
                Path(info.path).unlink(missing_ok=True)
            raise
        return written

    def _write_files_of(self, owner: BucketOwner, cut: _core.Cut) -> list[_core.SnapshotFileInfo]:
        folder = self._destination.folder
        files = [
            (str(folder / file_name(begin, end, self._snapshot_id)), begin, end)
            for begin, end in bucket_ranges(self._num_files(owner, cut), owner.buckets)
        ]
        return _core.write_snapshot_files(
            cut,
            files,
            snapshot_id=self._snapshot_id,
            state=self._wanted.state,
            drop_expired=self._wanted.drop_expired,
            bytes_per_second=int(self._wanted.rate_bytes_per_second or 0),
            threads=self._threads,
            transfer=self.transfer,
        )

    def _bytes_of(self, cut: _core.Cut) -> int:
        """An estimate."""
        return sum(
            count * (12 + _payload_bytes(schema, self._wanted.state))
            for count, schema in zip(cut.count(), self._schemas, strict=True)
        )

    def _num_files(self, owner: BucketOwner, cut: _core.Cut) -> int:
        size = len(owner.buckets)
        if self._wanted.num_files is not None:
            return max(1, self._wanted.num_files * size // _core.NUM_BUCKETS)
        expected = self._bytes_of(cut)
        if expected < _SMALL_BYTES:
            return 1
        return min(_MOST_FILES, size, max(self._threads, math.ceil(expected / _FILE_BYTES)))

    def _table_entries(self, infos: Sequence[_core.SnapshotFileInfo]) -> tuple[TableEntry, ...]:
        return tuple(
            TableEntry(
                name=schema.name,
                schema=schema.text,
                digest=self._group.digest(number),
                rows=sum(info.rows_by_table.get(number, 0) for info in infos),
                newest_time=newest_time,
            )
            for number, (schema, newest_time) in enumerate(zip(self._schemas, self._newest_times(), strict=True))
        )

    def _newest_times(self) -> list[int]:
        return [max(times) for times in zip(*(cut.newest_times() for _, cut in self._cuts), strict=True)]

    def _manifest(self, infos: Sequence[_core.SnapshotFileInfo]) -> Manifest:
        return Manifest(
            snapshot_id=self._snapshot_id,
            generation=self._wanted.generation,
            epoch=self._cuts[0][1].epoch,
            created=self._created,
            state=self._wanted.state,
            tables=self._table_entries(infos),
            files=tuple(_file_entry(info) for info in infos),
            applied=self._wanted.applied,
            extra=self._wanted.extra,
        )

    def _publish(self, manifest: Manifest) -> None:
        if self.transfer.cancelled:
            remove_files(self._destination.folder, manifest)
            raise FailedPreconditionError("cancelled by the caller")
        self._destination.publish(manifest)


def _release(cuts: Sequence[tuple[BucketOwner, _core.Cut]]) -> None:
    for _, cut in cuts:
        cut.release()


def _payload_bytes(schema: TableSchema, state: bool) -> int:
    if state and not schema.serving:
        return 4 * schema.dim + schema.state_bytes
    return sum(segment.compressed_bytes for segment in schema.segments)


def _file_entry(info: _core.SnapshotFileInfo) -> FileEntry:
    begin, end = info.buckets
    return FileEntry(
        name=file_name(begin, end, info.snapshot_id),
        begin=begin,
        end=end,
        bytes=info.bytes,
        index_crc32c=info.index_crc,
        rows=sum(info.rows_by_table.values()),
    )
