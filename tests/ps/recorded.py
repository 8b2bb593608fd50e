"""Servers of this process that write recovery records, and that a test can lose and restart one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from monolith.deltalog import DeltaLog, IncrementKind
from monolith.ps import PsServer
from monolith.ps.recovery.config import RecoveryConfig
from monolith.ps.recovery.entries import RecordedState
from monolith.ps.recovery.record_log import RecordLog

NEVER = 3600.0
"""Increments are written when a test asks for them."""


def states_in(folder: str | Path, index: int, num_ps: int) -> dict[int, RecordedState]:
    """The states in the record of one server, which may be alive, by number."""
    part = RecordLog(str(folder), index, num_ps).part
    with DeltaLog(f"{folder}/servers") as log, log.open_reader(part) as reader:
        states = [each for each in reader if each.kind is IncrementKind.STATE]
        return {each.number: RecordedState.from_bytes(each.payload) for each in states}


class Recorded:
    """Some servers with one folder for their records."""

    def __init__(self, num_ps: int, folder: Path, *, model_dir: Path | None = None, interval: float = NEVER) -> None:
        self.options = RecoveryConfig(
            str(folder), interval_seconds=interval, model_dir="" if model_dir is None else str(model_dir)
        )
        self._num_ps = num_ps
        self.servers = [self._start(index) for index in range(num_ps)]

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self.servers]

    def write(self) -> None:
        """One increment of every server."""
        for server in self.servers:
            while not server.write_record():
                pass

    def record(self, index: int) -> RecordLog:
        return RecordLog(self.options.folder, index, self._num_ps)

    def states(self, index: int) -> dict[int, RecordedState]:
        """The states in the record of one server, by number."""
        return states_in(self.options.folder, index, self._num_ps)

    def segments(self, index: int) -> list[Path]:
        """Files of the record of one server, in their order."""
        return sorted((Path(self.options.folder) / "servers" / "parts" / self.record(index).part).glob("*.log"))

    def lose(self, index: int) -> None:
        """End a server that cannot write a last increment, because another process has claimed its record."""
        log = self.record(index)
        log.claim()
        log.close()
        self.servers[index].close(0.0)

    def restart(self, index: int) -> PsServer:
        self.servers[index] = self._start(index)
        return self.servers[index]

    def replace(self, index: int) -> str:
        """Lose a server and restart it; returns its new address."""
        self.lose(index)
        return self.restart(index).address

    def close(self) -> None:
        for server in self.servers:
            server.close(0.0)

    def _start(self, index: int) -> PsServer:
        return PsServer(index, num_ps=self._num_ps, recovery=self.options)


@contextmanager
def recorded(
    num_ps: int, folder: Path, *, model_dir: Path | None = None, interval: float = NEVER
) -> Iterator[Recorded]:
    """Servers that end with the test."""
    with ExitStack() as ended:
        found = Recorded(num_ps, folder, model_dir=model_dir, interval=interval)
        ended.callback(found.close)
        yield found
