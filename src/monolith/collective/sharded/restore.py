"""The restores of all ranks as one: each rank reads its own buckets, and all are checked before any is replaced."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from monolith.collective.serial_executor import RaisedByAllError
from monolith.collective.sharded.outcome import settled
from monolith.collective.sharded.values import pack, unpack
from monolith.errors import FailedPreconditionError, OpError
from monolith.tables.bucket_owners import emptied_by
from monolith.tables.history import shared_buckets
from monolith.tables.local.restore import LocalRestore
from monolith.tables.snapshot.manifest import SnapshotManifest
from monolith.tables.store import PreparedRestore

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.collective.sharded.calls import RankCalls
    from monolith.tables.local.native_tables import NativeTables
    from monolith.tables.snapshot.restore import RestoreReport

__all__ = ["RestoreCalls", "ShardedRestore"]


class RestoreCalls:
    """The calls of each rank for a restore.

    Args:
        training: Calls of the line of training, so that no training runs meanwhile.
        native: The tables of this rank.
        owned: Its buckets.
        on_load: Called, in the line, when rows were replaced.
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
        return replace(reports[0], rows={table: sum(each[table] for each in rows) for table in rows[0]})

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
