"""Resources that a client can have open on a server's rows: a cut, blocks to load, a prepared restore."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

from monolith import _core
from monolith.errors import FailedPreconditionError
from monolith.tables.snapshot.location import remove_written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.tables.formats.row_block import RowBlock
    from monolith.tables.history import SnapshotWriteConfig, WrittenRows
    from monolith.tables.local.cut import LocalCut
    from monolith.tables.local.restore import LocalRestore
    from monolith.tables.local.store import LocalStore
    from monolith.tables.snapshot.manifest import FileEntry
    from monolith.tables.snapshot.restore import RestoreReport
    from monolith.tables.store import LoadReport

__all__ = ["OpenCut", "PreparedLoad", "PreparedRows"]


class OpenCut:
    """A cut of a server's rows, and the files written of it. Thread-safe."""

    TITLE: ClassVar[str] = "cut"

    def __init__(self, cut: LocalCut, *, on_written: Callable[[int], None]) -> None:
        self.cut = cut
        self._on_written = on_written
        self._transfer = _core.Transfer()
        self._lock = threading.Lock()  # serializes write and close; guards the field below
        self._written: tuple[str, Sequence[FileEntry]] | None = None

    def write(self, folder: str, rules: SnapshotWriteConfig) -> WrittenRows:
        """Writes the cut; see `Cut.write`."""
        with self._lock:
            written = self.cut.write(folder, rules, transfer=self._transfer)
            self._written = folder, written.files
        if rules.state:
            self._on_written(rules.snapshot_id)
        return written

    def give_up_write(self) -> None:
        """Removes written files, cancels a write in progress, and rejects later writes."""
        self._transfer.cancel()
        with self._lock:
            if self._written is not None:
                remove_written(*self._written)
                self._written = None

    def close(self) -> None:
        """Releases the cut; cancels a write in progress, and removes its files."""
        self._transfer.cancel()
        with self._lock:
            self.cut.release()


class PreparedLoad:
    """Checked blocks, which can be loaded once. Thread-safe."""

    TITLE: ClassVar[str] = "load"

    def __init__(
        self,
        store: LocalStore,
        blocks: Sequence[RowBlock],
        *,
        buckets: range,
        emptied: range | None,
        around: Callable[[Callable[[], LoadReport]], LoadReport] | None = None,
    ) -> None:
        if emptied is not None and store.native.core.open_cut_epoch() is not None:
            raise FailedPreconditionError("rows cannot be replaced while a cut is open; release it first")
        store.require_loadable(blocks, buckets=buckets)
        self._store = store
        self._blocks = blocks
        self._buckets = buckets
        self._emptied = emptied
        self._around = around

    def load(self) -> LoadReport:
        """Loads the blocks."""
        return self._load() if self._around is None else self._around(self._load)

    def _load(self) -> LoadReport:
        return self._store.load_emptied(self._blocks, buckets=self._buckets, emptied=self._emptied)

    def close(self) -> None:
        """Drops the blocks."""
        self._blocks = ()


class PreparedRows:
    """Checked files, which can be loaded once. Thread-safe."""

    TITLE: ClassVar[str] = "restore"

    def __init__(
        self, restore: LocalRestore, *, around: Callable[[Callable[[], RestoreReport]], RestoreReport]
    ) -> None:
        self._around = around
        self._lock = threading.Lock()  # guards the field below
        self._restore: LocalRestore | None = restore

    def load(self) -> RestoreReport:
        """Replaces the rows.

        Raises:
            FailedPreconditionError: the restore was cancelled meanwhile.
        """
        with self._lock:
            if self._restore is None:
                raise FailedPreconditionError("the restore was cancelled")
            return self._around(self._restore.load)

    def close(self) -> None:
        """Cancels the restore, or ends it after `load`."""
        with self._lock:
            restore, self._restore = self._restore, None
            if restore is not None:
                restore.__exit__(None, None, None)
