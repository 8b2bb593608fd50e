"""Records in files of a folder that several servers share: each server begins files of its own, and new ones in time.

A file has whole records, each behind its length, as `monolith joiner` reads them; only its end may be torn, when the
process was killed while it wrote. What could not be written is taken back, so that what follows can be read.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from monolith.clock import SystemClock
from monolith.errors import InvalidArgumentError
from monolith.files import named_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.clock import Clock
    from monolith.serving.request_log.sink import Told

__all__ = ["SUFFIX", "RolledFiles"]

SUFFIX = ".requests"
"""What the names of the files end with."""
_LONGEST_HOST = 64


class RolledFiles:
    """Appends records to a file, and begins another one when that is large or old enough. Belongs to one thread.

    Args:
        folder: Made if it is not there.
        told: Gets to know what became of records.
        roll_bytes: From which on a new file is begun.
        roll_seconds: After which a new file is begun.
        clock: What time it is.

    Raises:
        OpError: files cannot be made there; says why.
    """

    def __init__(
        self,
        folder: str,
        told: Told,
        *,
        roll_bytes: int,
        roll_seconds: float,
        clock: Clock | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._told = told
        self._roll_bytes, self._roll_seconds = roll_bytes, roll_seconds
        self._clock = clock or SystemClock()
        host = re.sub(r"[^A-Za-z0-9.]+", "-", socket.gethostname())[:_LONGEST_HOST] or "host"
        self._server = f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
        self._number = 0
        self._descriptor: int | None = None
        self._path = self._folder
        self._end = 0
        self._began = 0.0
        self._require_writable()

    @property
    def path(self) -> Path:
        """The file that is written to; the folder before the first one."""
        return self._path

    def append(self, request_id: bytes, records: Sequence[bytes]) -> None:  # noqa: ARG002 - a topic needs the request
        """Writes the records of a request, all or none."""
        framed = b"".join(len(record).to_bytes(8, "little") + record for record in records)
        try:
            self._roll_if_due()
            with named_errors(str(self._folder), "written"):
                self._write(framed)
        except Exception as error:  # noqa: BLE001 - it is told, and the next one may fare better
            self._told(len(records), error)
        else:
            self._told(len(records), None)

    def flush(self) -> None:
        """Ends a file whose time is over; what was written is there already."""
        if self._descriptor is not None and self._is_due():
            self._end_file()

    def close(self, seconds: float) -> None:  # noqa: ARG002 - a file answers at once
        """Ends the file."""
        self._end_file()

    def _require_writable(self) -> None:
        if self._folder.exists() and not self._folder.is_dir():
            raise InvalidArgumentError(f"request log '{self._folder}': must be a folder, and is a file")
        with named_errors(str(self._folder), "written"):
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder):
                pass

    def _is_due(self) -> bool:
        return self._end >= self._roll_bytes or self._clock.monotonic() - self._began >= self._roll_seconds

    def _roll_if_due(self) -> None:
        if self._descriptor is not None and self._is_due():
            self._end_file()
        if self._descriptor is None:
            self._begin_file()

    def _begin_file(self) -> None:
        moment = datetime.fromtimestamp(self._clock.now(), UTC)
        path = self._folder / f"{moment:%Y%m%dT%H%M%S}-{self._server}-{self._number:06d}{SUFFIX}"
        with named_errors(str(path), "written"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o644)
        self._path = path
        self._number += 1
        self._end, self._began = 0, self._clock.monotonic()

    def _end_file(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # what a disk says now is too late to be acted on
                os.fsync(descriptor)
            os.close(descriptor)

    def _write(self, framed: bytes) -> None:
        assert self._descriptor is not None  # noqa: S101 - `_roll_if_due` has begun one
        begin, rest = self._end, memoryview(framed)
        try:
            while rest:
                written = os.pwrite(self._descriptor, rest, self._end)
                rest, self._end = rest[written:], self._end + written
        except OSError:
            self._take_back(begin)
            raise

    def _take_back(self, begin: int) -> None:
        """Cuts off half a write; a file that cannot even be cut is left behind, as its end is torn."""
        assert self._descriptor is not None  # noqa: S101 - it was just written to
        try:
            os.ftruncate(self._descriptor, begin)
            self._end = begin
        except OSError:
            os.close(self._descriptor)
            self._descriptor = None
