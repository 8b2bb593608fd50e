"""Runs a child process with limits on time and memory, and kills its process group when it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

_POLL_SECONDS = 0.05
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Stopped(Exception):  # noqa: N818 - not an error: the user stops the run
    """A stop of the run was requested while a process was running."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a process."""

    code: int | None
    """The exit status; None if the process was killed at a limit."""
    limit: str
    """The limit that it exceeded, or an empty string."""
    output: str


def run_process(
    command: Sequence[str], *, folder: Path, seconds: float, megabytes: float, stop: threading.Event
) -> Ended:
    """Run a command until it ends or exceeds a limit.

    Raises:
        Stopped: ``stop`` was set. The process has been killed.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            limit = _wait(process, seconds, megabytes, stop)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Ended(None if limit else process.returncode, limit, text)


def _wait(process: subprocess.Popen[bytes], seconds: float, megabytes: float, stop: threading.Event) -> str:
    end = time.monotonic() + seconds
    while process.poll() is None:
        if stop.wait(_POLL_SECONDS):
            raise Stopped
        if time.monotonic() > end:
            return f"{seconds:.0f} s"
        if _resident_megabytes(process.pid) > megabytes:
            return f"{megabytes:.0f} MB"
    return ""


def _resident_megabytes(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * _PAGE_BYTES / 1e6
