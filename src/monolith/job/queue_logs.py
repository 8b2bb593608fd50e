"""Logs of a job's file queues, in the recovery folder of the home server; an assignment is logged before it is sent.

Workers remember their assignments, so that they are never ahead of a recovered home server.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from monolith.data.file_queue import event_line, event_of
from monolith.errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.data.file_queue import Event

_log = logging.getLogger(__name__)

_VERSION = 1
_SUFFIX = ".files"


class QueueLog:
    """The log of one queue, open for writing. Not thread-safe.

    Its lines are those of `event_line`; the first one has the properties of the queue.

    Args:
        path: Path of the file, which is replaced.
        facts: Properties of the queue.
        events: Events so far.
    """

    def __init__(self, path: Path, facts: dict[str, Any], events: Sequence[Event] = ()) -> None:
        self._path = path
        lines = [event_line({"queue": {"version": _VERSION, **facts}}), *(event_line(event) for event in events)]
        fresh = path.with_name(path.name + ".new")
        content = b"".join(lines)
        self._file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write(self._file, content, path)
            os.fsync(self._file)
            fresh.replace(path)
            _sync_folder(path.parent)
        except BaseException:
            os.close(self._file)
            raise
        self._size = len(content)

    def append(self, event: Event) -> None:
        """Appends an event; it is durable on return.

        Raises:
            OSError: the event could not be written; the log is unchanged.
        """
        line = event_line(event)
        try:
            os.lseek(self._file, self._size, os.SEEK_SET)
            _write(self._file, line, self._path)
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


class QueueLogs:
    """The logs of all queues of a job. Not thread-safe.

    Args:
        folder: Folder of the logs; created if missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._open: dict[str, QueueLog] = {}

    def read(self) -> dict[str, dict[str, Any]]:
        """Reads all logs, in the form of `JobQueues.state_dict`; skips damaged ones, with a warning."""
        states: dict[str, dict[str, Any]] = {}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                name, state = _read(path)
            except (DataLossError, KeyError, TypeError, ValueError) as error:
                _log.warning("%s: skipped; workers that took files of this queue need a checkpoint: %s", path, error)
                continue
            states[name] = state
        return states

    def begin(self, name: str, facts: dict[str, Any], events: Sequence[Event]) -> QueueLog:
        """Creates the log of a queue, replacing an existing one."""
        before = self._open.pop(name, None)
        if before is not None:
            before.close()
        self._open[name] = log = QueueLog(self._path(name), {"name": name, **facts}, events)
        return log

    def drop(self, name: str) -> None:
        """Removes the log of a queue."""
        before = self._open.pop(name, None)
        if before is not None:
            before.close()
        self._path(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Closes all logs; their files stay."""
        for log in self._open.values():
            log.close()
        self._open.clear()

    def _path(self, name: str) -> Path:
        return self._folder / f"{quote(name, safe='')}{_SUFFIX}"


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1  # an incomplete line is of a process that was killed while writing
    offset, read = 0, []
    for line in data[:whole].splitlines(keepends=True):
        read.append(event_of(line, log=path, offset=offset))
        offset += len(line)
    if not read or read[0]["queue"].pop("version") != _VERSION:
        raise DataLossError(f"file queue '{path}': it does not begin as a log of version {_VERSION}")
    facts = read[0]["queue"]
    return facts.pop("name"), {**facts, "events": read[1:]}


def _write(file: int, content: bytes, path: Path) -> None:
    while content:
        written = os.write(file, content)
        if written == 0:
            raise OSError(f"file queue '{path}': {len(content)} bytes could not be written")
        content = content[written:]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
