"""Notices what a test leaves behind: threads, processes, and open sockets and files of this process."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_KEPT_BY_TORCH = re.compile(r"/perf-\d+\.map$")
"""Torch's kernels open a map of what they compile for profilers, once for the life of the process."""

_KEPT_THREADS = frozenset({"tqdm_monitor"})
"""Of libraries, once for the life of the process: torch's compiler shows its progress with tqdm where that is there."""

_GRACE_SECONDS = 5.0
"""What was told to stop may take this long to be gone."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process has at one moment; each thing by a name that stays the same while it lives."""

    threads: frozenset[str]
    processes: frozenset[str]
    descriptors: frozenset[str]

    def __sub__(self, earlier: Holdings) -> list[str]:
        mine = self.threads | self.processes | self.descriptors
        return sorted(mine - earlier.threads - earlier.processes - earlier.descriptors)


def holdings() -> Holdings:
    """What this process has now; pipes and event descriptors are left out: libraries keep some for good."""
    return Holdings(
        threads=frozenset(
            f"thread {thread.name} ({thread.ident})"
            for thread in threading.enumerate()
            if thread.name not in _KEPT_THREADS
        ),
        processes=frozenset(
            # By its command, so that a shared server that a test has killed and started again is the same one.
            f"process {command}"
            for children in Path("/proc/self/task").glob("*/children")
            for child in _text(children).split()
            if (command := _command(child))
        ),
        descriptors=frozenset(
            f"descriptor {target}"
            for link in Path("/proc/self/fd").iterdir()
            if (target := _target(link)).startswith("socket:")
            or (target.startswith("/") and "/dev/" not in target and not _KEPT_BY_TORCH.search(target))
        ),
    )


def left_behind(before: Holdings) -> list[str]:
    """What is there now and was not before, after a moment of grace."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while (extra := holdings() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return extra


def _command(process: str) -> str:
    """What the process was started as; nothing for one that has ended and was not waited for: it holds nothing."""
    for _ in range(20):
        # One that was started a moment ago has no command yet.
        if command := _text(Path(f"/proc/{process}/cmdline")).replace("\0", " "):
            return command
        time.sleep(0.001)
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread ended
        return ""


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # the descriptor of the listing itself
        return ""
