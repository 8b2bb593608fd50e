"""Deprecated: a queue of files for the processes of one machine, through a log to which one at a time appends."""

from __future__ import annotations

import os
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from monolith.data.file_queue.assignments import event_line, event_of
from monolith.data.file_queue.queue import EventQueue
from monolith.errors import DataLossError, DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from monolith.files import LocalStorage, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.data.file_queue.assignments import Event
    from monolith.data.sources.file_patterns import Paths, StorageOptions

_VERSION = 1
_LOCK_POLL_SECONDS = 0.005


class SharedFileQueue(EventQueue):
    """Files that processes share through a log file. Thread-safe; every process opens the log for itself. Deprecated.

    Use the queue of a job, `monolith.ps.JobClient.file_queue`, or a fixed share for each process,
    ``FileSet(paths, shard=(index, count))``.

    A line of the log is the CRC-32 of an event in hexadecimal, a space, and the event in JSON; the first one identifies
    the queue. A line is on disk before its file is assigned. An incomplete line at the end is from a process that was
    killed during a write; the next writer removes it. The log is kept: a run that starts from scratch needs another
    one.

    Args:
        log: Local path of the log; created if missing. Not on a network file system without working locks.
        paths: As for `LocalFileQueue`.
        num_workers: As for `LocalFileQueue`.
        seed: As for `LocalFileQueue`.
        storage_options: For the file system of URLs.
        timeout_seconds: How long to wait for another process that has locked the log.

    Raises:
        InvalidArgumentError: the log is of a queue with other patterns or seed.
        DataLossError: the log is damaged; names the place.
        FailedPreconditionError: files are assigned to workers that no longer exist.
    """

    def __init__(
        self,
        log: str | os.PathLike[str],
        paths: Paths,
        *,
        num_workers: int,
        seed: int | None = None,
        storage_options: StorageOptions = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        text = (
            "monolith.data.SharedFileQueue is deprecated and will be removed in the next version: use"
            " JobClient.file_queue of a job, or FileSet with shard= for a fixed share of each process"
        )
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        super().__init__(paths, num_workers=num_workers, seed=seed, storage_options=storage_options)
        self.log = Path(log)
        self._state.keep = self._append
        self._timeout_seconds = timeout_seconds
        self._read_to = 0
        with self._exclusive():
            self._check_workers(self._state)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with self._lock:
            # Opened for each call: a lock belongs to an open file, and a process that was forked must not share it.
            descriptor = os.open(self.log, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o644)
            try:
                self._lock_file(descriptor)
                if not self._read_to:
                    LocalStorage(self.log.parent).sync()  # the log may be new
                self._descriptor = descriptor
                self._catch_up()
                yield
            finally:
                os.close(descriptor)

    def _lock_file(self, descriptor: int) -> None:
        until = time.monotonic() + self._timeout_seconds
        while not (is_locked := try_lock(descriptor)):
            if is_locked is None:
                raise FailedPreconditionError(
                    f"file queue '{self.log}': its file system has no locks; use a folder of another one"
                )
            if time.monotonic() > until:
                raise DeadlineExceededError(
                    f"file queue '{self.log}': another process has held it for {self._timeout_seconds:g} s"
                )
            time.sleep(_LOCK_POLL_SECONDS)

    def _catch_up(self) -> None:
        """Applies what other processes appended."""
        size = os.fstat(self._descriptor).st_size
        if size < self._read_to:
            raise DataLossError(f"file queue '{self.log}': it has become shorter, {size} bytes after {self._read_to}")
        data = os.pread(self._descriptor, size - self._read_to, self._read_to)
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].splitlines(keepends=True):
            self._apply_line(line)
            self._read_to += len(line)
        if whole < len(data):
            os.ftruncate(self._descriptor, self._read_to)
        if not self._read_to:
            self._append({"queue": {"version": _VERSION, "digest": self.digest}})

    def _apply_line(self, line: bytes) -> None:
        event: Event = event_of(line, log=self.log, offset=self._read_to)
        if "queue" not in event:
            self._state.replay([event])
        elif event["queue"] != {"version": _VERSION, "digest": self.digest}:
            raise InvalidArgumentError(
                f"file queue '{self.log}': it is of other patterns or another seed, or of another version; give its "
                "own, or another log"
            )

    def _append(self, event: Event) -> None:
        line = event_line(event)
        written = os.write(self._descriptor, line)
        if written != len(line):  # no space: the next one removes the half
            raise OSError(f"file queue '{self.log}': only {written} of {len(line)} bytes could be written")
        os.fsync(self._descriptor)
        self._read_to += len(line)
