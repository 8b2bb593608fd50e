"""Progress reports of a role to its launcher: JSON lines on a pipe, whose descriptor an environment variable gives.

    {"done": 1200, "total": 5000, "fields": {"loss": 0.31, "rows": 48000}}      during training
    {"result": {"global_step": 5000, "rows": 51000}}                            final report of the chief

Progress is dropped when the launcher is slow to read; results are not.
"""

from __future__ import annotations

import json
import os
import select
import stat
from typing import TYPE_CHECKING, Any

from monolith import environment
from monolith.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRESS_FD = "MONOLITH_PROGRESS_FD"
_RESULT_SECONDS = 10.0


class ProgressPipe(Closing):
    """The writing end of the pipe. Not thread-safe. A context manager."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_open = True
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)

    @classmethod
    def from_environment(cls) -> ProgressPipe | None:
        """Returns the pipe of the launcher that started this process, or None. A second call returns None."""
        descriptor = environment.get(PROGRESS_FD) or ""
        if not descriptor.isdecimal():
            return None
        environment.put(PROGRESS_FD, "")  # child processes have no such pipe
        try:
            is_pipe = stat.S_ISFIFO(os.fstat(int(descriptor)).st_mode)
        except OSError:
            is_pipe = False
        return cls(int(descriptor)) if is_pipe else None

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message if the pipe has room: training never waits for the launcher."""
        self._write(message, wait_seconds=0.0)

    def send_result(self, result: Mapping[str, Any]) -> None:
        """Sends the final result; waits for room in the pipe if needed."""
        self._write({"result": dict(result)}, wait_seconds=_RESULT_SECONDS)

    def close(self) -> None:
        """Closes the pipe. Idempotent."""
        if self._is_open:
            self._is_open = False
            os.close(self._descriptor)

    def _write(self, message: Mapping[str, Any], *, wait_seconds: float) -> None:
        line = f"{json.dumps(message)}\n".encode()
        if not self._is_open or len(line) > select.PIPE_BUF:  # writes up to that size are atomic
            return
        try:
            _, writable, _ = select.select([], [self._descriptor], [], wait_seconds)
            if writable:
                os.write(self._descriptor, line)
        except (BlockingIOError, BrokenPipeError):
            return
