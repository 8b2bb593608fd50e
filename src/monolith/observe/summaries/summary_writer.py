"""Event files, as TensorBoard reads them, on any fsspec path and without TensorFlow.

A file is a sequence of records (length, checksum of it, ``Event`` proto, checksum of that); the first contains
``brain.Event:2``. TensorBoard takes all files of a folder as one run, in the order of their names, which begin with the
time.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import fsspec

from monolith.clock import Clock, SystemClock
from monolith.closing import Closing
from monolith.errors import FailedPreconditionError, FileUnavailableError, StorageFullError
from monolith.observe.summaries.kinds import import_tensorboard

if TYPE_CHECKING:
    from collections.abc import Callable

_FILE_NUMBERS = itertools.count()


class SummaryWriter(Closing):
    """Writes summaries of one run to one event file; a context manager. Thread-safe.

    Args:
        log_dir: Folder of the run, made if missing; any fsspec path. Object stores show a file when it is closed.
        flush_seconds: What was added reaches the file at the latest by the first call this long after the last flush.
        filename_suffix: End of the file's name, to distinguish writers.
        clock: Time of events and of flushing.

    Raises:
        FileUnavailableError, StorageFullError: The file cannot be made or written. After that the file may end in
            half a record, and the writer rejects further calls.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        *,
        flush_seconds: float = 120.0,
        filename_suffix: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._protos = import_tensorboard("compat.proto.event_pb2")
        self._summary_type = import_tensorboard("compat.proto.summary_pb2").Summary
        self._clock = clock or SystemClock()
        self._flush_seconds = flush_seconds
        self._lock = threading.Lock()
        self._state = "open"
        name = f"events.out.tfevents.{int(self._clock.now()):010d}.{socket.gethostname()}.{os.getpid()}"
        self.path = f"{os.fspath(log_dir).rstrip('/')}/{name}.{next(_FILE_NUMBERS)}{filename_suffix}"
        self._file: Any = None
        self._guarded(self._open)
        self._guarded(
            lambda: self._write(self._protos.Event(wall_time=self._clock.now(), file_version="brain.Event:2"))
        )
        self.flush()

    def add_summary(self, summary: Any, global_step: int = 0) -> None:
        """Writes a ``Summary`` proto at a step."""
        if not isinstance(summary, self._summary_type):
            raise TypeError(f"SummaryWriter: summary must be a Summary proto, got {type(summary).__name__}")
        event = self._protos.Event(wall_time=self._clock.now(), step=global_step, summary=summary)
        with self._lock:
            self._require_open()
            self._guarded(lambda: self._write(event))
            if self._clock.monotonic() >= self._next_flush:
                self._guarded(self._flush)

    def flush(self) -> None:
        """Passes everything added so far to the file system."""
        with self._lock:
            self._require_open()
            self._guarded(self._flush)

    def close(self) -> None:
        """Flushes and closes the file. Idempotent."""
        with self._lock:
            if self._state != "open":
                return
            self._state = "closed"
            self._guarded(self._file.close)

    def _open(self) -> None:
        system, path = fsspec.core.url_to_fs(self.path)
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._file = system.open(path, "wb")
        self._records = import_tensorboard("summary.writer.record_writer").RecordWriter(self._file)

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())

    def _flush(self) -> None:
        self._file.flush()
        self._next_flush = self._clock.monotonic() + self._flush_seconds

    def _require_open(self) -> None:
        if self._state != "open":
            raise FailedPreconditionError(f"event file '{self.path}' is {self._state}; make another SummaryWriter")

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            self._state = "broken"
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.close()
            full = error.errno in {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
            kind = StorageFullError if full else FileUnavailableError
            raise kind(f"event file '{self.path}': cannot be written: {error}") from error
