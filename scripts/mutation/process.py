"""A child process with a limit on its time and its memory, gone with all of its own children when it ends."""

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


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """The run was told to stop while a process was under way."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    code: int | None
    """None when it was ended by a limit."""
    limit: str
    """Which limit it met, or nothing."""
    output: str


def run_process(
    command: Sequence[str], *, folder: Path, seconds: float, megabytes: float, stop: threading.Event
) -> Ended:
    """Run a command to its end or to a limit.

    Raises:
        Stopped: ``stop`` was set; the process is gone.
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
