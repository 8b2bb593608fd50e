"""Processes made to be killed: forked from a process that has imported everything and started no thread."""

from __future__ import annotations

import json
import os
import signal
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Tell = Callable[[dict[str, Any]], None]


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
