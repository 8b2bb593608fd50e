"""Servers of this process that write recovery records, and can be lost and brought back one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from monolith.ps import PsServer
from monolith.ps.recovery.config import RecoveryConfig
from monolith.ps.recovery.record_folder import RecordFolder

NEVER = 3600.0
"""Increments are written when a test asks for them."""
_NOBODY = 1


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

    def files(self, index: int) -> list[Path]:
        """The record of one server, in its order."""
        return sorted(Path(self.options.folder).glob(f"ps-{index}-of-{self._num_ps}.record-*"))

    def lose(self, index: int) -> None:
        """Ends one without a last word: somebody else has its record."""
        RecordFolder(self.options.folder, index, self._num_ps).claim(_NOBODY)
        self.servers[index].close(0.0)

    def bring_back(self, index: int) -> PsServer:
        self.servers[index] = self._start(index)
        return self.servers[index]

    def replace(self, index: int) -> str:
        """Loses one; the address of the one that came back."""
        self.lose(index)
        return self.bring_back(index).address

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
