"""Writes one cut of a store into a snapshot folder, in the foreground or in a thread of its own."""

from __future__ import annotations

import math
import secrets
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypedDict, TypeVar, Unpack, overload

from monolith import _core
from monolith.errors import CancelledError, DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from monolith.tables.history import NUM_BUCKETS, SnapshotWriteConfig
from monolith.tables.snapshot.location import Destination, SnapshotPath, open_destination, remove_written
from monolith.tables.snapshot.manifest import Json, SnapshotManifest, TableEntry, require_json

if TYPE_CHECKING:
    from monolith.tables.history import Cut, WrittenRows
    from monolith.tables.schema import Schema
    from monolith.tables.store import Store

Saved = TypeVar("Saved")


class SnapshotSaveConfig(TypedDict, total=False):
    """Keyword arguments of `save`."""

    num_files: int | None
    """Bucket files to write, 1 to 1024, at least one for each owner; None: by size. Any number of owners can restore
    any number of files."""
    rate_bytes_per_second: float | None
    """Highest rate of writing, over all threads; None: as fast as the disk takes it."""
    state: bool
    """True (default): full rows. False: compressed weights only, for serving."""
    drop_expired: bool
    """True (default): rows that have expired by their table's newest time are skipped; the table keeps them."""
    generation: int
    """Kept in the manifest; a snapshot of a higher generation at the path is not replaced. Default 0."""
    extra: Json
    """Anything else to keep in the manifest."""
    snapshot_id: int | None
    """Separates the files of two snapshots at one path, 0 to 2**64 - 1; None: drawn at random."""
    created: int | None
    """Unix seconds for the manifest; None: now."""
    threads: int | None
    """Number of concurrent writers; None: one in the background, else one per core, up to 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReport:
    """Result of a save."""

    path: str
    snapshot_id: int
    epoch: int
    """Epoch of the cut."""
    rows: dict[str, int]
    """Table name to rows written."""
    bytes: int
    """Size of all bucket files together."""
    num_files: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveProgress:
    """Progress of a save."""

    bytes_written: int
    bytes_expected: int
    """An estimate: the number of expired rows and the size of filters and tombstones show only when they are read."""

    @property
    def fraction(self) -> float:
        """Share of the expected bytes that is written, 0 to 1."""
        return min(1.0, self.bytes_written / self.bytes_expected) if self.bytes_expected else 1.0


class SaveHandle:
    """A save that runs in a thread named ``monolith-save``. Thread-safe.

    The interpreter waits for the thread at exit, so a save completes or fails, but is never torn.
    """

    def __init__(self, job: _SaveJob) -> None:
        self._job = job
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="monolith-save")
        self._future: Future[SaveReport] = executor.submit(job.run)
        executor.shutdown(wait=False)

    @property
    def done(self) -> bool:
        """Whether the save has completed or failed."""
        return self._future.done()

    @property
    def progress(self) -> SaveProgress:
        """Progress of the save."""
        return self._job.progress

    def cancel(self) -> None:
        """Requests a stop; `wait` then raises `CancelledError`, unless the snapshot was committed first."""
        self._job.transfer.cancel()

    def wait(self, timeout_seconds: float | None = None) -> SaveReport:
        """Waits for the save to complete.

        Raises:
            DeadlineExceededError: the save is still running; wait again or `cancel`.
            CancelledError: it was cancelled; the path still holds what it held before.
            OpError: the save failed; the path still holds what it held before.
        """
        return end_of_save(self._future, timeout_seconds)


def end_of_save(future: Future[Saved], timeout_seconds: float | None) -> Saved:
    """Returns the result of a save in a thread.

    Raises:
        DeadlineExceededError: the save is still running.
    """
    try:
        return future.result(timeout_seconds)
    except FutureTimeoutError as error:
        if future.done():
            raise  # raised by the save itself
        raise DeadlineExceededError(f"save: not done within {timeout_seconds} s; it keeps running") from error


@overload
def save(
    store: Store, path: SnapshotPath, *, background: Literal[False] = False, **options: Unpack[SnapshotSaveConfig]
) -> SaveReport: ...
@overload
def save(
    store: Store, path: SnapshotPath, *, background: Literal[True], **options: Unpack[SnapshotSaveConfig]
) -> SaveHandle: ...
@overload
def save(
    store: Store, path: SnapshotPath, *, background: bool, **options: Unpack[SnapshotSaveConfig]
) -> SaveReport | SaveHandle: ...
def save(
    store: Store, path: SnapshotPath, *, background: bool = False, **options: Unpack[SnapshotSaveConfig]
) -> SaveReport | SaveHandle:
    """Saves the current state of a store to a folder while writers continue.

    The state is frozen before the call returns. The path shows its previous snapshot until the manifest of the new one
    is in place, also after a full disk, a killed process or an error.

    Args:
        store: the tables.
        path: a folder, local or any fsspec path; created when missing. Its present snapshot is replaced.
        background: True writes in a thread and returns a handle immediately.
        options: see `SnapshotSaveConfig`.

    Raises:
        FailedPreconditionError: a cut of the store is open, or the path holds a higher generation.
        UnavailableError: the path is in use by another save or restore, or cannot be written.
        ResourceExhaustedError: no space; names the file.
    """
    settings = _checked(options)
    if background and settings.threads is None:
        settings = replace(settings, threads=1)
    destination = open_destination(path, settings.generation)
    try:
        job = _SaveJob(store.cut(), store.schema, str(path), destination, settings)
    except BaseException:
        destination.close()
        raise
    return SaveHandle(job) if background else job.run()


def save_cut(cut: Cut, schema: Schema, path: SnapshotPath, **options: Unpack[SnapshotSaveConfig]) -> SaveReport:
    """Saves a state that the caller has frozen, such as one of several that belong together.

    Thread-safe. The cut is released in any case.

    Args:
        cut: Of a store with this schema.
        schema: What its rows hold.
        path: As in `save`.
        options: see `SnapshotSaveConfig`.
    """
    try:
        settings = _checked(options)
        destination = open_destination(path, settings.generation)
    except BaseException:
        cut.release()
        raise
    return _SaveJob(cut, schema, str(path), destination, settings).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _SaveSettings:
    """`SnapshotSaveConfig` with every default filled in."""

    num_files: int | None = None
    rate_bytes_per_second: float | None = None
    state: bool = True
    drop_expired: bool = True
    generation: int = 0
    extra: Json = None
    snapshot_id: int | None = None
    created: int | None = None
    threads: int | None = None

    @property
    def rules(self) -> SnapshotWriteConfig:
        """How the cut is written."""
        return SnapshotWriteConfig(
            snapshot_id=secrets.randbits(64) if self.snapshot_id is None else self.snapshot_id,
            state=self.state,
            drop_expired=self.drop_expired,
            num_files=self.num_files,
            rate_bytes_per_second=self.rate_bytes_per_second,
            threads=self.threads,
        )


def _checked(options: SnapshotSaveConfig) -> _SaveSettings:
    settings = _SaveSettings(**options)
    if settings.num_files is not None and not 1 <= settings.num_files <= NUM_BUCKETS:
        raise InvalidArgumentError(f"save: num_files must be from 1 to {NUM_BUCKETS}, got {settings.num_files}")
    rate = settings.rate_bytes_per_second
    if rate is not None and not (math.isfinite(rate) and rate >= 1):
        raise InvalidArgumentError(f"save: rate_bytes_per_second must be at least 1, got {rate}")
    if settings.generation < 0:
        raise InvalidArgumentError(f"save: generation must not be negative, got {settings.generation}")
    if settings.snapshot_id is not None and not 0 <= settings.snapshot_id < 1 << 64:
        raise InvalidArgumentError(f"save: snapshot_id must have 64 bits, got {settings.snapshot_id}")
    require_json(settings.extra, name="extra")
    return settings


class _SaveJob:
    """One save: owns the cut and the destination until `run` has ended."""

    def __init__(self, cut: Cut, schema: Schema, path: str, destination: Destination, settings: _SaveSettings) -> None:
        self.transfer = _core.Transfer()
        self._cut = cut
        self._schema = schema
        self._path = path
        self._destination = destination
        self._settings = settings
        self._rules = settings.rules
        self._begun = time.monotonic()
        self._created = int(time.time()) if settings.created is None else settings.created
        self._expected_bytes = schema.num_bytes(cut.rows, state=settings.state)

    @property
    def progress(self) -> SaveProgress:
        return SaveProgress(bytes_written=self.transfer.bytes, bytes_expected=self._expected_bytes)

    def run(self) -> SaveReport:
        try:
            manifest = self._manifest(self._cut.write(self._path, self._rules, transfer=self.transfer))
            self._publish(manifest)
        except FailedPreconditionError as error:
            if self.transfer.cancelled:
                raise CancelledError(f"folder '{self._path}': the save was cancelled, nothing was changed") from error
            raise
        finally:
            self._cut.release()
            self._destination.close()
        return SaveReport(
            path=self._path,
            snapshot_id=manifest.snapshot_id,
            epoch=manifest.epoch,
            rows=manifest.rows,
            bytes=sum(file.bytes for file in manifest.files),
            num_files=len(manifest.files),
            seconds=time.monotonic() - self._begun,
        )

    def _manifest(self, written: WrittenRows) -> SnapshotManifest:
        return SnapshotManifest(
            snapshot_id=self._rules.snapshot_id,
            generation=self._settings.generation,
            epoch=self._cut.mark.epoch,
            created=self._created,
            state=self._settings.state,
            tables=tuple(
                TableEntry(
                    name=table.name,
                    schema=table.text,
                    digest=table.digest,
                    rows=written.rows[table.name],
                    newest_time=written.newest_times[table.name],
                )
                for table in self._schema.tables
            ),
            files=tuple(written.files),
            applied=tuple(self._cut.applied),
            extra=self._settings.extra,
        )

    def _publish(self, manifest: SnapshotManifest) -> None:
        if self.transfer.cancelled:
            remove_written(self._path, manifest.files)
            raise FailedPreconditionError("cancelled by the caller")
        self._destination.publish(manifest)
