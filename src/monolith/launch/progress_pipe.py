"""How a role tells its launcher how far it is: JSON lines on a pipe, whose number a variable says.

    {"done": 1200, "total": 5000, "fields": {"loss": 0.31, "rows": 48000}}      as it goes on
    {"result": {"global_step": 5000, "rows": 51000}}                            the last word of the chief

Progress is dropped where the launcher is slow to read; results are not.
"""

from __future__ import annotations

import json
import os
import select
import stat
from typing import TYPE_CHECKING, Any, Self

from monolith import environment

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PROGRESS_FD", "ProgressPipe"]

PROGRESS_FD = "MONOLITH_PROGRESS_FD"
_RESULT_SECONDS = 10.0


class ProgressPipe:
    """The writing end of the pipe. Belongs to one thread; a context manager."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_open = True
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)

    @classmethod
    def from_environment(cls) -> ProgressPipe | None:
        """The pipe of the launcher that started this process; None where there is none. It can be taken once."""
        told = environment.get(PROGRESS_FD) or ""
        if not told.isdecimal():
            return None
        environment.put(PROGRESS_FD, "")  # processes that this one starts have no such pipe
        try:
            is_pipe = stat.S_ISFIFO(os.fstat(int(told)).st_mode)
        except OSError:
            is_pipe = False
        return cls(int(told)) if is_pipe else None

    def send(self, message: Mapping[str, Any]) -> None:
        """Tell the launcher, if it has room: training never waits for whoever watches."""
        self._write(message, wait_seconds=0.0)

    def send_result(self, result: Mapping[str, Any]) -> None:
        """Tell the launcher what came of it; waits until there is room, if need be."""
        self._write({"result": dict(result)}, wait_seconds=_RESULT_SECONDS)

    def close(self) -> None:
        """Nothing more will come; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, message: Mapping[str, Any], *, wait_seconds: float) -> None:
        line = f"{json.dumps(message)}\n".encode()
        if not self._is_open or len(line) > select.PIPE_BUF:  # up to that size a line arrives whole or not at all
            return
        try:
            _, writable, _ = select.select([], [self._descriptor], [], wait_seconds)
            if writable:
                os.write(self._descriptor, line)
        except (BlockingIOError, BrokenPipeError):
            return
