"""The files of one server's recovery record."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from monolith import _core
from monolith.errors import DataLossError, UnavailableError
from monolith.ps.recovery.record_file import RecordFile

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["RecordFolder"]

_log = logging.getLogger(__name__)


class RecordFolder:
    """Names, finds and removes them. One thread at a time.

    Args:
        folder: Made if it is not there.
        index: Of the server.
        num_ps: How many there are; a record of another number of servers is never read.
    """

    def __init__(self, folder: str, index: int, num_ps: int) -> None:
        self.path = Path(folder)
        self.index, self.num_ps = index, num_ps
        self.title = f"recovery record of server {index} in '{folder}'"
        self._prefix = f"ps-{index}-of-{num_ps}.record"
        self._name = re.compile(re.escape(self._prefix) + r"-(?P<number>\d{12})-(?P<writer>[0-9a-f]{16})")

    def make(self) -> None:
        """Makes the folder, and removes what a process has left that was killed while it wrote.

        Raises:
            UnavailableError: it cannot be made or looked at.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for path in self.path.glob(f"{self._prefix}*.tmp"):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise UnavailableError(f"recovery record: folder '{self.path}' cannot be used: {error}") from error

    def path_of(self, number: int, writer: int) -> Path:
        """Where a file goes."""
        return self.path / f"{self._prefix}-{number:012d}-{writer:016x}"

    def claim(self, writer: int) -> None:
        """From now on the record is this process's; one that was replaced, and lives, stops to write."""
        _core.commit_file(str(self._claim), f"{writer:016x}\n".encode())
        self.sync()

    def is_claimed_by(self, writer: int) -> bool:
        """Whether no later process has claimed it."""
        return self.claimed_by() == writer

    def sync(self) -> None:
        """Makes the names durable."""
        _core.sync_directory(str(self.path))

    def found(self) -> list[RecordFile]:
        """The files in their order; damaged ones are left out, with a warning."""
        files: dict[int, RecordFile] = {}
        owner = self.claimed_by()
        for path in sorted(self.path.iterdir()):
            if self._name.fullmatch(path.name) is None:
                continue
            try:
                file = RecordFile(path)
            except DataLossError as error:
                _log.warning("%s; it is left out, and what came after it", error)
                continue
            # Of two processes that wrote one number, the one that had the record last counts.
            if file.meta.number not in files or file.meta.writer == owner:
                files[file.meta.number] = file
        return [files[number] for number in sorted(files)]

    def highest_number(self) -> int:
        """Of all names, be their files whole or not; 0 without any."""
        names = [self._name.fullmatch(path.name) for path in self.path.iterdir()]
        return max((int(name["number"]) for name in names if name is not None), default=0)

    def remove_others(self, kept: Iterable[Path]) -> None:
        """Removes every file of this record but these."""
        names = {path.name for path in kept}
        for path in list(self.path.iterdir()):
            if self._name.fullmatch(path.name) is not None and path.name not in names:
                path.unlink(missing_ok=True)

    @property
    def _claim(self) -> Path:
        return self.path / f"{self._prefix}.owner"

    def claimed_by(self) -> int | None:
        """Whose it is; None: nobody's."""
        try:
            return int(self._claim.read_text(encoding="ascii"), 16)
        except (OSError, ValueError):
            return None
