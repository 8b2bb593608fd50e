"""The files of one server's recovery record."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from monolith.errors import DataLossError, OpError, UnavailableError
from monolith.files import LocalStorage
from monolith.ps.recovery.record_file import RecordFile

if TYPE_CHECKING:
    from collections.abc import Iterable

_log = logging.getLogger(__name__)


class RecordFolder:
    """Names, finds and removes the files. Not thread-safe.

    Args:
        folder: Path of the folder; created if missing.
        index: Index of the server.
        num_ps: Number of servers; a record of another number of servers is never read.
    """

    def __init__(self, folder: str, index: int, num_ps: int) -> None:
        self.path = Path(folder)
        self._storage = LocalStorage(self.path)
        self.index, self.num_ps = index, num_ps
        self.title = f"recovery record of server {index} in '{folder}'"
        self._prefix = f"ps-{index}-of-{num_ps}.record"
        self._name = re.compile(re.escape(self._prefix) + r"-(?P<number>\d{12})-(?P<writer>[0-9a-f]{16})")

    def make(self) -> None:
        """Creates the folder, and removes temporary files of a process that was killed while writing.

        Raises:
            UnavailableError: the folder cannot be created or listed.
        """
        try:
            self._storage.make()
            for name in self._storage.names():
                if name.startswith(self._prefix) and name.endswith(".tmp"):
                    self._storage.remove(name)
        except OpError as error:
            raise UnavailableError(f"recovery record: folder '{self.path}' cannot be used: {error}") from error

    def path_of(self, number: int, writer: int) -> Path:
        """Returns the path of a file."""
        return self.path / f"{self._prefix}-{number:012d}-{writer:016x}"

    def claim(self, writer: int) -> None:
        """Claims the record for this process; a replaced process that is still alive stops writing."""
        self._storage.replace(self._claim, f"{writer:016x}\n".encode())

    def is_claimed_by(self, writer: int) -> bool:
        """Returns whether no later process has claimed the record."""
        return self.claimed_by() == writer

    def sync(self) -> None:
        """Makes the file names durable."""
        self._storage.sync()

    def found(self) -> list[RecordFile]:
        """Returns the files in order; skips damaged ones, with a warning."""
        files: dict[int, RecordFile] = {}
        owner = self.claimed_by()
        for path in sorted(self.path.iterdir()):
            if self._name.fullmatch(path.name) is None:
                continue
            try:
                file = RecordFile(path)
            except DataLossError as error:
                _log.warning("%s; the file and all later ones are skipped", error)
                continue
            # If two processes wrote one number, the file of the last owner counts.
            if file.meta.number not in files or file.meta.writer == owner:
                files[file.meta.number] = file
        return [files[number] for number in sorted(files)]

    def highest_number(self) -> int:
        """Returns the highest number of all file names, intact or not; 0 without any."""
        names = [self._name.fullmatch(path.name) for path in self.path.iterdir()]
        return max((int(name["number"]) for name in names if name is not None), default=0)

    def remove_others(self, kept: Iterable[Path]) -> None:
        """Removes every file of this record except these."""
        names = {path.name for path in kept}
        for path in list(self.path.iterdir()):
            if self._name.fullmatch(path.name) is not None and path.name not in names:
                path.unlink(missing_ok=True)

    @property
    def _claim(self) -> str:
        return f"{self._prefix}.owner"

    def claimed_by(self) -> int | None:
        """Returns the writer that has claimed the record; None: none has."""
        try:
            return int(self._storage.read(self._claim), 16)
        except (OpError, ValueError):
            return None
