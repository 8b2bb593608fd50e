"""A consistent cut of the rows of all ranks, and its restore.

In a restore each rank reads its own buckets, and all are checked before any is replaced.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from monolith.collective.serial_executor import RaisedByAllError
from monolith.collective.sharded.calls import pack, settled, stamps_from_plain, stamps_to_plain, unpack
from monolith.errors import FailedPreconditionError, OpError
from monolith.tables import (
    ALL_BUCKETS,
    ChangePosition,
    OwnerClock,
    OwnersCut,
    PreparedRestore,
    SnapshotWriteConfig,
    WrittenRows,
    bucket_bounds,
    emptied_by,
    shared_buckets,
)
from monolith.tables.local import LocalRestore
from monolith.tables.snapshot import FileEntry, SnapshotManifest, remove_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from monolith import _core
    from monolith.collective.sharded.calls import BlockStreams, RankCalls
    from monolith.tables.formats import RowBlock
    from monolith.tables.local import LocalCut, NativeTables
    from monolith.tables.snapshot import RestoreReport


class CutCalls:
    """The calls of each rank for cuts of a store."""

    def __init__(
        self, saving: RankCalls, streams: BlockStreams, *, owned: Sequence[range], take: Callable[[], LocalCut]
    ) -> None:
        self.saving = saving
        self.streams = streams
        self._owned = owned
        self._take = take
        self._numbers = count()
        self._open: dict[int, LocalCut] = {}
        saving.define("write cut of", self._write)
        saving.define("blocks of cut of", self._blocks)
        saving.define("release cut of", self._release)

    def cut(self, wire: Any) -> ShardedCut:
        """Takes a consistent cut of all ranks. Runs in a call of all ranks."""
        number = next(self._numbers)
        marks: list[ChangePosition] = []

        def take() -> bytes:
            # Another rank may write and release it as soon as it has the answers, before this one continues.
            own_cut = self._open[number] = self._take()
            marks.append(own_cut.mark)
            stamps = [stamp for clock in own_cut.applied for stamp in clock.stamps.values()]
            return pack([stamps_to_plain(stamps), dict(own_cut.rows)])

        try:
            answers = [unpack(answer)[0] for answer in settled(wire, take)]
        except RaisedByAllError:
            self.release_here(number)
            raise
        clocks = [
            OwnerClock(owned, stamps_from_plain(stamps))
            for owned, (stamps, _) in zip(self._owned, answers, strict=True)
        ]
        rows = {table: sum(counts[table] for _, counts in answers) for table in answers[0][1]}
        return ShardedCut(self, number, mark=marks[0], applied=[clock for clock in clocks if clock.buckets], rows=rows)

    def _own(self, number: int) -> LocalCut:
        if number not in self._open:
            raise FailedPreconditionError("cut: it was released; take another one")
        return self._open[number]

    def _write(self, arguments: bytes, transfer: _core.Transfer | None) -> WrittenRows:
        (number, folder, rules), _ = unpack(arguments)
        written: list[WrittenRows] = []

        def write() -> bytes:
            written.append(self._write_own(number, folder, SnapshotWriteConfig(**rules), transfer))
            files = [asdict(file) for file in written[0].files]
            return pack([files, dict(written[0].rows), dict(written[0].newest_times)])

        try:
            answers = [unpack(answer)[0] for answer in settled(self.saving.wire, write)]
        except RaisedByAllError:  # a failing rank removes its own files, not those of others
            remove_written(folder, chain.from_iterable(part.files for part in written))
            raise
        return WrittenRows(
            files=[FileEntry(**file) for files, _, _ in answers for file in files],
            rows={table: sum(rows[table] for _, rows, _ in answers) for table in answers[0][1]},
            newest_times={table: max(times[table] for _, _, times in answers) for table in answers[0][2]},
        )

    def _write_own(
        self, number: int, folder: str, rules: SnapshotWriteConfig, transfer: _core.Transfer | None
    ) -> WrittenRows:
        cut = self._own(number)
        if not self._owned[self.saving.wire.rank]:
            return WrittenRows([], dict.fromkeys(cut.rows, 0), cut.newest_times)
        return cut.write(folder, rules, transfer=transfer)

    def _blocks(self, arguments: bytes, _: object) -> int:
        (number, begin, end, state, since), _blobs = unpack(arguments)
        mark = None if since is None else ChangePosition(*since)
        return self.streams.open(lambda: self._own(number).blocks(range(begin, end), state=state, since=mark))

    def _release(self, arguments: bytes, _: object) -> None:
        (number,), _blobs = unpack(arguments)
        settled(self.saving.wire, lambda: self.release_here(number))

    def take(self, number: int) -> LocalCut:
        """Returns the cut of this rank; the caller releases it."""
        cut = self._own(number)
        del self._open[number]
        return cut

    def release_here(self, number: int) -> bytes:
        """Releases the cut of this rank."""
        cut = self._open.pop(number, None)
        if cut is not None:
            cut.release()
        return b""


class ShardedCut(OwnersCut):
    """`monolith.tables.Cut` of all ranks: they write, read and release it together, in the background.

    All ranks that have buckets hold the same stamps of every worker, since all see every update.
    """

    def __init__(
        self,
        calls: CutCalls,
        number: int,
        *,
        mark: ChangePosition,
        applied: Sequence[OwnerClock],
        rows: Mapping[str, int],
    ) -> None:
        self._calls = calls
        self._number = number
        super().__init__(mark=mark, applied=applied, rows=rows)
        self._lock = threading.Lock()
        self._is_released = False

    def blocks(
        self, buckets: range = ALL_BUCKETS, *, state: bool = True, since: ChangePosition | None = None
    ) -> Iterator[RowBlock]:
        """Yields each bucket once per cut; every rank gets the blocks of all."""
        begin, end = bucket_bounds(buckets)
        self._require_open()
        self._take(buckets)
        plain = None if since is None else list(since)
        try:
            number = self._calls.saving.run("blocks of cut of", pack([self._number, begin, end, state, plain]))
        except BaseException:
            self._give_back(buckets)
            raise
        return self._calls.streams.blocks(number)

    def write(self, folder: str, rules: SnapshotWriteConfig, *, transfer: _core.Transfer | None = None) -> WrittenRows:
        """Writes the bucket files of all ranks concurrently, each rank its own; every rank gets all entries."""
        self._require_open()
        written: WrittenRows = self._calls.saving.run(
            "write cut of", pack([self._number, folder, asdict(rules)]), transfer
        )
        return written

    def release(self) -> None:
        """Releases the old images on all ranks together."""
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
        try:
            self._calls.saving.run("release cut of", pack([self._number]))
        except OpError:  # the run is over: only this rank releases its part
            self._calls.release_here(self._number)

    def take_own(self) -> LocalCut:
        """Returns the part of this rank, to be written and released by itself; this cut is closed then."""
        with self._lock:
            self._require_open()
            self._is_released = True
        return self._calls.take(self._number)

    def _require_open(self) -> None:
        if self._is_released:
            raise FailedPreconditionError("cut: it was released; take another one")


class RestoreCalls:
    """The calls of each rank for a restore.

    They are calls of the line of training, so that no training runs meanwhile.
    """

    def __init__(self, training: RankCalls, native: NativeTables, owned: range, on_load: Callable[[], None]) -> None:
        self._training = training
        self._native = native
        self._owned = owned
        self._on_load = on_load
        self._numbers = count()
        self._open: dict[int, LocalRestore] = {}
        training.define("prepare restore of", self._prepare)
        training.define("load restore of", self._load)
        training.define("end restore of", self._end)

    def prepare(
        self, folder: str, manifest: SnapshotManifest, buckets: range, *, ignore_unknown_tables: bool
    ) -> ShardedRestore:
        """Reads and checks the files; see `Store.prepare_restore`."""
        head = [folder, buckets.start, buckets.stop, ignore_unknown_tables]
        number = self._training.run("prepare restore of", pack(head, [manifest.to_bytes()]))
        return ShardedRestore(self._training, self, number)

    def _prepare(self, arguments: bytes, _: object) -> int:
        (folder, begin, end, ignore_unknown_tables), (text,) = unpack(arguments)
        number = next(self._numbers)
        buckets, own = range(begin, end), shared_buckets(self._owned, range(begin, end))

        def prepared() -> bytes:
            self._open[number] = LocalRestore(
                self._native,
                folder,
                SnapshotManifest.from_bytes(text, origin=f"folder '{folder}'"),
                own,
                emptied=emptied_by(own, buckets),
                ignore_unknown_tables=ignore_unknown_tables,
            )
            return b""

        try:
            settled(self._training.wire, prepared)
        except RaisedByAllError:
            self.end_here(number)
            raise
        return number

    def _load(self, arguments: bytes, _: object) -> RestoreReport:
        (number,), _blobs = unpack(arguments)
        reports: list[RestoreReport] = []

        def load() -> bytes:
            if number not in self._open:
                raise FailedPreconditionError("restore: it was ended; prepare another one")
            reports.append(self._open[number].load())
            return pack(dict(reports[0].rows))

        rows = [unpack(answer)[0] for answer in settled(self._training.wire, load)]
        self._on_load()
        return replace(reports[0], rows={table: sum(counts[table] for counts in rows) for table in rows[0]})

    def _end(self, arguments: bytes, _: object) -> None:
        (number,), _blobs = unpack(arguments)
        settled(self._training.wire, lambda: self.end_here(number))

    def end_here(self, number: int) -> bytes:
        """Ends the part of this rank."""
        restore = self._open.pop(number, None)
        if restore is not None:
            restore.__exit__()
        return b""


class ShardedRestore(PreparedRestore):
    """`monolith.tables.store.PreparedRestore` of all ranks: they load, or cancel, together."""

    def __init__(self, training: RankCalls, calls: RestoreCalls, number: int) -> None:
        self._training = training
        self._calls = calls
        self._number = number

    def load(self) -> RestoreReport:
        """Replaces the rows of all ranks."""
        report: RestoreReport = self._training.run("load restore of", pack([self._number]))
        return report

    def __exit__(self, *_: object) -> None:
        try:
            self._training.run("end restore of", pack([self._number]))
        except OpError:  # the run is over: only this rank releases its part
            self._calls.end_here(self._number)
