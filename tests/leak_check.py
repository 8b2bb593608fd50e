"""Notices what a test leaves behind: threads, processes, open sockets and files, and files on disk.

It runs around every test, so it asks the kernel directly, which costs a fifth of asking through pathlib: well below a
millisecond per test.
"""

# ruff: noqa: PTH115, PTH208

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KEPT_BY_TORCH = re.compile(r"/perf-\d+\.map$")
"""Torch's kernels open a map of what they compile for profilers, once for the life of the process."""

_KEPT_THREADS = frozenset({"tqdm_monitor"})
"""Of libraries, once for the life of the process: torch's compiler shows its progress with tqdm where that is there."""

_KEPT_PROCESS = re.compile(r"multiprocessing\.resource_tracker import main")
"""Python's own, for the life of the process once another one was spawned with semaphores."""

_KEPT_ON_DISK = re.compile(
    r"\..*"  # caches of tools in the project's folder: .pytest_cache, .hypothesis, .coverage
    r"|hsperfdata_.*"  # what every Java machine shows of itself; ZooKeeper and Kafka are such
    r"|torchinductor_.*"  # what torch has compiled, kept for the next process on purpose
)
"""Names that are no leak."""

_GRACE_SECONDS = 60.0
"""What was told to stop may take this long to be gone."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process has at one moment; each thing by a name that stays the same while it lives.

    Descriptors have their numbers: what each one is costs a call to the kernel, and shared clusters have hundreds. Only
    those with a new number are looked up.
    """

    threads: frozenset[str]
    processes: frozenset[str]
    descriptors: frozenset[str]
    files: frozenset[str] = frozenset()

    def __sub__(self, earlier: Holdings) -> list[str]:
        targets = map(_target_of, self.descriptors - earlier.descriptors)
        opened = [f"descriptor {target}" for target in targets if target is not None]
        return sorted([*opened, *(self._named() - earlier._named())])

    def _named(self) -> frozenset[str]:
        return self.threads | self.processes | self.files


def holdings(folders: Sequence[str] = ()) -> Holdings:
    """What this process has now, and what is directly in these folders.

    Pipes and event descriptors are left out: libraries keep some for good.
    """
    return Holdings(
        threads=frozenset(
            f"thread {thread.name} ({thread.ident})"
            for thread in threading.enumerate()
            if thread.name not in _KEPT_THREADS
        ),
        # By its command, so that a shared server that a test has killed and started again is the same one.
        processes=frozenset(
            f"process {command}"
            for child in _children()
            if (command := _command(child)) and not _KEPT_PROCESS.search(command)
        ),
        descriptors=_descriptors(),
        files=frozenset(
            f"file {folder}/{name}"
            for folder in folders
            for name in os.listdir(folder)
            if not _KEPT_ON_DISK.fullmatch(name)
        ),
    )


def left_behind(before: Holdings, folders: Sequence[str] = ()) -> list[str]:
    """What is there now and was not before, after a moment of grace."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while (extra := holdings(folders) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return extra


def _children() -> Iterator[str]:
    for thread in os.listdir("/proc/self/task"):
        yield from _text(f"/proc/self/task/{thread}/children").split()


def _command(process: str) -> str:
    """What the process was started as; nothing for one that has ended and was not waited for: it holds nothing."""
    for _ in range(20):
        # One that was started a moment ago has no command yet.
        if command := _text(f"/proc/{process}/cmdline").replace("\0", " "):
            return command
        time.sleep(0.001)
    return ""


def _descriptors() -> frozenset[str]:
    """The numbers of all that is open, without the one of the listing itself: the lowest that is free afterwards."""
    listed = frozenset(os.listdir("/proc/self/fd"))
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    return listed - {str(free)}


def _target_of(descriptor: str) -> str | None:
    """The socket or file of a descriptor that is still open."""
    try:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # closed meanwhile, or the descriptor of the listing itself
        return None
    is_file = target.startswith("/") and "/dev/" not in target and not _KEPT_BY_TORCH.search(target)
    return target if is_file or target.startswith("socket:") else None


def _text(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # the thread or the process ended
        return ""
    try:
        return os.read(descriptor, 1 << 16).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
