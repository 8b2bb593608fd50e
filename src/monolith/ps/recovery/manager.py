"""Recovery of a server: reads its record at the start, then continues it."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from monolith.errors import OpError
from monolith.ps.recovery.old_files import OldFiles
from monolith.ps.recovery.record_log import RecordLog
from monolith.ps.recovery.recorder import Recorder
from monolith.ps.recovery.recover import RecoveredServer, recover
from monolith.ps.server.hosted_rows import HostedRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.ps.dense.shard import DenseShard
    from monolith.ps.recovery.config import Recovered, RecoveryConfig
    from monolith.ps.server.hosted_rows import HostedStores
    from monolith.ps.server.server import FrameServer

_log = logging.getLogger(__name__)


class RecoveryManager:
    """The recovery of one server. Call `recover`, `begin`, `starting` and `close` in this order.

    Args:
        options: Location and interval of the record; None: no record.
        place: Index of the server, and number of servers.
    """

    def __init__(self, options: RecoveryConfig | None, place: tuple[int, int]) -> None:
        self._options = options
        self._place = place
        self._log = None if options is None else RecordLog(options.folder, *place)
        self._old = None if options is None else OldFiles(options.folder, *place)
        self._state = RecoveredServer()
        self._recorder: Recorder | None = None
        self.recovered: Recovered | None = None
        """Summary of the recovered state; None: nothing was recovered."""

    def recover(self, dense: DenseShard) -> None:
        """Claims the record, and reads it.

        Raises:
            OpError: its folder, or the model directory, cannot be read, so that it is unknown whether there is state to
                recover.
        """
        if self._options is None or self._log is None or self._old is None:
            return
        if self._options.interval_seconds == 0:  # without new increments the record would be outdated
            self._old.remove()
            self._log.remove()
            return
        with self.abandoned_on_error():
            self._log.claim()
            self._old.copy_to(self._log)
            self._log.read()
            self._state = recover(self._log, model_dir=self._options.model_dir)
        if self._state.dense is not None:
            try:
                dense.recover(self._state.dense)
            except OpError as error:
                _log.warning("%s: the dense weights are not recovered: %s", self._log.title, error)
                self._state.without_dense()
        self.recovered = self._state.summary

    def begin(self, stores: HostedStores, frames: FrameServer, dense: DenseShard) -> None:
        """Serves the recovered stores."""
        if self._options is None or self._log is None or self._options.interval_seconds == 0:
            return
        recorder = Recorder(self._options, self._log, subject=stores, dense=dense)
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
            for recovered in self._state.stores
        ]
        stores.add_recovered(rows, self._state.initialized)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Starts the recorder after the body. From then on a previous owner cannot have its record back."""
        with self.abandoned_on_error():
            yield
            if self._recorder is not None and self._old is not None:
                self._old.remove()
                self._recorder.start(self._state.prior)

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
        if self._log is not None and self._old is not None and not self._old.is_removed:
            self._log.close(give_back=True)
            self._old.give_back()

    def add_part(self, name: str, dump: Callable[[], bytes], load: Callable[[bytes], None]) -> None:
        """Adds a small state to the record; loads its recovered bytes, if there are any."""
        if name in self._state.parts:
            load(self._state.parts[name])
        if self._recorder is not None:
            self._recorder.add_part(name, dump)

    def write(self) -> bool:
        """Writes an increment now. Returns False if it was preempted, or if nothing is recorded."""
        return self._recorder is not None and self._recorder.write()

    def close(self) -> None:
        """Writes a last increment. Idempotent."""
        if self._recorder is not None:
            self._recorder.close()
