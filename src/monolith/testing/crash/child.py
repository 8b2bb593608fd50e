"""Processes that are made to be killed: forked from one that has imported everything and started no thread."""

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
    """What torch imports with its first optimizer, seconds long: once for all processes that are forked from here."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


class Child:
    """A process that runs a function and tells its parent what comes of it. The parent must have one thread.

    Args:
        work: Called in the child with a function that tells the parent something; its result is told, too.
    """

    def __init__(self, work: Callable[[Tell], dict[str, Any]]) -> None:
        self._read, write = os.pipe()
        self._heard = b""
        """Of a line that has not come to its end."""
        self._told: dict[str, Any] = {}
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            _work(work, write)
        os.close(write)
        os.set_blocking(self._read, False)
        self._status: int | None = None

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = status
        return self._status is not None

    def send(self, number: signal.Signals) -> None:
        """A signal; one that is gone gets none."""
        if not self.has_ended():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._status = os.waitpid(self.pid, 0)[1]

    def wait(self) -> None:
        """Until it ends by itself."""
        if self._status is None:
            self._status = os.waitpid(self.pid, 0)[1]

    def told(self) -> dict[str, Any]:
        """Everything it told so far, later values instead of earlier ones of the same name.

        Raises:
            RuntimeError: it failed by itself; with its traceback.
        """
        try:
            while chunk := os.read(self._read, 1 << 16):
                self._heard += chunk
        except BlockingIOError:
            pass
        *lines, self._heard = self._heard.split(b"\n")  # one that was killed may stop in the middle of a line
        for line in lines:
            self._told |= json.loads(line)
        if "error" in self._told:
            raise RuntimeError(f"a training process failed:\n{self._told['error']}")
        return self._told

    def close(self) -> None:
        """Kills what still runs and gives the pipe back."""
        self.kill()
        os.close(self._read)


def _work(work: Callable[[Tell], dict[str, Any]], write: int) -> NoReturn:
    def tell(what: dict[str, Any]) -> None:
        os.write(write, json.dumps(what).encode() + b"\n")

    try:
        tell({"result": work(tell)})
    except BaseException:  # noqa: BLE001 - whatever it is, the parent has to know
        tell({"error": traceback.format_exc()})
        os._exit(1)
    os._exit(0)
