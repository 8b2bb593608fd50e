"""Recovery of a server: reads its record at the start, then continues it."""

from __future__ import annotations

import logging
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from monolith.errors import OpError
from monolith.ps.recovery.record_folder import RecordFolder
from monolith.ps.recovery.recorder import Recorder
from monolith.ps.recovery.recovering import CameBack, recover
from monolith.ps.server.hosted_rows import HostedRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.ps.dense.shard import DenseShard
    from monolith.ps.recovery.config import Recovered, RecoveryConfig
    from monolith.ps.server.hosted_rows import HostedStores
    from monolith.ps.server.server import FrameServer

_log = logging.getLogger(__name__)


class RecoveryManager:
    """The recovery of one server. Call `bring_back`, then `begin`, then `close`.

    Args:
        options: Location and interval of the record; None: no record.
        place: Index of the server, and number of servers.
    """

    def __init__(self, options: RecoveryConfig | None, place: tuple[int, int]) -> None:
        self._options = options
        self._place = place
        self._folder = None if options is None else RecordFolder(options.folder, *place)
        self._came_back = CameBack()
        self._recorder: Recorder | None = None
        self._writer = secrets.randbits(63)
        self._claimed_before: int | None = None
        self.recovered: Recovered | None = None
        """What was recovered; None: nothing."""

    def bring_back(self, dense: DenseShard) -> None:
        """Claims the record, and reads it.

        Raises:
            OpError: its folder, or the model directory, cannot be read, so that it is unknown whether there is state to
                recover.
        """
        if self._options is None or self._folder is None:
            return
        self._folder.make()
        if self._options.interval_seconds == 0:
            self._folder.remove_others(())  # without new increments it would be outdated
            return
        self._claimed_before = self._folder.claimed_by()
        self._folder.claim(self._writer)
        self._came_back = recover(self._folder, model_dir=self._options.model_dir)
        if self._came_back.dense is not None:
            try:
                dense.recover(self._came_back.dense)
            except OpError as error:
                _log.warning("%s: the dense weights are not recovered: %s", self._folder.title, error)
                self._came_back.without_dense()
        self.recovered = self._came_back.summary

    def begin(self, stores: HostedStores, frames: FrameServer, dense: DenseShard) -> None:
        """Serves the recovered stores, and starts the recorder."""
        if self._options is None or self._folder is None or self._options.interval_seconds == 0:
            return
        recorder = Recorder(self._options, self._folder, writer=self._writer, subject=stores, dense=dense)
        stores.recording = dense.recording = self._recorder = recorder
        rows = [
            HostedRows(
                recovered.name,
                recovered.agreement,
                place=self._place,
                life=recovered.life,
                frames=frames,
                recording=recorder,
                recovered=(recovered.store, recovered.lineage),
            )
            for recovered in self._came_back.rows
        ]
        stores.take_in(rows, self._came_back.initialized)
        recorder.start(self._came_back.prior)

    @contextmanager
    def abandoned_on_error(self) -> Iterator[None]:
        """Returns the claim on the record to its previous owner, which may be alive, if the server fails to start."""
        try:
            yield
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        if self._recorder is not None:
            self._recorder.close(last_words=False)
        if self._folder is not None and self._claimed_before is not None and self._folder.is_claimed_by(self._writer):
            self._folder.claim(self._claimed_before)

    def add_part(self, name: str, dump: Callable[[], bytes], load: Callable[[bytes], None]) -> None:
        """Adds a small state to the record; loads its recovered bytes, if there are any."""
        if name in self._came_back.parts:
            load(self._came_back.parts[name])
        if self._recorder is not None:
            self._recorder.add_part(name, dump)

    def write(self) -> bool:
        """Writes an increment now. Returns False if it was preempted, or if nothing is recorded."""
        return self._recorder is not None and self._recorder.write()

    def close(self) -> None:
        """Writes a last increment. Idempotent."""
        if self._recorder is not None:
            self._recorder.close()
