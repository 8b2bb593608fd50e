"""Processes made to be killed: forked from a process that has imported everything and started no thread.

Also what a process shares with its forks, and processes that this one did not start.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import math
import mmap
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

Tell = Callable[[dict[str, Any]], None]
"""Reports values to the parent; later values replace earlier ones of the same name."""

_POLL_SECONDS = 0.001
_LIMIT_BYTES = 8
_PARENT_DEATH_SIGNAL = 1
_STATE, _BIRTH = 0, 19
"""Field indices in /proc/PID/stat, counted after the name of the process."""
_ENDED = frozenset({"Z", "X"})


def import_what_torch_puts_off() -> None:
    """Triggers the slow imports that torch defers to its first optimizer, once for all forked processes."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


class Child:
    """A process that runs a function and reports to its parent. The parent must have one thread.

    Args:
        work: Called in the child with a function that reports to the parent; its result is reported, too.
    """

    def __init__(self, work: Callable[[Tell], dict[str, Any]]) -> None:
        self._read, write = os.pipe()
        self._heard = b""
        """An incomplete line."""
        self._told: dict[str, Any] = {}
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            _work(work, write)
        os.close(write)
        os.set_blocking(self._read, False)
        self._status: int | None = None

    def has_ended(self) -> bool:
        """Returns whether the process has ended."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = status
        return self._status is not None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal. Does nothing if the process has ended."""
        if not self.has_ended():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL, and waits until the process has ended."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._status = os.waitpid(self.pid, 0)[1]

    def wait(self) -> None:
        """Waits until the process ends by itself."""
        if self._status is None:
            self._status = os.waitpid(self.pid, 0)[1]

    def told(self) -> dict[str, Any]:
        """Returns all reports so far; later values replace earlier ones of the same name.

        Raises:
            RuntimeError: it failed without a kill; with its traceback.
        """
        try:
            while chunk := os.read(self._read, 1 << 16):
                self._heard += chunk
        except BlockingIOError:
            pass
        *lines, self._heard = self._heard.split(b"\n")  # a killed process may stop in the middle of a line
        for line in lines:
            self._told |= json.loads(line)
        if "error" in self._told:
            raise RuntimeError(f"a training process failed:\n{self._told['error']}")
        return self._told

    def close(self) -> None:
        """Kills the process if it still runs, and closes the pipe."""
        self.kill()
        os.close(self._read)


def _work(work: Callable[[Tell], dict[str, Any]], write: int) -> NoReturn:
    def tell(what: dict[str, Any]) -> None:
        os.write(write, json.dumps(what).encode() + b"\n")

    try:
        tell({"result": work(tell)})
    except BaseException:  # noqa: BLE001 - whatever it is, the parent must receive it
        tell({"error": traceback.format_exc()})
        os._exit(1)
    os._exit(0)


def result_of(work: Callable[[Tell], dict[str, Any]]) -> dict[str, Any]:
    """Runs a function in a child and returns its result: the parent starts no threads and opens no connections.

    Raises:
        RuntimeError: it failed; with its traceback.
    """
    child = Child(work)
    try:
        child.wait()
        result: dict[str, Any] = child.told()["result"]
    finally:
        child.close()
    return result


def begin_role(log: Path) -> None:
    """Prepares a forked process of a job: it ends with its parent, and writes its output and stacks to a log."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    faulthandler.register(signal.SIGUSR1, file=out, all_threads=True)
    torch.set_num_threads(1)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO, force=True)


class Life(NamedTuple):
    """Start and end of a process, on the monotonic clock."""

    begun: float
    ended: float = math.inf


class BatchLimit:
    """A number in memory that a process shares with its forks. One process sets it, others wait for it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _LIMIT_BYTES)

    def set(self, limit: int) -> None:
        """Allows batches below this number."""
        self._memory[:] = limit.to_bytes(_LIMIT_BYTES, "little")

    def wait_below(self, batch: int) -> None:
        """Returns when this batch is allowed."""
        while int.from_bytes(self._memory[:], "little") <= batch:
            time.sleep(_POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """A process of this machine, which may have ended."""

    pid: int
    birth: str
    """Start time, in clock ticks of the machine."""

    @classmethod
    def of(cls, pid: int) -> KnownProcess | None:
        """Returns the process that has this id now, or None."""
        fields = _stat(pid)
        return None if fields is None else cls(pid, fields[_BIRTH])

    def send(self, number: signal.Signals) -> None:
        """Sends a signal. Does nothing if the process has ended, even if another process has its id by now."""
        if self.is_there():
            with suppress(OSError):
                os.kill(self.pid, number)

    def is_there(self) -> bool:
        """Returns whether the process runs or is stopped; False for a zombie."""
        fields = _stat(self.pid)
        return fields is not None and fields[_BIRTH] == self.birth and fields[_STATE] not in _ENDED


def descendants_of(pid: int) -> list[KnownProcess]:
    """Returns the children of a process, their children, and so on."""
    children: list[int] = []
    with suppress(OSError):  # the process, or a thread of it, has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text(encoding="ascii").split())
    known = [each for child in children if (each := KnownProcess.of(child)) is not None]
    return known + [each for child in children for each in descendants_of(child)]


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
